package file

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

const storePath = "/data/keys" // on a disk in memory

// memory is a disk in memory. With the race detector, pebble's own inverts the caller's bytes during
// a write, which no file system may do.
type memory struct{ *vfs.MemFS }

func newMemory() vfs.FS { return memory{vfs.NewMem()} }

func (m memory) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := m.MemFS.Create(name, c)
	return copyingFile{f}, err
}

func (m memory) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := m.MemFS.OpenReadWrite(name, c, opts...)
	return copyingFile{f}, err
}

type copyingFile struct{ vfs.File }

func (f copyingFile) Write(p []byte) (int, error) { return f.File.Write(bytes.Clone(p)) }
func (f copyingFile) WriteAt(p []byte, at int64) (int, error) {
	return f.File.WriteAt(bytes.Clone(p), at)
}

// hooked is a disk that asks before it writes so many bytes to a file: how many of them, and with which error.
type hooked struct {
	vfs.FS
	before func(name string, at int64, n int) (int, error)
}

type hookedFile struct {
	vfs.File
	name   string
	before func(name string, at int64, n int) (int, error)
}

func (h *hooked) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := h.FS.Create(name, c)
	return hookedFile{f, name, h.before}, err
}

func (h *hooked) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := h.FS.OpenReadWrite(name, c, opts...)
	return hookedFile{f, name, h.before}, err
}

func (f hookedFile) Write(p []byte) (int, error) {
	n, err := f.before(f.name, 0, len(p))
	if err != nil {
		return 0, err
	}
	return f.File.Write(p[:n])
}

func (f hookedFile) WriteAt(p []byte, at int64) (int, error) {
	allowed, full := f.before(f.name, at, len(p))
	n, err := f.File.WriteAt(p[:allowed], at)
	return n, cmp.Or(err, full)
}

// faulty is a disk on which operations can be made to fail or to hang.
type faulty struct {
	vfs.FS
	mu    sync.Mutex
	fault func(op errorfs.Op) error
}

func newFaulty(fs vfs.FS) *faulty {
	f := new(faulty)
	f.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		f.mu.Lock()
		fault := f.fault
		f.mu.Unlock()
		if fault == nil {
			return nil
		}
		return fault(op)
	}))
	return f
}

// set makes fault decide which operations fail; nil for none.
func (f *faulty) set(fault func(op errorfs.Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = fault
}

// hang makes all writes, or all reads, hang until end is called.
func (f *faulty) hang(kind errorfs.OpReadWrite) (end func()) {
	released := make(chan struct{})
	f.set(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == kind {
			<-released
		}
		return nil
	})
	return func() {
		f.set(nil)
		close(released)
	}
}

func isFlush(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
}

// failing returns a fault for matching writes.
func failing(err error, matches func(op errorfs.Op) bool) func(op errorfs.Op) error {
	return func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite && matches(op) {
			return err
		}
		return nil
	}
}

func isAny(errorfs.Op) bool { return true }

// timeoutContext returns a context that ends after d or with the test.
func timeoutContext(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func awaitReady(t *testing.T, s *Store) {
	t.Helper()
	eventually(t, "the store is ready", func() bool { return s.Ready(timeoutContext(t, time.Minute)) == nil })
}

// After any failure nothing is acknowledged until another database is open. That has everything that
// was acknowledged, and the runs in flight go on.
func TestFailingDisk(t *testing.T) {
	for name, fails := range map[string]func(op errorfs.Op) bool{
		"all":     isAny,
		"flushes": isFlush,
		"the log": func(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".log") },
		"tables":  func(op errorfs.Op) bool { return strings.HasSuffix(op.Path, ".sst") },
	} {
		t.Run(name, func(t *testing.T) {
			fs := newFaulty(newMemory())
			s := openStore(t, fs, storePath)
			keep(t, s, 0, 50)
			plain := claimed(t, s, claimOf("plain"))
			held := claimed(t, s, holding("held"))
			fs.set(failing(syscall.EIO, fails))
			if name == "tables" {
				go s.current().db.Flush() // which never returns
			}
			for what, write := range map[string]func() error{
				"settle": func() error { return s.Settle(t.Context(), key("plain"), plain, completeAs("plain")) },
				"claim":  func() error { _, err := s.Claim(t.Context(), holding("new")); return err },
				"renew":  func() error { return s.Renew(t.Context(), holding("held")) },
				"forget": func() error { return s.Forget(t.Context(), key("1"), idempotency.Precondition{}) },
				"ready":  func() error { return s.Ready(t.Context()) },
			} {
				if name == "tables" { // until the table fails, the log takes writes
					eventually(t, "the store fails", func() bool { return s.current().disk.hasFailed() })
				}
				wantErr(t, write(), syscall.EIO, what)
			}
			fs.set(nil)
			awaitReady(t, s)
			wantErr(t, s.Settle(t.Context(), key("plain"), plain, completeAs("plain")), nil)
			wantErr(t, s.Renew(t.Context(), holding("held")), nil)
			wantErr(t, s.Settle(t.Context(), key("held"), held, completeAs("held")), nil)
			keep(t, s, 50, 60)
			closeStore(t, s)
			s = openStore(t, fs, storePath)
			replaysAll(t, s, 2, 60)
			replays(t, s, "plain", "plain")
			replays(t, s, "held", "held")
		})
	}
}

// An abandoned database writes nothing more, because another database uses the directory.
func TestAbandonedDatabaseWritesNothing(t *testing.T) {
	d := newDisk(newMemory())
	f, err := d.Create("/file", vfs.WriteCategoryUnspecified)
	must(t, err)
	d.fence()
	wantErr(t, d.Remove("/file"), errAbandoned)
	wantErr(t, f.Preallocate(0, 10), errAbandoned)
}

// While the disk is full, the store refuses new keys, replays kept responses, and is not ready. When
// there is space again, everything works again.
func TestFullDisk(t *testing.T) {
	for _, full := range []error{syscall.ENOSPC, syscall.EDQUOT} {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		keep(t, s, 0, 50)
		running := claimed(t, s, claimOf("running"))
		fs.set(failing(full, func(op errorfs.Op) bool { return !isFlush(op) }))
		doubtful, err := s.Claim(timeoutContext(t, 100*time.Millisecond), holding("doubtful"))
		if !errors.Is(err, context.DeadlineExceeded) || doubtful.Record == nil {
			t.Fatalf("the first claim: %+v, %v; want it in doubt", doubtful, err)
		}
		for _, c := range []idempotency.Claim{claimOf("refused"), holding("refused")} {
			if got, err := s.Claim(t.Context(), c); !errors.Is(err, errNoSpace) || !errors.As(err, new(*idempotency.RefusedError)) || got.Record != nil {
				t.Errorf("a claim: %+v, %v; want errNoSpace, refused and no doubt", got, err)
			}
		}
		for _, settlement := range []idempotency.Settlement{completeAs("running"), completeAs(largeText("running"))} {
			wantErr(t, s.Settle(t.Context(), key("running"), running, settlement), errNoSpace)
		}
		wantErr(t, s.Renew(t.Context(), claimOf("running")), nil)
		wantErr(t, s.Ready(t.Context()), errNoSpace)
		replaysAll(t, s, 0, 50)
		fs.set(nil)
		awaitReady(t, s)
		if got, err := ask(t.Context(), s, "doubtful"); err != nil || got.Verdict != idempotency.WaitForRun {
			t.Errorf("the claim that waited for room: %v, %v", got.Verdict, err)
		}
		wantErr(t, s.Settle(t.Context(), key("running"), running, completeAs("running")), nil)
		keep(t, s, 50, 60)
		closeStore(t, s)
		s = openStore(t, fs, storePath)
		replaysAll(t, s, 0, 60)
		replays(t, s, "running", "running")
	}
}

func TestNewStoreOnAFullDisk(t *testing.T) {
	fs := newFaulty(newMemory())
	fs.set(failing(syscall.ENOSPC, isAny))
	wantErr(t, storetest.ErrOf(openIn(wallClock, fs, storePath, zap.NewNop())), syscall.ENOSPC)
	fs.set(nil)
	openStore(t, fs, storePath)
}

// If the disk hangs, every operation returns by its deadline. After that, the store refuses new keys
// at once, until the disk answers. Then it is known which claims in doubt were written.
func TestHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		keep(t, s, 0, 50)
		running, large := claimed(t, s, claimOf("running")), claimed(t, s, claimOf("large"))
		synctest.Wait() // until the filter is built
		end := fs.hang(errorfs.OpIsWrite)
		var done sync.WaitGroup
		for i := range 3000 { // more than all queues take
			done.Go(func() {
				ctx := timeoutContext(t, 5*time.Second)
				c := holding(fmt.Sprint("hangs ", i))
				var err error
				switch i {
				case 0:
					err = s.Settle(ctx, key("running"), running, completeAs("running"))
				case 1:
					err = s.Settle(ctx, key("large"), large, completeAs(largeText("large")))
				case 2:
					err = s.Ready(ctx)
				default:
					c.DeliveryID = strings.Repeat("x", 4<<10)
					_, err = s.Claim(ctx, c)
				}
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%d: %v, want DeadlineExceeded", i, err)
				}
			})
		}
		done.Wait()
		for _, c := range []idempotency.Claim{claimOf("refused"), holding("refused")} {
			if got, err := s.Claim(timeoutContext(t, time.Second), c); !errors.Is(err, errHangs) || got.Record != nil {
				t.Errorf("a claim: %+v, %v; want errHangs and no doubt", got, err)
			}
		}
		wantErr(t, s.Ready(timeoutContext(t, time.Second)), errHangs)
		replaysAll(t, s, 0, 50)
		end()
		synctest.Wait()
		wantErr(t, s.Ready(t.Context()), nil)
		applied := 0
		for i := 3; i < 3000; i++ {
			r, _, err := s.Lookup(t.Context(), key(fmt.Sprint("hangs ", i)))
			must(t, err)
			if r != nil {
				applied++
			}
		}
		t.Logf("%d claims were made after all", applied)
		for name, record := range map[string]*idempotency.Record{"running": running, "large": large} {
			wantErr(t, s.Settle(t.Context(), key(name), record, completeAs(largeText(name))), nil)
			if got, err := ask(t.Context(), s, name); err != nil || got.Verdict != idempotency.ReplayKept {
				t.Errorf("key %s: %v, %v", name, got.Verdict, err)
			}
		}
		keep(t, s, 50, 60)
	})
}

// On a hanging disk, any number of reads return by their deadlines, and leave no key locked.
func TestHangingReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s := openStore(t, fs, storePath)
		const keys = 2 * maxReads
		keep(t, s, 0, keys)
		closeStore(t, s)
		s = openStore(t, fs, storePath) // now the keys are in a table
		synctest.Wait()
		end := fs.hang(errorfs.OpIsRead)
		for range 2 {
			var done sync.WaitGroup
			for i := range keys {
				done.Go(func() {
					wantErr(t, storetest.ErrOf(ask(timeoutContext(t, time.Second), s, fmt.Sprint(i))), context.DeadlineExceeded, i)
				})
			}
			done.Wait()
		}
		if _, _, err := s.List(timeoutContext(t, time.Second), "", 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("list: %v, want DeadlineExceeded", err)
		}
		if n := len(s.database.reads); n > maxReads {
			t.Errorf("%d reads are under way", n)
		}
		end()
		replaysAll(t, s, 0, keys)
	})
}

// Close does not wait for a disk that hangs, and nothing that was acknowledged is lost. The
// directory stays locked until the last write has ended.
func TestCloseOnAHangingDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		s, err := openIn(wallClock, fs, storePath, zap.NewNop())
		must(t, err)
		keep(t, s, 0, 50)
		end := fs.hang(errorfs.OpIsWrite)
		wantErr(t, storetest.ErrOf(s.Claim(timeoutContext(t, time.Millisecond), holding("hangs"))), context.DeadlineExceeded)
		wantErr(t, s.Close(), errHangs)
		fs.set(nil) // for other writes
		if _, err := openIn(wallClock, fs, storePath, zap.NewNop()); err == nil {
			t.Error("the store was opened while a write hangs")
		}
		end()
		synctest.Wait()
		next := openStore(t, fs, storePath)
		replaysAll(t, next, 0, 50)
	})
}

// largeText returns a body that is stored in a segment.
func largeText(name string) string { return strings.Repeat(name+" ", maxInlineBody/len(name)) }
