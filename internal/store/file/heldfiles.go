package file

import (
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// heldFiles are the files that pebble has open on a disk. A database that was given up is
// never closed: pebble would wait for what it cannot write. Its files are, because there are
// up to a few hundred of them, and with those of several such databases a process could open
// none any more, for the next one either.
type heldFiles struct {
	mu   sync.Mutex
	open map[*heldFile]struct{}
	// released says that they were closed, for good.
	released bool
}

// heldFile is one of them.
type heldFile struct {
	vfs.File
	of *heldFiles
}

// add notes a file that was opened. Like a write, it never returns once the database was
// given up, and its files were closed.
func (o *heldFiles) add(f vfs.File) *heldFile {
	o.mu.Lock()
	if o.released {
		o.mu.Unlock()
		_ = f.Close() // nothing was written to it
		select {}
	}
	defer o.mu.Unlock()
	file := &heldFile{File: f, of: o}
	if o.open == nil {
		o.open = make(map[*heldFile]struct{})
	}
	o.open[file] = struct{}{}
	return file
}

// release closes all of them. The disk is fenced, and nobody but pebble reads from it. A
// disk that hangs can keep a file from being closed, so nobody waits for that.
func (o *heldFiles) release() {
	o.mu.Lock()
	open := o.open
	o.open, o.released = nil, true
	o.mu.Unlock()
	go func() {
		for f := range open {
			_ = f.File.Close() // what was acknowledged was flushed before
		}
	}()
}

// whole reports to pebble how it went on a file. Told that a file was closed, pebble would
// try again at once, without an end.
func (f *heldFile) whole(err error) error {
	if err == nil {
		return nil
	}
	f.of.mu.Lock()
	released := f.of.released
	f.of.mu.Unlock()
	if released {
		select {}
	}
	return err
}

// Read implements [vfs.File].
func (f *heldFile) Read(p []byte) (n int, err error) {
	n, err = f.File.Read(p)
	return n, f.whole(err)
}

// ReadAt implements [vfs.File].
func (f *heldFile) ReadAt(p []byte, at int64) (n int, err error) {
	n, err = f.File.ReadAt(p, at)
	return n, f.whole(err)
}

// Stat implements [vfs.File].
func (f *heldFile) Stat() (vfs.FileInfo, error) {
	info, err := f.File.Stat()
	return info, f.whole(err)
}

// Close implements [vfs.File].
func (f *heldFile) Close() error {
	f.of.mu.Lock()
	_, open := f.of.open[f]
	delete(f.of.open, f)
	f.of.mu.Unlock()
	if !open {
		return nil // it was released
	}
	return f.File.Close()
}
