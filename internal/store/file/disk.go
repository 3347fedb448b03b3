package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// errNoSpace means that the disk has no space for a write. What is stored can still be read.
var errNoSpace error = &idempotency.RefusedError{Err: errors.New("no space left for the store")}

var errAbandoned = errors.New("the database was abandoned")

// isNoSpace reports whether an error is that of a full disk or an exhausted quota. EFBIG is not, because
// free space does not help a file that has reached its maximum size.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// spaceRetryInterval is the interval at which a write that found no space is retried.
const spaceRetryInterval = 100 * time.Millisecond

// disk is the file system that pebble writes to. pebble expects that the process exits when a write
// fails; otherwise it may acknowledge what was not written, or repeat the write without a pause. So
// disk never returns an error of a write to pebble:
//
//   - A write that finds no space waits and is retried. Meanwhile the disk counts as full, and no
//     operation starts another write.
//   - Any other failure is final. Nothing more is written, and nothing is acknowledged (commit.go).
//     Later writes appear to succeed, so that pebble can be closed as usual. The store opens another
//     database as soon as the disk allows it (recovery.go). That database has all that was
//     acknowledged. While a database is being opened, a lack of space is such a failure as well:
//     opening must not wait.
//
// Reads are passed on; pebble handles their errors.
type disk struct {
	vfs.FS
	// writing is read-locked during each write. fence locks it.
	writing sync.RWMutex

	mu      sync.Mutex
	isOpen  bool
	last    string // the file that was opened last
	full    error  // why writes wait for space; nil if none waits
	waiting int    // number of such writes
	failure error
	failed  chan struct{} // closed when failure is set
}

func newDisk(fs vfs.FS) *disk { return &disk{FS: fs, failed: make(chan struct{})} }

// setOpen ends the opening: from now on, writes wait for space.
func (d *disk) setOpen() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isOpen = true
}

// status returns an error if nothing can be written at the moment.
func (d *disk) status() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.failure != nil:
		return d.failure
	case d.full != nil:
		return fmt.Errorf("%w: %w", errNoSpace, d.full)
	default:
		return nil
	}
}

// fail makes the disk fail: it writes nothing any more. Only the first error counts.
func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure == nil {
		d.failure = err
		close(d.failed)
	}
}

func (d *disk) hasFailed() bool {
	select {
	case <-d.failed:
		return true
	default:
		return false
	}
}

// fence makes the disk fail and returns when no write is under way. Then another database may use the
// directory.
func (d *disk) fence() {
	d.fail(errAbandoned)
	d.writing.Lock()
	defer d.writing.Unlock()
}

// attempt makes one change to the disk, unless the disk has failed.
func (d *disk) attempt(change func() error) error {
	d.writing.RLock()
	defer d.writing.RUnlock()
	if d.hasFailed() {
		return d.failure
	}
	return change()
}

// write makes one change to the disk, and retries it until there is space for it. Any other error makes
// the disk fail.
func (d *disk) write(change func() error) {
	err := d.attempt(change)
	if isNoSpace(err) && d.addWaiter(err) {
		retry := time.NewTicker(spaceRetryInterval)
		defer retry.Stop()
		for isNoSpace(err) && !d.hasFailed() {
			select {
			case <-retry.C:
			case <-d.failed:
			}
			err = d.attempt(change)
		}
		d.removeWaiter()
	}
	if err != nil {
		d.fail(err)
	}
}

// flush makes what was written durable. It is not retried, not even for lack of space: after a failed
// flush the system may have dropped the data, and the next flush would succeed without it.
func (d *disk) flush(sync func() error) {
	if err := d.attempt(sync); err != nil {
		d.fail(err)
	}
}

// addWaiter counts a write that waits for space. It reports false if the write must not wait, because
// the database is still being opened.
func (d *disk) addWaiter(err error) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isOpen {
		d.full = err
		d.waiting++
	}
	return d.isOpen
}

func (d *disk) removeWaiter() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.waiting--; d.waiting == 0 {
		d.full = nil
	}
}

// openFile opens a file for writing. pebble's files are private even in a directory that is not.
func (d *disk) openFile(name string, open func() (vfs.File, error)) (vfs.File, error) {
	f := d.open(open)
	makePrivate(name)
	return f, nil
}

// open opens a file or a directory. On a disk that has failed it returns a placeholder, to which
// nothing is written.
func (d *disk) open(open func() (vfs.File, error)) vfs.File {
	f, _ := vfs.NewMem().OpenDir("/")
	d.write(func() error {
		opened, err := open()
		if err == nil {
			f = opened
		}
		return err
	})
	return &diskFile{f, d}
}

// makePrivate makes a file readable by its owner only. Errors are ignored, because not every file
// system has modes.
func makePrivate(name string) { _ = os.Chmod(name, 0o600) }

// Open remembers which file pebble reads.
func (d *disk) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	d.mu.Lock()
	d.last = d.PathBase(name)
	d.mu.Unlock()
	return d.FS.Open(name, opts...)
}

// lastOpened returns the name of the file that was opened last.
func (d *disk) lastOpened() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.last
}

// The methods of [vfs.FS] that change the disk.

// Create makes the names in the directory durable before it creates a marker. A marker names another
// file, and pebble makes both names durable together, so a crash could leave a marker without its
// file.
func (d *disk) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if strings.HasPrefix(d.PathBase(name), "marker.") {
		d.flush(func() error { return syncDir(d.FS, d.PathDir(name)) })
	}
	return d.openFile(name, func() (vfs.File, error) { return d.FS.Create(name, c) })
}

func (d *disk) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return d.openFile(name, func() (vfs.File, error) { return d.FS.ReuseForWrite(old, name, c) })
}

func (d *disk) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return d.openFile(name, func() (vfs.File, error) { return d.FS.OpenReadWrite(name, c, opts...) })
}

func (d *disk) OpenDir(name string) (vfs.File, error) {
	return d.open(func() (vfs.File, error) { return d.FS.OpenDir(name) }), nil
}

func (d *disk) Link(old, name string) error {
	d.write(func() error { return d.FS.Link(old, name) })
	return nil
}

func (d *disk) Rename(old, name string) error {
	d.write(func() error { return d.FS.Rename(old, name) })
	return nil
}

func (d *disk) MkdirAll(name string, perm os.FileMode) error {
	d.write(func() error { return d.FS.MkdirAll(name, perm) })
	return nil
}

// Remove returns its errors, because a file that is left does no harm.
func (d *disk) Remove(name string) error {
	return d.attempt(func() error { return d.FS.Remove(name) })
}

func (d *disk) RemoveAll(name string) error {
	return d.attempt(func() error { return d.FS.RemoveAll(name) })
}

// Lock does nothing. The store has locked the directory itself (directory.go); an abandoned database
// would keep pebble's lock.
func (d *disk) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Unwrap hides the wrapped file system, so that pebble cannot bypass this one.
func (d *disk) Unwrap() vfs.FS { return nil }

// diskFile is a file that pebble writes.
type diskFile struct {
	vfs.File
	disk *disk
}

// Write writes all of p. A retry continues where the attempt before it ran out of space.
func (f *diskFile) Write(p []byte) (n int, err error) {
	f.disk.write(func() error {
		m, err := f.File.Write(p[n:])
		n += m
		return err
	})
	return len(p), nil
}

func (f *diskFile) WriteAt(p []byte, at int64) (n int, err error) {
	f.disk.write(func() error {
		_, err := f.File.WriteAt(p, at)
		return err
	})
	return len(p), nil
}

// Preallocate returns its errors, because not every file system supports it.
func (f *diskFile) Preallocate(at, length int64) error {
	return f.disk.attempt(func() error { return f.File.Preallocate(at, length) })
}

func (f *diskFile) Sync() error {
	f.disk.flush(f.File.Sync)
	return nil
}

func (f *diskFile) SyncData() error {
	f.disk.flush(f.File.SyncData)
	return nil
}

func (f *diskFile) SyncTo(length int64) (full bool, err error) {
	f.disk.flush(func() (err error) {
		full, err = f.File.SyncTo(length)
		return err
	})
	return full, nil
}
