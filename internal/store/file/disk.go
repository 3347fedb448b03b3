package file

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// ErrNoSpace says that there is no room on the disk for what is to be written. What is
// in the store can still be read.
var ErrNoSpace = errors.New("there is no space left for the store")

// spaceErrors are the errors of a full disk, of a quota, and of the limit of a process
// for the size of its files.
var spaceErrors = []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG}

var errReadOnly = errors.New("the store is only looked at, and nothing is written")

func isSpace(err error) bool {
	for _, full := range spaceErrors {
		if errors.Is(err, full) {
			return true
		}
	}
	return false
}

// roomEvery is how often a write that found no room is tried again.
const roomEvery = 100 * time.Millisecond

// disk is the file system that pebble writes to. pebble was made for a process that
// ends itself when a write fails: after such a failure it panics with its locks locked,
// or goes on without what was not written. So it is never told of one:
//
//   - A write that finds no room waits here and is tried again until there is some.
//     Until then the store says that it is full, and takes nothing more.
//   - After any other failure nothing is written any more, and whoever tries waits for
//     ever. The database is given up, and opened anew when its disk can be written to
//     ([Store.watch]): pebble then finds on the disk what it knows how to recover.
//
// While a database is being opened, a disk without room is such a failure too: who opens
// it is told so at once.
type disk struct {
	vfs.FS
	// readOnly refuses every write.
	readOnly bool
	// mark says what was flushed.
	mark *flushMark
	// files are those that are open.
	files heldFiles
	// durable is how many operations wait for their flush (logfile.go).
	durable atomic.Int64

	// writing is read-locked during every write. Locking it waits for those that have
	// begun.
	writing sync.RWMutex
	fenced  bool // under writing: nothing is written any more

	mu      sync.Mutex
	check   func() error // nil until guarded
	opening bool
	failure error
	waiting int           // writes that wait for room
	full    error         // why they do
	changed chan struct{} // closed when failure or full is set
	gone    chan struct{} // closed when failure is set
}

func newDisk(fs vfs.FS) *disk {
	return &disk{FS: fs, mark: new(flushMark), opening: true, changed: make(chan struct{}), gone: make(chan struct{})}
}

// opened says that the database is open.
func (d *disk) opened() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.opening = false
}

// guard has a check say, from now on, what has become of the store's directory, before a name
// in it is made, changed, or removed.
func (d *disk) guard(check func() error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.check = check
}

// inPlace returns a change of the names in the store's directory with which the database is
// given up if another directory is in its place. pebble knows its files by their names: until
// somebody looks after the directory, it would write over the files of another store, and a
// part of this one would lie there.
func (d *disk) inPlace(change func() error) func() error {
	return func() error {
		d.mu.Lock()
		check := d.check
		d.mu.Unlock()
		if check != nil {
			if err := check(); err != nil {
				d.fail(err)
				return err
			}
		}
		return change()
	}
}

// trouble returns why nothing can be written now, nil if all is well, and a channel
// that is closed when that changes for the worse.
func (d *disk) trouble() (err error, worse <-chan struct{}) { //nolint:revive,staticcheck // the error is not that of this call
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.failure != nil:
		return d.failure, d.changed
	case d.full != nil:
		return fmt.Errorf("%w: %w", ErrNoSpace, d.full), d.changed
	default:
		return nil, d.changed
	}
}

// failed returns why nothing will be written any more, nil if that is not so.
func (d *disk) failed() error {
	select {
	case <-d.gone:
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.failure
	default:
		return nil
	}
}

// fail ends all writing, for this reason.
func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure == nil {
		d.failure = err
		close(d.gone)
		d.worse()
	}
}

func (d *disk) worse() {
	close(d.changed)
	d.changed = make(chan struct{})
}

// fence returns when nothing is being written any more, and nothing will be.
func (d *disk) fence() {
	d.fail(errors.New("the database was given up"))
	d.writing.Lock()
	defer d.writing.Unlock()
	d.fenced = true
}

// write carries out one change of the disk, again and again until there is room for it.
// It returns no error but that of a disk that is only read: once the database is given
// up, it never returns.
func (d *disk) write(change func() error) error {
	if d.readOnly {
		return errReadOnly
	}
	if d.carryOut(change) != nil {
		select {}
	}
	return nil
}

// carryOut is write for those who can be told why the database was given up.
func (d *disk) carryOut(change func() error) error {
	return d.whenRoom(func() error {
		err := change()
		if err != nil && (!isSpace(err) || d.isOpening()) {
			d.fail(err)
		}
		return err
	})
}

// whenRoom carries out one change of the disk, again and again until there is room for
// it. Its other errors are told, and nothing is given up for them.
func (d *disk) whenRoom(change func() error) error {
	waiting := false
	for {
		begun, err := d.once(change)
		if !begun || err != nil && d.failed() != nil {
			return d.failed()
		}
		if !isSpace(err) {
			if waiting {
				d.room()
			}
			return err
		}
		if !waiting {
			waiting = true
			d.noRoom(err)
		}
		d.pause()
	}
}

// flush is write for a flush, which is not tried again: after one that has failed, the
// system may have dropped what was to be flushed, and the next one would succeed
// without it.
func (d *disk) flush(flush func() error) error { return d.write(d.failing(flush)) }

// carryOutFlush is flush for those who can be told why the database was given up.
func (d *disk) carryOutFlush(flush func() error) error { return d.carryOut(d.failing(flush)) }

// flushDirectory flushes the names in a directory.
func (d *disk) flushDirectory(name string) error {
	var dir vfs.File
	err := d.whenRoom(func() (err error) {
		dir, err = d.FS.OpenDir(name)
		return err
	})
	if err != nil {
		return err
	}
	err = d.carryOutFlush(dir.Sync)
	_ = dir.Close() // its names are flushed
	return err
}

// failing returns a change with which the database is given up unless it succeeds.
func (d *disk) failing(flush func() error) func() error {
	return func() error {
		err := flush()
		if err != nil {
			d.fail(err)
		}
		return err
	}
}

// try makes one attempt. Once the database is given up, it never returns.
func (d *disk) try(change func() error) error {
	begun, err := d.once(change)
	if !begun {
		select {}
	}
	return err
}

// once makes one attempt, unless the database is given up.
func (d *disk) once(change func() error) (begun bool, err error) {
	d.writing.RLock()
	defer d.writing.RUnlock()
	if d.fenced || d.failed() != nil {
		return false, nil
	}
	return true, change()
}

func (d *disk) isOpening() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.opening
}

func (d *disk) noRoom(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting++
	if d.full == nil {
		d.full = err
		d.worse()
	}
}

func (d *disk) room() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting--; d.waiting == 0 {
		d.full = nil
	}
}

// pause waits before a write that found no room is tried again.
func (d *disk) pause() {
	again := time.NewTimer(roomEvery)
	defer again.Stop()
	select {
	case <-again.C:
	case <-d.gone:
	}
}
