package file

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Bodies that are written at the same time do not touch each other, whatever their sizes, and
// wherever their bytes lie in memory: what is written past the cache begins at a block.
func TestBodiesLieBesideEachOther(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	settlements := make(map[string]idempotency.Settlement)
	random := rand.NewChaCha8([32]byte{1})
	for _, size := range []int{largeBytes, directBytes - 1, directBytes, directBytes + 1, directBytes + blockBytes - 1, 2 * directBytes, 1<<20 + 13} {
		for _, from := range []int{0, 1, 512} {
			body := make([]byte, from+size)
			_, _ = random.Read(body)
			settlement := completeAs("a")
			settlement.Response.Body = body[from:]
			settlements[fmt.Sprint(size, " from ", from)] = settlement
		}
	}
	var done sync.WaitGroup
	for name, settlement := range settlements {
		done.Go(func() {
			if err := keepAs(t.Context(), s, name, settlement); err != nil {
				t.Error(err)
			}
		})
	}
	done.Wait()
	for range 2 {
		for name, settlement := range settlements {
			got, err := ask(s, name)
			if err != nil || got.Verdict != idempotency.ReplayKept || !bytes.Equal(got.Response.Body, settlement.Response.Body) {
				t.Errorf("%s: verdict %v, %v, or another body", name, got.Verdict, err)
			}
		}
		onlySegment(t, s)
		closeStore(t, s)
		s = reopen(t, path)
	}
}

// A segment takes bodies up to its size, and only so many are open. Each place is given once.
func TestReserve(t *testing.T) {
	b := newBodies("/data/keys", newDisk(newMemory()))
	until := clock()
	taken := make(map[uint64]int64) // up to where
	var of []uint64
	for i := range 40 {
		body := b.reserve(until, make([]byte, segmentBytes/16-i))
		if body.at%blockBytes != 0 || body.at < taken[body.bodyPlace.segment] {
			t.Fatalf("body %d lies at %d of segment %x, of which %d bytes are taken", i, body.at, body.bodyPlace.segment, taken[body.bodyPlace.segment])
		}
		taken[body.bodyPlace.segment] = body.at + int64(body.length)
		of = append(of, body.bodyPlace.segment)
	}
	if len(taken) != 3 || of[0] != of[15] || of[16] != of[31] {
		t.Errorf("the bodies lie in the segments %x, want 16 in each", of)
	}
	for i := range 3 * mostOpen {
		b.reserve(until, nil) // stays
		b.reserve(until.Add(time.Duration(1+i)*sweepStep), nil)
		buckets := make(map[string]bool)
		for _, s := range b.open {
			buckets[s.bucket] = true
		}
		if len(b.open) > mostOpen || len(b.open) != len(buckets) || !buckets[bucketOf(until)] {
			t.Fatalf("%d segments are open, in %d buckets", len(b.open), len(buckets))
		}
	}
	b.closeAll()
	if len(b.open) != 0 {
		t.Errorf("%d segments are open, want none", len(b.open))
	}
}

// Whoever waits for a flush gets one that began after he came, and most share one.
func TestFlushIsShared(t *testing.T) {
	const callers, each = 16, 100
	var f segmentFile
	var begun, under atomic.Int64
	var done sync.WaitGroup
	for range callers {
		done.Go(func() {
			for range each {
				before := begun.Load()
				var mine int64
				if err := f.flush(func() error {
					if under.Add(1) != 1 {
						t.Error("two flushes are under way")
					}
					begun.Add(1)
					runtime.Gosched()
					under.Add(-1)
					return nil
				}); err != nil {
					t.Error(err)
				}
				if mine = begun.Load(); mine <= before {
					t.Errorf("no flush began after the %d that had begun", before)
				}
			}
		})
	}
	done.Wait()
	if n := begun.Load(); n == callers*each {
		t.Errorf("%d callers had %d flushes: none was shared", callers*each, n)
	}
}

// A flush is one of a file, and a file that was made again has none in common with the one
// before: else a body in the new one is acknowledged by a flush of the old one.
func TestFlushIsOfTheFileThatWasWritten(t *testing.T) {
	memory := vfs.NewCrashableMem()
	var flushes, writes atomic.Int64
	goOn, checked := make(chan struct{}), make(chan struct{})
	b := newBodies("/data/keys", newDisk(errorfs.Wrap(inMemory{memory}, errorfs.InjectorFunc(func(op errorfs.Op) error {
		switch {
		case op.Kind == errorfs.OpFileSyncData && flushes.Add(1) == 1:
			<-goOn
		case op.Kind == errorfs.OpFileWriteAt && writes.Add(1) > 3:
			<-checked // those whose file was removed, who write again
		}
		return nil
	}))))
	if err := makeDirectory("/data/keys", memory); err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	defer done.Wait()
	defer close(checked)
	write := func(name string) (*newBody, <-chan error) {
		before, ended := writes.Load(), make(chan error, 1)
		body := b.reserve(clock(), []byte(name))
		done.Go(func() { ended <- b.write(body) })
		poll(t, name+" is written", func() bool { return writes.Load() > before })
		time.Sleep(20 * time.Millisecond) // and waits for a flush
		return body, ended
	}
	first, _ := write("first") // whose flush is under way
	if err := memory.Remove(b.file(first.bucket, first.bodyPlace.segment)); err != nil {
		t.Fatal(err)
	}
	write("second") // which waits for the next one
	if there, err := b.isThere(first.segment, first.segment.file); there || err != nil {
		t.Fatalf("the removed file is there: %v, %v", there, err)
	}
	third, ended := write("third") // to the file that was made again
	close(goOn)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	after := newBodies("/data/keys", newDisk(memory.CrashClone(vfs.CrashCloneCfg{})))
	if got, err := after.read(third.bodyPlace); err != nil || !bytes.Equal(got, third.bytes) {
		t.Errorf("after a crash, what was acknowledged is %q, %v; want %q", got, err, third.bytes)
	}
}

// A file that was removed while it was open is made again for the next body, and nothing is
// acknowledged that lies in the removed one. Files do not stay open.
func TestSegmentRemovedWhileOpen(t *testing.T) {
	s := reopen(t, newPath(t))
	for round := range 5 {
		name := fmt.Sprint("kept ", round)
		keepLarge(t, s, name)
		replaysLarge(t, s, name)
		if err := s.fs.RemoveAll(s.current().bodies.root()); err != nil {
			t.Fatal(err)
		}
		if _, err := ask(s, name); !isUnreadable(err) {
			t.Errorf("its segment is gone: %v; want an UnreadableError", err)
		}
	}
	keepLarge(t, s, "last")
	segment := s.current().bodies.openIn(bucketOf(clock().Add(time.Hour)))
	s.current().bodies.closeBucket(segment.bucket)
	poll(t, "all files are closed", func() bool {
		segment.opening.Lock()
		defer segment.opening.Unlock()
		return segment.file == nil && segment.removed == nil
	})
	replaysLarge(t, s, "last")
}

// A bucket that is removed when the file of a segment was made, and before its name was flushed,
// costs those who were about to write one attempt, and not all that expires in that minute.
func TestBucketRemovedBeforeItsNamesAreFlushed(t *testing.T) {
	memory := newMemory()
	var removes atomic.Bool
	fs := errorfs.Wrap(memory, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpenDir && ofBodies(op) && removes.CompareAndSwap(true, false) {
			return memory.RemoveAll("/data/keys/" + bodiesName)
		}
		return nil
	}))
	s := reopenIn(t, fs, "/data/keys")
	record := inFlight(t, s, "a")
	removes.Store(true)
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("settle: %v, want the error of the disk", err)
	}
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
		t.Fatalf("settle once more: %v", err)
	}
	replaysLarge(t, s, "a")
}

// While somebody writes to a segment that takes no more bodies, its file stays open. Who comes
// after it was closed opens it again.
func TestSegmentInUseStaysOpen(t *testing.T) {
	fs := newMemory()
	if err := fs.MkdirAll("/data/keys", 0o700); err != nil {
		t.Fatal(err)
	}
	b := newBodies("/data/keys", newDisk(fs))
	first, second := b.reserve(clock(), []byte("first")), b.reserve(clock(), []byte("second"))
	b.enter(first.segment)
	f, err := b.made(first.segment)
	if err != nil {
		t.Fatal(err)
	}
	b.closeAll()
	b.removing.Wait()
	b.closeFile(first.segment) // as one who came when nobody wrote to it
	if first.segment.file != f {
		t.Error("the file was closed while somebody writes to it")
	}
	if err := b.write(first); err != nil {
		t.Error(err)
	}
	b.leave(first.segment)
	b.removing.Wait()
	if first.segment.file != nil {
		t.Error("the file is open, and nobody writes to it")
	}
	if err := b.write(second); err != nil {
		t.Error(err)
	}
	for _, body := range []*newBody{first, second} {
		if got, err := b.read(body.bodyPlace); err != nil || !bytes.Equal(got, body.bytes) {
			t.Errorf("%q, %v; want %q", got, err, body.bytes)
		}
	}
}

// A place that its segment does not have is damage, whatever it says.
func TestBodyOutsideOfItsSegment(t *testing.T) {
	s := reopen(t, newPath(t))
	keepLarge(t, s, "a")
	b := s.current().bodies
	segment := b.openIn(bucketOf(clock().Add(time.Hour)))
	size := uint64(len(largeBody("a")))
	for _, at := range []bodyPlace{
		{at: 1, length: size}, {at: -1, length: size}, {length: size + 1}, {length: 1 << 62}, {length: math.MaxUint64},
		{at: math.MaxInt64, length: 1}, {at: math.MinInt64, length: 1}, {at: math.MaxInt64, length: math.MaxUint64},
	} {
		at.bucket, at.segment = segment.bucket, segment.number
		if body, err := b.read(at); body != nil || !errors.Is(err, errBody) {
			t.Errorf("%d bytes at %d: %d bytes, %v; want errBody", at.length, at.at, len(body), err)
		}
	}
}

// Where files may not become as large as segments do, a body that lies behind others is put
// into another segment, and those are made no larger from then on.
func TestSegmentThatCannotBecomeLarger(t *testing.T) {
	const most = 2*largeBytes + largeBytes/2
	fs := &limited{FS: newMemory(), most: most}
	s := reopenIn(t, fs, "/data/keys")
	before := s.current()
	kept := 0
	for i := range 9 {
		name := fmt.Sprint(i)
		record := inFlight(t, s, name)
		err := s.Settle(t.Context(), key(name), record, largeAs(name))
		if err != nil {
			if !errors.Is(err, syscall.EFBIG) || errors.Is(err, idempotency.ErrTooLarge) {
				t.Fatalf("settle %s: %v, want the error of the disk", name, err)
			}
			err = s.Settle(t.Context(), key(name), record, largeAs(name))
		} else {
			kept++
		}
		if err != nil {
			t.Fatalf("settle %s once more: %v", name, err)
		}
		replaysLarge(t, s, name)
	}
	if kept != 8 {
		t.Errorf("%d of 9 bodies were kept at once, want all but the first that had no place", kept)
	}
	if s.current() != before {
		t.Error("the database was given up")
	}
}

// limited is a disk on which no file of bodies may become larger.
type limited struct {
	vfs.FS
	most int64
}

func (l *limited) OpenReadWrite(name string, category vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := l.FS.OpenReadWrite(name, category, opts...)
	if err == nil && strings.Contains(name, bodiesName) {
		f = &limitedFile{f, l.most}
	}
	return f, err
}

type limitedFile struct {
	vfs.File
	most int64
}

func (f *limitedFile) WriteAt(p []byte, at int64) (int, error) {
	room := max(0, min(int64(len(p)), f.most-at))
	n, err := f.File.WriteAt(p[:room], at)
	if err == nil && n < len(p) {
		err = syscall.EFBIG
	}
	return n, err
}
