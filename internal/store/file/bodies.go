package file

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"golang.org/x/sync/semaphore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Large bodies are not in the database: pebble would write each of them to its log and then, again
// and again, to its tables. They are appended to segments, bodies/<bucket>/<segment>, and flushed
// before the values that refer to them. A bucket is named after the time by which everything in it
// has expired. The sweeper removes it as a whole, including bodies whose values were removed or,
// because of a crash, never written. That needs neither the database nor free space.
//
// A settlement waits as long as pieces of any body are being written. Only a few bodies are written at a
// time, in pieces between which the disk can flush the log. A body whose write has started is written to
// its end, once: the next attempt of the settlement uses it.
const (
	bodiesName     = "bodies"
	maxInlineBody  = 64 << 10 // larger ones are in segments
	bucketFormat   = "20060102T1504Z"
	bucketInterval = 5 * time.Minute

	maxSegment      = 64 << 20 // a full one takes no more bodies
	maxOpenSegments = 16
	blockSize       = 4096 // bodies start at a multiple of it, for direct writes

	maxWriting       = 16 << 20        // bytes of the bodies that are written at a time
	halfSize         = 2 << 20         // larger bodies count as half of maxWriting: two are written at a time
	pieceSize        = 1 << 20         // of a write
	maxReservedSpace = 32 << 20        // see diskSpace
	fullTimeout      = 5 * time.Second // how long the disk counts as full; longer than the engine's pause between two attempts
)

// location is where a body is. Segment 0 does not exist.
type location struct{ segment, offset, length uint64 }

const locationSize = 24

func (p location) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, p.segment)
	b = binary.BigEndian.AppendUint64(b, p.offset)
	return binary.BigEndian.AppendUint64(b, p.length)
}

func decodeLocation(b []byte) location {
	return location{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint64(b[16:])}
}

// bodies are the segments of a store. They do not use the database's disk, so a failed write is an
// error of one settlement only.
type bodies struct {
	fs      vfs.FS
	root    string
	writing *semaphore.Weighted // of maxWriting
	moved   idempotency.Progress
	mu      sync.Mutex
	open    map[string]*segment // by bucket; the segments that take more bodies

	full atomic.Pointer[fullDisk] // see status
}

// fullDisk is why the disk counts as full, and since when.
type fullDisk struct {
	err   error
	since time.Time // with the reading of the monotonic clock
}

// bodyWrite is a write of a body to a segment, under way or done.
type bodyWrite struct {
	bucket   string
	head     []byte        // of its response, as the value has it
	done     chan struct{} // closed when place and err are set
	location location
	err      error
}

// status returns errNoSpace if the disk was nearly full, or had no space for a body, within fullTimeout.
// pebble may not have noticed, because its log is preallocated.
func (b *bodies) status() error {
	if full := b.full.Load(); full != nil && time.Since(full.since) < fullTimeout {
		return full.err
	}
	return nil
}

// setFull makes the disk count as full because of err, and returns err as an errNoSpace.
func (b *bodies) setFull(err error) error {
	err = fmt.Errorf("%w: %w", errNoSpace, err)
	b.full.Store(&fullDisk{err, time.Now()})
	return err
}

// measure makes the disk count as full if little space is free.
func (b *bodies) measure() {
	if err := b.checkSpace(0); err != nil {
		_ = b.setFull(err)
	}
}

// checkSpace returns an error if a write of so many bytes would leave too little space on the disk.
func (b *bodies) checkSpace(bytes int) error {
	free, reserved, size := diskSpace(b.fs, b.fs.PathDir(b.root))
	switch need := uint64(bytes) + reserved; {
	case need > size: // there will never be enough
		return fmt.Errorf("%d MiB are all that the disk has: %w", size>>20, syscall.EFBIG)
	case need > free:
		return fmt.Errorf("%d MiB are free, of which the store leaves %d: %w", free>>20, reserved>>20, syscall.ENOSPC)
	default:
		return nil
	}
}

func newBodies(fs vfs.FS, store string) *bodies {
	return &bodies{
		fs: fs, root: fs.PathJoin(store, bodiesName), writing: semaphore.NewWeighted(maxWriting),
		open: make(map[string]*segment),
	}
}

func (b *bodies) bucket(until time.Time) string {
	return until.Truncate(bucketInterval).Add(bucketInterval).UTC().Format(bucketFormat)
}

func (b *bodies) segmentPath(bucket string, number uint64) string {
	return b.fs.PathJoin(b.root, bucket, fmt.Sprintf("%016x", number))
}

// write writes the body of an answer, flushes it, and sets the answer's location. When the context
// ends, write returns an error, but the disk write goes on, in *pending. A later call with the same
// pending waits for that write instead of starting another one, and its answer becomes that of the
// first call: the two may be encrypted differently.
func (b *bodies) write(ctx context.Context, key idempotency.Key, a *answer, pending **bodyWrite) error {
	bucket := b.bucket(a.until)
	if *pending == nil || (*pending).bucket != bucket {
		body := a.response.Body
		size := int64(len(body))
		if size > halfSize {
			size = maxWriting / 2
		}
		idempotency.Follow(ctx, &b.moved) // those before it, and then its own
		if err := b.writing.Acquire(ctx, size); err != nil {
			return ctx.Err()
		}
		w := &bodyWrite{bucket: bucket, head: idempotency.AppendResponseHead(nil, key, a.token, a.response), done: make(chan struct{})}
		*pending = w
		go func() {
			defer close(w.done)
			w.location, w.err = b.append(bucket, body)
			b.writing.Release(size)
		}()
	}
	w := *pending
	idempotency.Follow(ctx, &b.moved)
	select {
	case <-w.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if w.err != nil {
		*pending = nil
	}
	a.location, a.encoded, a.response = w.location, w.head, nil
	return w.err
}

// append appends a body to the open segment of a bucket. If that would exceed the maximum size of a
// file, the body gets a new segment. If it does not fit there either, the error is ErrTooLarge.
func (b *bodies) append(bucket string, body []byte) (p location, err error) {
	err = b.checkSpace(len(body))
	for again := err == nil; again; again = errors.Is(err, syscall.EFBIG) && p.offset > 0 {
		p, err = b.appendOnce(bucket, body)
	}
	switch {
	case isNoSpace(err):
		err = b.setFull(err)
	case errors.Is(err, syscall.EFBIG):
		err = fmt.Errorf("%w: %w", idempotency.ErrTooLarge, err)
	}
	return p, err
}

func (b *bodies) appendOnce(bucket string, body []byte) (location, error) {
	s, offset, err := b.reserve(bucket, uint64(len(body)))
	if err != nil {
		return location{}, err
	}
	if err = s.writeAt(body, int64(offset), &b.moved); err == nil {
		err = s.flush()
		b.moved.Moved()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		s.good = max(s.good, int64(offset)+int64(len(body)))
	} else {
		s.broken = true
	}
	if b.open[bucket] == s && (err != nil || s.end >= maxSegment) {
		b.closeSegment(bucket)
	}
	s.release()
	return location{s.number, offset, uint64(len(body))}, err
}

// reserve reserves space at the end of the open segment of a bucket. It creates one if there is none.
func (b *bodies) reserve(bucket string, length uint64) (s *segment, offset uint64, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s = b.open[bucket]
	if s == nil {
		if s, err = b.create(bucket); err != nil {
			return nil, 0, err
		}
		for other := range b.open {
			if len(b.open) < maxOpenSegments {
				break
			}
			b.closeSegment(other)
		}
		b.open[bucket] = s
	}
	offset = s.end
	s.end += (length + blockSize - 1) / blockSize * blockSize
	s.users++
	return s, offset, nil
}

// create creates a segment. Its name is durable when create returns.
func (b *bodies) create(bucket string) (*segment, error) {
	dir := b.fs.PathJoin(b.root, bucket)
	if err := b.fs.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	s := &segment{number: rand.Uint64() | 1, users: 1}
	name := b.segmentPath(bucket, s.number)
	s.path = name
	var err error
	if s.file, err = b.fs.OpenReadWrite(name, vfs.WriteCategoryUnspecified); err != nil {
		return nil, err
	}
	makePrivate(name)
	s.direct = openDirect(name)
	if err := errors.Join(syncDir(b.fs, dir), syncDir(b.fs, b.root), syncDir(b.fs, b.fs.PathDir(b.root))); err != nil {
		s.broken = true
		s.release()
		return nil, err
	}
	return s, nil
}

// closeSegment removes a bucket's open segment, if there is one, from those that take more bodies.
// The caller holds the mutex.
func (b *bodies) closeSegment(bucket string) {
	if s := b.open[bucket]; s != nil {
		delete(b.open, bucket)
		s.release()
	}
}

// read reads a body. It returns the name of its file even with an error.
func (b *bodies) read(until time.Time, p location) (body []byte, name string, err error) {
	name = b.segmentPath(b.bucket(until), p.segment)
	f, err := b.fs.Open(name)
	if err != nil {
		return nil, name, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil && (p.length > uint64(info.Size()) || p.offset > uint64(info.Size())-p.length) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return nil, name, err
	}
	body = make([]byte, p.length)
	_, err = f.ReadAt(body, int64(p.offset))
	return body, name, err
}

// removeExpired removes the buckets in which everything had expired by a time.
func (b *bodies) removeExpired(by time.Time) error {
	buckets, err := b.fs.List(b.root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, bucket := range buckets {
		moment, parseErr := time.Parse(bucketFormat, bucket)
		if parseErr != nil || by.Before(moment) {
			continue
		}
		b.mu.Lock()
		b.closeSegment(bucket)
		b.mu.Unlock()
		err = errors.Join(err, b.fs.RemoveAll(b.fs.PathJoin(b.root, bucket)))
	}
	return err
}

// close closes the open segments.
func (b *bodies) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for bucket := range b.open {
		b.closeSegment(bucket)
	}
}

// segment is a file of bodies that is open. number, end, users, good and broken are guarded by
// the mutex of its bodies.
type segment struct {
	number, end uint64
	users       int // the writes under way, plus one while it takes more bodies
	path        string
	good        int64 // end of the last body that was written
	broken      bool  // whether a write has failed
	file        vfs.File
	direct      *os.File // the same file, for writes past the system's cache; nil if there are none

	written atomic.Int64 // bodies
	mu      sync.Mutex   // guards the rest
	flushed int64        // how many bodies are durable
	err     error        // of a flush; no body that was not flushed before counts
}

// directSize is the size, in bytes, from which direct writes are cheaper.
const directSize = 256 << 10

// writeAt writes a body, directly if it is large. The part after its last whole block, and what a
// direct write leaves unwritten, goes through the cache.
func (s *segment) writeAt(body []byte, offset int64, moved *idempotency.Progress) (err error) {
	direct := s.direct != nil && len(body) >= directSize
	for err == nil && len(body) > 0 {
		piece := body[:min(len(body), pieceSize)]
		n := len(piece) &^ (blockSize - 1)
		if direct && n > 0 {
			aligned := n
			n, _ = s.direct.WriteAt(piece[:aligned], offset)
			direct = n == aligned
			n &^= blockSize - 1
		} else {
			n, err = s.file.WriteAt(piece, offset)
		}
		body, offset = body[n:], offset+int64(n)
		moved.Moved()
	}
	return err
}

// release ends one use of the segment. The last release closes the files, whose bodies are flushed by
// then, and cuts off what a failed write has left, so that it takes no space.
func (s *segment) release() {
	if s.users--; s.users > 0 {
		return
	}
	_ = s.file.Close()
	if s.direct != nil {
		_ = s.direct.Close()
	}
	switch {
	case !s.broken:
	case s.good == 0:
		_ = os.Remove(s.path)
	default:
		_ = os.Truncate(s.path, s.good)
	}
}

// flush returns when everything that was written before the call is durable. Concurrent calls share
// flushes: while one flushes, the others wait, and then one of them flushes for all.
func (s *segment) flush() error {
	want := s.written.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || s.flushed >= want {
		return s.err
	}
	written := s.written.Load()
	if s.err = s.file.SyncData(); s.err == nil {
		s.flushed = written
	}
	return s.err
}
