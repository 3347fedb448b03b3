package file

// logFile is a file of pebble's log, to which every change is written first.
//
// pebble hands what was written to the system when somebody wants it flushed, and not
// before. What need not be flushed, such as a renewal, must be handed over all the same:
// else a process that is killed would forget it. So pebble is asked for a flush after every
// change, and here it is decided who waits for it: if only such changes are written, the
// flush goes on in the background. Before more is written, it has ended. For pebble notes in what
// it writes up to where the log was flushed; if that were not true, a crash of the
// machine could leave a log that looks damaged.
type logFile struct {
	*diskFile
	number, written uint64
	flushing        chan struct{} // closed when the flush in the background has ended
}

// Write implements [vfs.File].
func (f *logFile) Write(p []byte) (int, error) {
	f.flushed()
	n, err := f.diskFile.Write(p)
	f.written += uint64(n)
	return n, err
}

// Sync implements [vfs.File].
func (f *logFile) Sync() error { return f.flush(f.diskFile.Sync) }

// SyncData implements [vfs.File].
func (f *logFile) SyncData() error { return f.flush(f.diskFile.SyncData) }

// Close implements [vfs.File].
func (f *logFile) Close() error {
	f.flushed()
	return f.diskFile.Close()
}

func (f *logFile) flush(flush func() error) error {
	f.flushed()
	if f.disk.durable.Load() > 0 || f.disk.isOpening() {
		return f.flushAndMark(flush)
	}
	ended := make(chan struct{})
	f.flushing = ended
	go func() {
		defer close(ended)
		_ = f.flushAndMark(flush) // the disk keeps the error to itself
	}()
	return nil
}

func (f *logFile) flushAndMark(flush func() error) error {
	err := flush()
	if err == nil {
		f.disk.mark.setLog(f.number, f.written)
	}
	return err
}

// flushed returns when no flush is under way.
func (f *logFile) flushed() {
	if f.flushing != nil {
		<-f.flushing
		f.flushing = nil
	}
}
