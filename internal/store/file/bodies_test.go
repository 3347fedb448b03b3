package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// segments returns the paths of the segments of a store on a real disk.
func segments(t *testing.T, path string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(path, bodiesName, "*", "*"))
	must(t, err)
	return found
}

// A body of more than 64 KiB is on the disk once, in a segment. Others are in the database.
func TestLargeBodiesAreInSegments(t *testing.T) {
	for size, inSegment := range map[int]bool{maxInlineBody: false, maxInlineBody + 1: true, 5 << 20: true} {
		path := newPath(t)
		s := openStore(t, vfs.Default, path)
		body := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{}).Read(body) // which cannot be compressed
		must(t, keepAs(t.Context(), s, "a", completeAs(string(body))))
		closeStore(t, s)
		s = openStore(t, vfs.Default, path)
		replays(t, s, "a", string(body))
		closeStore(t, s)
		if found := segments(t, path); len(found) > 1 || inSegment != (len(found) == 1) {
			t.Errorf("%d bytes: segments %q", size, found)
		}
		part, copies := string(body[size/2:size/2+64]), 0
		for _, content := range contents(t, path) {
			copies += strings.Count(content, part)
		}
		if inSegment && copies != 1 {
			t.Errorf("%d bytes: the body is on the disk %d times", size, copies)
		}
	}
}

// Bodies that are written at the same time do not damage each other, whatever their sizes and addresses
// in memory: direct writes need whole blocks.
func TestConcurrentBodies(t *testing.T) {
	path := newPath(t)
	s := openStore(t, vfs.Default, path)
	random := rand.New(rand.NewPCG(3, 4))
	bodies := make([][]byte, 40)
	for i := range bodies {
		size, shift := maxInlineBody+random.IntN(600<<10), random.IntN(9)
		bodies[i] = bytes.Repeat([]byte(fmt.Sprint(i, " ")), size)[shift : shift+size]
	}
	var done sync.WaitGroup
	for i, body := range bodies {
		done.Go(func() {
			settlement := completeAs("")
			settlement.Response.Body = body
			wantErr(t, keepAs(t.Context(), s, fmt.Sprint(i), settlement), nil)
		})
	}
	done.Wait()
	for range 2 {
		for i, body := range bodies {
			replays(t, s, fmt.Sprint(i), string(body))
		}
		closeStore(t, s)
		s = openStore(t, vfs.Default, path)
	}
	if n := len(segments(t, path)); n > 2 { // one for each bucket
		t.Errorf("%d segments", n)
	}
}

// writeBody writes the body of the run with this name.
func writeBody(ctx context.Context, b *bodies, name string, until time.Time, body []byte) error {
	a := &answer{token: name, until: until, response: &idempotency.Response{Status: 200, Body: body}}
	return b.write(ctx, key(name), a, new(*bodyWrite))
}

// A full segment takes no more bodies, the number of open segments is limited, and close closes all.
func TestSegmentsAreClosed(t *testing.T) {
	counted := &handles{FS: newMemory()}
	b := newBodies(counted, storePath)
	now := time.Now()
	for i := range 3 * maxOpenSegments {
		must(t, writeBody(t.Context(), b, fmt.Sprint(i), now.Add(time.Duration(i)*bucketInterval), []byte(largeText("x"))))
	}
	if n := counted.open.Load(); n > maxOpenSegments {
		t.Errorf("%d segments are open", n)
	}
	must(t, writeBody(t.Context(), b, "last", now, bytes.Repeat([]byte("x"), maxSegment)))
	if b.open[b.bucket(now)] != nil {
		t.Error("a full segment takes more bodies")
	}
	b.close()
	storetest.Equal(t, counted.open.Load(), 0, "segments are open after close")
}

// A damaged body is not replayed, and its key does not run again. The error names the file.
func TestDamagedBody(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"changed": func(path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte("x"), maxInlineBody+10), 0o600)
		},
		"cut off": func(path string) error { return os.Truncate(path, maxInlineBody/2) },
	} {
		path := newPath(t)
		s := openStore(t, vfs.Default, path)
		must(t, keepAs(t.Context(), s, "a", completeAs(largeText("a"))))
		segment := segments(t, path)[0]
		must(t, damage(segment))
		if got, err := ask(t.Context(), s, "a"); !isUnreadable(err) || !strings.Contains(err.Error(), segment) || got.Response != nil {
			t.Errorf("%s: %v, %v; want an UnreadableError that names %s", name, got.Verdict, err, segment)
		}
		wantErr(t, s.Forget(t.Context(), key("a"), idempotency.Precondition{}), nil, name)
		claimed(t, s, claimOf("a"))
	}
}

// If a body is gone, duplicates get status and header without it, and the key does not run again.
func TestMissingBody(t *testing.T) {
	path := newPath(t)
	s := openStore(t, vfs.Default, path)
	must(t, keepAs(t.Context(), s, "a", completeAs(largeText("a"))))
	sealed := completeAs(largeText("sealed"))
	sealed.Response.SealedBy = "key"
	must(t, keepAs(t.Context(), s, "sealed", sealed))
	for _, segment := range segments(t, path) {
		must(t, os.Remove(segment))
	}
	for name, header := range map[string]map[string][]string{"a": completeAs("").Response.Header, "sealed": nil} {
		got, err := ask(t.Context(), s, name)
		must(t, err)
		if want := (&idempotency.Response{Status: 201, Header: header, Omitted: true}); !reflect.DeepEqual(got.Response, want) {
			t.Errorf("%s: %+v, want %+v", name, got.Response, want)
		}
	}
}

// A body that cannot be read at the moment does not count as damaged.
func TestBodyThatCannotBeReadNow(t *testing.T) {
	fs := newFaulty(newMemory())
	s := openStore(t, fs, storePath)
	must(t, keepAs(t.Context(), s, "a", completeAs(largeText("a"))))
	fs.set(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt {
			return syscall.EIO
		}
		return nil
	})
	if _, err := ask(t.Context(), s, "a"); !errors.Is(err, syscall.EIO) || isUnreadable(err) {
		t.Errorf("%v, want EIO", err)
	}
	fs.set(nil)
	replays(t, s, "a", largeText("a"))
}

// If anything fails or hangs while a body is written, nothing is acknowledged, other keys are not
// affected, and the run can be settled later.
func TestBodyThatCannotBeWritten(t *testing.T) {
	for name, isFault := range map[string]func(op errorfs.Op) bool{
		"create": func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpen },
		"write":  func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWriteAt },
		"flush":  func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSyncData },
		"name":   func(op errorfs.Op) bool { return op.Kind == errorfs.OpOpenDir },
	} {
		for _, fault := range []error{syscall.EIO, syscall.ENOSPC, context.DeadlineExceeded} {
			fs := newFaulty(newMemory())
			s := openStore(t, fs, storePath)
			record := claimed(t, s, claimOf("a"))
			matches := func(op errorfs.Op) bool {
				inBodies := strings.Contains(op.Path, bodiesName) || op.Kind == errorfs.OpOpenDir
				return inBodies && isFault(op)
			}
			released := make(chan struct{})
			fs.set(func(op errorfs.Op) error {
				switch {
				case !matches(op):
					return nil
				case errors.Is(fault, context.DeadlineExceeded): // it hangs
					<-released
					return nil
				default:
					return fault
				}
			})
			for range 2 {
				ctx := timeoutContext(t, time.Minute)
				if errors.Is(fault, context.DeadlineExceeded) {
					ctx = timeoutContext(t, time.Millisecond)
				}
				err := s.Settle(ctx, key("a"), record, completeAs(largeText("a")))
				if !errors.Is(err, fault) || errors.Is(fault, syscall.ENOSPC) != errors.Is(err, errNoSpace) {
					t.Errorf("%s: %v, want %v", name, err, fault)
				}
			}
			if got, err := ask(t.Context(), s, "a"); err != nil || got.Verdict != idempotency.WaitForRun {
				t.Errorf("%s: a duplicate: %v, %v", name, got.Verdict, err)
			}
			for what, err := range map[string]error{"a new key": storetest.ErrOf(ask(t.Context(), s, "new")), "ready": s.Ready(t.Context())} {
				if errors.Is(err, errNoSpace) != errors.Is(fault, syscall.ENOSPC) {
					t.Errorf("%s: %s after %v: %v", name, what, fault, err)
				}
			}
			fs.set(nil)
			close(released)
			wantErr(t, s.Settle(t.Context(), key("a"), record, completeAs(largeText("a"))), nil, name)
			closeStore(t, s)
			s, err := openIn(wallClock, fs, storePath, zap.NewNop())
			must(t, err)
			replays(t, s, "a", largeText("a"))
			closeStore(t, s)
		}
	}
}

// Each writer waits for a flush that started after its write, and writers share flushes.
func TestFlushesOfBodiesAreShared(t *testing.T) {
	fs := newFaulty(newMemory())
	b := newBodies(fs, storePath)
	until := time.Now()
	must(t, writeBody(t.Context(), b, "first", until, []byte("first")))
	started, release := make(chan struct{}), make(chan struct{})
	var mu sync.Mutex
	flushes := 0
	fs.set(func(op errorfs.Op) error {
		if isFlush(op) {
			mu.Lock()
			flushes++
			first := flushes == 1
			mu.Unlock()
			if first {
				close(started)
				<-release
			}
		}
		return nil
	})
	var done sync.WaitGroup
	write := func(name string) {
		done.Go(func() {
			wantErr(t, writeBody(t.Context(), b, name, until, []byte("body")), nil)
		})
	}
	write("0")
	<-started
	const others = 15
	for i := range others {
		write(fmt.Sprint(1 + i))
	}
	s := b.open[b.bucket(until)]
	eventually(t, "all bodies are written", func() bool { return s.written.Load() == 2+others })
	close(release)
	done.Wait()
	if flushes != 2 {
		t.Errorf("%d flushes, want 2", flushes)
	}
	b.close()
}

// If files may not become as large as a segment, a body that does not fit into the open one gets a new
// segment. A body that fits into no file is too large. The disk does not count as full.
func TestFileSizeLimit(t *testing.T) {
	path := newPath(t)
	body := largeText("body")
	s := openStore(t, &hooked{vfs.Default, func(_ string, at int64, n int) (int, error) {
		if room := max(0, 2*len(body)+len(body)/2+2*blockSize-int(at)); n > room {
			return room, syscall.EFBIG
		}
		return n, nil
	}}, path)
	for i := range 9 {
		must(t, keepAs(t.Context(), s, fmt.Sprint(i), completeAs(body)), i)
	}
	if n := len(segments(t, path)); n != 5 { // two bodies each, and one
		t.Errorf("%d segments", n)
	}
	record := claimed(t, s, claimOf("too large"))
	if err := s.Settle(t.Context(), key("too large"), record, completeAs(strings.Repeat(body, 3))); !errors.Is(err, idempotency.ErrTooLarge) || errors.Is(err, errNoSpace) {
		t.Errorf("a body larger than a file: %v, want ErrTooLarge", err)
	}
	wantErr(t, s.Ready(t.Context()), nil)
	keep(t, s, 100, 110)
	for i := range 9 {
		replays(t, s, fmt.Sprint(i), body)
	}
	for _, name := range segments(t, path) {
		if info, err := os.Stat(name); err != nil || info.Size() > int64(2*len(body)+blockSize) {
			t.Errorf("what did not fit is left: %+v, %v", info, err)
		}
	}
}
