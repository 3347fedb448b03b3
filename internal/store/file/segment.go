package file

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

const (
	// segmentBytes is from which size on a segment takes no more bodies, unless files may not
	// become so large.
	segmentBytes = 64 << 20
	// blockBytes is where bodies begin: at a multiple of what a file system gives room by, so
	// that the room of one can be given back, and that it can be written past the cache.
	blockBytes = 4 << 10
	// mostOpen is how many segments take more bodies: there is one for each minute in which
	// responses expire. Those that have taken none for the longest time are closed first.
	mostOpen = 8
)

// segment is a file for bodies that expire within the same minute.
type segment struct {
	bucket string
	number uint64

	// The following belong to the mutex of the bodies.
	end     int64 // where the next body begins
	writers int   // how many write to it
	closed  bool  // it takes no more bodies, and its file is closed while nobody writes to it

	// opening is locked while the file is opened, which then has a name that is still there
	// after a crash of the machine.
	opening sync.Mutex
	file    *segmentFile
	named   bool
	removed []*segmentFile // those of before, which were removed while they were open
}

// sharedFlush is a flush for all who had written before it began. It belongs to the lock
// flushing.
type sharedFlush struct {
	done bool
	err  error
}

// reserve returns a place for a body that expires at that moment.
func (b *bodies) reserve(until time.Time, body []byte) *newBody {
	b.mu.Lock()
	defer b.mu.Unlock()
	bucket := bucketOf(until)
	s := b.openIn(bucket)
	if s == nil {
		if len(b.open) == mostOpen {
			b.close(b.open[0])
		}
		// A number that was never used: nobody has to know what other segments there are.
		s = &segment{bucket: bucket, number: rand.Uint64()} //nolint:gosec // nothing secret
	}
	b.open = append(b.without(s), s)
	at := s.end
	s.end += wholeBlocks(int64(len(body)))
	if s.end >= b.most {
		b.close(s)
	}
	return &newBody{bodyPlace{bucket, s.number, at, uint64(len(body))}, body, s}
}

// wholeBlocks returns how much room so many bytes take.
func wholeBlocks(length int64) int64 { return (length + blockBytes - 1) &^ (blockBytes - 1) }

// openIn returns the open segment of a bucket, nil if there is none.
func (b *bodies) openIn(bucket string) *segment {
	for _, s := range b.open {
		if s.bucket == bucket {
			return s
		}
	}
	return nil
}

// without returns the open segments but one.
func (b *bodies) without(s *segment) []*segment {
	return slices.DeleteFunc(b.open, func(other *segment) bool { return other == s })
}

// close has a segment take no more bodies. The mutex of the bodies is locked.
func (b *bodies) close(s *segment) {
	b.open = b.without(s)
	s.closed = true
	b.closeUnused(s)
}

// closeUnused closes the file of a segment that takes no more bodies, and to which nobody
// writes. What is in it has been flushed. A disk can hang, so nobody waits for it.
func (b *bodies) closeUnused(s *segment) {
	if s.closed && s.writers == 0 {
		b.removing.Go(func() { b.closeFile(s) })
	}
}

// closeFile closes the file of a segment, unless somebody has come to write to it. Who comes
// now waits, and opens it again.
func (b *bodies) closeFile(s *segment) {
	s.opening.Lock()
	defer s.opening.Unlock()
	b.mu.Lock()
	unused := s.writers == 0
	b.mu.Unlock()
	if !unused {
		return
	}
	for _, f := range append(s.removed, s.file) {
		if f != nil {
			f.close()
		}
	}
	s.removed, s.file, s.named = nil, nil, false
}

// tooLarge says why there is no place for a body in its segment, which may not become larger.
// Where other bodies lie in front of it, the next attempt finds a segment that has room.
func (b *bodies) tooLarge(body *newBody, err error) error {
	if body.at == 0 {
		return fmt.Errorf("%w: %w", idempotency.ErrTooLarge, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.most = min(b.most, body.at)
	b.close(body.segment)
	return fmt.Errorf("the file %s cannot become larger; the next attempt makes another one: %w", body.bodyPlace, err)
}

// closeAll closes all segments. Nobody writes to them any more.
func (b *bodies) closeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range slices.Clone(b.open) {
		b.close(s)
	}
}

// enter says that somebody is about to write to a segment, and leave that it is over.
func (b *bodies) enter(s *segment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.writers++
}

func (b *bodies) leave(s *segment) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.writers--
	b.closeUnused(s)
}

// closeBucket has the segments of a bucket take no more bodies: they are going to be removed.
func (b *bodies) closeBucket(bucket string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.openIn(bucket); s != nil {
		b.close(s)
	}
}

// made returns the file of a segment, which is made for its first body.
func (b *bodies) made(s *segment) (*segmentFile, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.file == nil {
		var f vfs.File
		err := b.disk.whenRoom(func() (err error) {
			f, err = b.create(s)
			return err
		})
		if err != nil {
			return nil, err
		}
		name := b.file(s.bucket, s.number)
		makePrivate(b.disk.FS, name)
		s.file = &segmentFile{File: f, direct: openDirect(f, name)}
	}
	if !s.named {
		if err := b.flushNames(s.bucket); err != nil {
			if errors.Is(err, os.ErrNotExist) { // the next attempt makes all of it again
				s.removed, s.file = append(s.removed, s.file), nil
			}
			return nil, err
		}
		s.named = true
	}
	return s.file, nil
}

// isThere reports whether the file that a body was written to is still that of its segment.
// The sweeper or a person may have removed it while it was open: it is made again then.
func (b *bodies) isThere(s *segment, f *segmentFile) (bool, error) {
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.file != f {
		return false, nil
	}
	_, err := b.disk.Stat(b.file(s.bucket, s.number))
	if !errors.Is(err, os.ErrNotExist) {
		return true, err
	}
	giveBackRemoved(f)
	s.removed, s.file, s.named = append(s.removed, f), nil, false
	return false, nil
}

// segmentFile is the open file of a segment.
type segmentFile struct {
	vfs.File
	// direct writes past the cache of the system, nil where that cannot be done.
	direct *os.File

	// flushing is locked during a flush. next is what those have in common who wait for the
	// flush after it. Both are the file's own: a flush of one that was removed does nothing for
	// those who wrote to the one that was made again.
	flushing sync.Mutex
	mu       sync.Mutex
	next     *sharedFlush
}

// directBytes is from which size on a body is written past the cache: to have the disk take
// it from where it lies costs less then than to copy it (BenchmarkLargeResponse).
const directBytes = 256 << 10

// WriteAt implements [vfs.File]. What cannot be written past the cache is written as ever, and
// says what is wrong.
func (f *segmentFile) WriteAt(p []byte, at int64) (n int, err error) {
	if f.direct != nil && len(p) >= directBytes {
		n, _ = f.direct.WriteAt(p[:len(p)&^(blockBytes-1)], at)
		n &^= blockBytes - 1
	}
	if n == len(p) {
		return n, nil
	}
	rest, err := f.File.WriteAt(p[n:], at+int64(n))
	return n + rest, err
}

func (f *segmentFile) close() {
	_ = f.Close() // nothing that counts is lost
	if f.direct != nil {
		_ = f.direct.Close()
	}
}

// flush returns when all is flushed that was written to the file before. Only one flush is
// under way, and whoever comes meanwhile shares the next one.
func (f *segmentFile) flush(flush func() error) error {
	f.mu.Lock()
	if f.next == nil {
		f.next = new(sharedFlush)
	}
	shared := f.next
	f.mu.Unlock()
	f.flushing.Lock()
	defer f.flushing.Unlock()
	if !shared.done {
		f.mu.Lock()
		f.next = nil
		f.mu.Unlock()
		shared.done, shared.err = true, flush()
	}
	return shared.err
}
