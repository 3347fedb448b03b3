package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Large bodies lie in files of their own, one behind the other:
//
//	bodies/<bucket>/<segment>
//
// pebble would write them twice, to its log and to its tables. So a body is written once,
// and flushed before the record that makes it count: bodies that are written at the same
// time share the flush, and no file is made for each. The bucket is the moment by which all
// that is in it has expired. Its segments are removed some time after that moment: nobody
// has to know of a body whose record was never written.
const (
	bodiesName = "bodies"
	// largeBytes is from which size on a body lies in a segment. A smaller one costs less
	// where pebble writes it twice than the flush of a segment does (BenchmarkLargeResponse).
	largeBytes = 128 << 10
	// bucketForm names a bucket, so that the names are in the order of the moments.
	bucketForm = "20060102T1504Z"
)

// bodyPlace is where a body lies.
type bodyPlace struct {
	bucket  string
	segment uint64
	at      int64
	length  uint64
}

// bucketOf names the bucket of what expires at that moment.
func bucketOf(until time.Time) string {
	return dueBy(until).UTC().Format(bucketForm)
}

// parseBucket reads the name of a bucket.
func parseBucket(name string) (at time.Time, ok bool) {
	at, err := time.Parse(bucketForm, name)
	return at, err == nil && at.Format(bucketForm) == name
}

func segmentName(number uint64) string { return fmt.Sprintf("%016x", number) }

// isSegmentName reports whether a file is named as segments are.
func isSegmentName(name string) bool {
	number, err := strconv.ParseUint(name, 16, 64)
	return err == nil && segmentName(number) == name
}

// String returns the name of the file within the directory of the store.
func (p bodyPlace) String() string {
	return bodiesName + "/" + p.bucket + "/" + segmentName(p.segment)
}

// bodies are the large bodies of a database.
type bodies struct {
	path string // of the store
	disk *disk
	// check says what has become of the store's directory, if it is not there any more.
	check func() error
	// turns has room for those that are written at a time.
	turns chan struct{}
	// writing and removing are the goroutines that do so.
	writing, removing sync.WaitGroup

	mu sync.Mutex
	// open are the segments that take more bodies, one for a bucket at most. Those that took
	// one last are behind the others.
	open []*segment
	// most is from which size on a segment takes no more bodies.
	most int64
	// lasting are buckets whose directory is still there after a crash of the machine.
	lasting map[string]bool
}

const (
	// bodyWriters is how many bodies are written at a time.
	bodyWriters = 16
	// mostLasting bounds what is remembered of buckets. One that is forgotten costs two
	// more flushes.
	mostLasting = 1024
)

func newBodies(path string, disk *disk) *bodies {
	return &bodies{
		path: path, disk: disk, check: func() error { return nil }, turns: make(chan struct{}, bodyWriters),
		most: segmentBytes, lasting: make(map[string]bool),
	}
}

func (b *bodies) root() string                   { return b.disk.PathJoin(b.path, bodiesName) }
func (b *bodies) directory(bucket string) string { return b.disk.PathJoin(b.root(), bucket) }
func (b *bodies) file(bucket string, segment uint64) string {
	return b.disk.PathJoin(b.directory(bucket), segmentName(segment))
}

// newBody is a body that is to be written, and its place.
type newBody struct {
	bodyPlace
	bytes   []byte
	segment *segment
}

// write writes a body, so that it is still there after a crash of the machine. It waits
// for room on the disk. If its segment cannot be made or a directory not be opened, as
// where too many files are open, nothing is lost, and the database goes on. It does so too
// if no file may be as large as this body needs it: for that there will never be room, and to
// wait would keep all else out of the store. Any other error is why it was given up.
func (b *bodies) write(body *newBody) error {
	b.enter(body.segment)
	defer b.leave(body.segment)
	for there := false; !there; {
		f, err := b.made(body.segment)
		if err != nil {
			return err
		}
		written, tooLarge := 0, error(nil)
		err = b.disk.carryOut(func() error {
			n, err := f.WriteAt(body.bytes[written:], body.at+int64(written))
			written += n
			if errors.Is(err, syscall.EFBIG) {
				tooLarge = b.tooLarge(body, err)
				return nil
			}
			if isSpace(err) {
				giveBackRemoved(f)
			}
			return err
		})
		if err == nil {
			err = tooLarge
		}
		if err == nil {
			err = f.flush(func() error { return b.disk.carryOutFlush(f.SyncData) })
		}
		if err != nil {
			return err
		}
		dropCached(f, body.bodyPlace)
		if there, err = b.isThere(body.segment, f); err != nil {
			return err
		}
	}
	return nil
}

// create makes or opens the file of a segment, and makes its directory if it is the first
// one there.
func (b *bodies) create(s *segment) (vfs.File, error) {
	// If the store itself is gone, nothing is to be made in its place.
	if err := b.check(); err != nil {
		return nil, err
	}
	name := b.file(s.bucket, s.number)
	f, err := b.disk.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	if err := b.disk.FS.MkdirAll(b.directory(s.bucket), 0o700); err != nil {
		return nil, err
	}
	// If there was one by this name before, it has been swept, and a clock was set back.
	b.mu.Lock()
	delete(b.lasting, s.bucket)
	b.mu.Unlock()
	return b.disk.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
}

// flushNames flushes the names in a bucket, and the bucket's own the first time.
func (b *bodies) flushNames(bucket string) error {
	b.mu.Lock()
	lasting := b.lasting[bucket]
	b.mu.Unlock()
	if !lasting {
		for _, dir := range []string{b.path, b.root()} {
			if err := b.disk.flushDirectory(dir); err != nil {
				return err
			}
		}
		b.mu.Lock()
		if len(b.lasting) >= mostLasting {
			clear(b.lasting)
		}
		b.lasting[bucket] = true
		b.mu.Unlock()
	}
	return b.disk.flushDirectory(b.directory(bucket))
}

// remove gives back the room of a body that nobody asks for any more. Where the system
// cannot do so, or it fails, the body goes with its bucket.
func (b *bodies) remove(at bodyPlace) {
	_, _ = b.disk.once(func() error {
		name := b.file(at.bucket, at.segment)
		if _, err := b.disk.FS.Stat(name); err != nil {
			return err
		}
		f, err := b.disk.FS.OpenReadWrite(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			return err
		}
		defer f.Close()
		return giveBack(f, at)
	})
}

// errBody says what is wrong with the segment of a body. Other errors mean that it could
// not be read this time.
var errBody = errors.New("its body is not as it was kept")

// read returns a body.
func (b *bodies) read(at bodyPlace) ([]byte, error) {
	f, err := b.disk.Open(b.file(at.bucket, at.segment))
	if errors.Is(err, os.ErrNotExist) {
		if _, gone := b.disk.Stat(b.path); gone != nil {
			return nil, gone
		}
		return nil, fmt.Errorf("%w: the file %s is missing", errBody, at)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if room := info.Size() - at.at; at.at < 0 || room < 0 || uint64(room) < at.length {
		return nil, fmt.Errorf("%w: the file %s has %d bytes, and the body is %d behind the first %d", errBody, at, info.Size(), at.length, at.at)
	}
	body := make([]byte, at.length)
	if _, err := f.ReadAt(body, at.at); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: the file %s was cut off while it was read", errBody, at)
	} else if err != nil {
		return nil, err
	}
	return body, nil
}
