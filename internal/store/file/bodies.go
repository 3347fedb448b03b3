package file

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A large body lies in a file of its own:
//
//	bodies/<bucket>/<key>-<hash of the token>
//
// pebble would write it twice, to its log and to its tables. So it is written once, and
// flushed before the record that makes it count. The bucket is the moment by which the
// response has expired. What is in it is removed together, some time after that
// moment, and so is a body whose record was never written: nobody has to know of it.
const (
	bodiesName = "bodies"
	// ownFileBytes is from which size on a body has a file of its own. With a smaller
	// one, the flushes of the file and of its name cost more than to write it twice
	// (BenchmarkLargeResponse).
	ownFileBytes = 256 << 10
	// bucketForm names a bucket, so that the names are in the order of the moments.
	bucketForm = "20060102T1504Z"
)

// bodyFile is the place of one body.
type bodyFile struct{ bucket, name string }

// bodyFileOf returns the place of the body of the response of a run.
func bodyFileOf(key idempotency.Key, token string, until time.Time) bodyFile {
	return bodyFile{
		bucket: until.UTC().Truncate(sweepStep).Add(sweepStep).Format(bucketForm),
		name:   fmt.Sprintf("%s-%016x", key, xxhash.Sum64String(token)),
	}
}

// parseBucket reads the name of a bucket.
func parseBucket(name string) (at time.Time, ok bool) {
	at, err := time.Parse(bucketForm, name)
	return at, err == nil && at.Format(bucketForm) == name
}

// hashDigits is how long the hash of the token is in the name of a body, in hex.
const hashDigits = 16

// isBodyName reports whether a file is named as those of bodies are.
func isBodyName(name string) bool {
	key, hash, _ := strings.Cut(name, "-")
	_, badKey := idempotency.ParseKey(key)
	_, badHash := hex.DecodeString(hash)
	return badKey == nil && badHash == nil && len(hash) == hashDigits
}

// String returns the name of the file within the directory of the store.
func (f bodyFile) String() string { return bodiesName + "/" + f.bucket + "/" + f.name }

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
	return &bodies{path: path, disk: disk, check: func() error { return nil }, turns: make(chan struct{}, bodyWriters), lasting: make(map[string]bool)}
}

func (b *bodies) root() string                   { return b.disk.PathJoin(b.path, bodiesName) }
func (b *bodies) directory(bucket string) string { return b.disk.PathJoin(b.root(), bucket) }
func (b *bodies) file(at bodyFile) string {
	return b.disk.PathJoin(b.directory(at.bucket), at.name)
}

// write writes a body, so that it is still there after a crash of the machine. It waits
// for room on the disk. If its file cannot be made or its directory not be opened, as
// where too many files are open, nothing is lost, and the database goes on; any other
// error is why it was given up.
func (b *bodies) write(at bodyFile, body []byte) error {
	var f vfs.File
	err := b.disk.whenRoom(func() (err error) {
		f, err = b.create(at)
		return err
	})
	if err != nil {
		return err
	}
	makePrivate(b.disk.FS, b.file(at))
	written := 0
	err = b.disk.carryOut(func() error {
		n, err := f.Write(body[written:])
		written += n
		return err
	})
	if err == nil {
		err = b.disk.carryOutFlush(f.SyncData)
	}
	if err != nil {
		_ = f.Close() // the first error is the one to report
		return err
	}
	dropCached(f)
	if err := b.disk.carryOutFlush(f.Close); err != nil {
		return err
	}
	return b.flushNames(at.bucket)
}

// create makes the file of a body, and its directory if it is the first one there.
func (b *bodies) create(at bodyFile) (vfs.File, error) {
	f, err := b.disk.FS.Create(b.file(at), vfs.WriteCategoryUnspecified)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	// If the store itself is gone, nothing is to be made in its place.
	if err := b.check(); err != nil {
		return nil, err
	}
	if err := b.disk.FS.MkdirAll(b.directory(at.bucket), 0o700); err != nil {
		return nil, err
	}
	// If there was one by this name before, it has been swept, and a clock was set back.
	b.mu.Lock()
	delete(b.lasting, at.bucket)
	b.mu.Unlock()
	return b.disk.FS.Create(b.file(at), vfs.WriteCategoryUnspecified)
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

// remove removes a body that nobody asks for any more. If that fails, it goes with its
// bucket.
func (b *bodies) remove(at bodyFile) {
	_, _ = b.disk.once(func() error { return b.disk.FS.Remove(b.file(at)) })
}

// errBody says what is wrong with the file of a body. Other errors mean that it could not
// be read this time.
var errBody = errors.New("its body is not as it was kept")

// read returns a body of so many bytes.
func (b *bodies) read(at bodyFile, length uint64) ([]byte, error) {
	f, err := b.disk.Open(b.file(at))
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
	if size := info.Size(); size < 0 || uint64(size) != length {
		return nil, fmt.Errorf("%w: the file %s has %d bytes, not %d", errBody, at, size, length)
	}
	body := make([]byte, length)
	if _, err := io.ReadFull(f, body); errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, fmt.Errorf("%w: the file %s was cut off while it was read", errBody, at)
	} else if err != nil {
		return nil, err
	}
	return body, nil
}
