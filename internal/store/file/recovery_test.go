package file

import (
	"errors"
	"strings"
	"sync/atomic"
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

// handles is a disk that counts the files and directories that are open.
type handles struct {
	vfs.FS
	open atomic.Int64
}

type handle struct {
	vfs.File
	of *handles
}

func (h *handles) opened(f vfs.File, err error) (vfs.File, error) {
	if err != nil {
		return nil, err
	}
	h.open.Add(1)
	return handle{f, h}, nil
}

func (f handle) Close() error {
	f.of.open.Add(-1)
	return f.File.Close()
}

func (h *handles) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return h.opened(h.FS.Create(name, c))
}

func (h *handles) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return h.opened(h.FS.OpenReadWrite(name, c, opts...))
}

func (h *handles) ReuseForWrite(old, name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return h.opened(h.FS.ReuseForWrite(old, name, c))
}

func (h *handles) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return h.opened(h.FS.Open(name, opts...))
}

func (h *handles) OpenDir(name string) (vfs.File, error) { return h.opened(h.FS.OpenDir(name)) }

// Whichever write fails while a database is opened or later, the database leaves no open file and no
// goroutine, and nothing that was acknowledged is lost.
func TestFailedDatabasesReleaseResources(t *testing.T) {
	for _, failure := range []error{syscall.ENOSPC, syscall.EIO, syscall.EFBIG} {
		for fails, writes := 0, 0; fails <= writes; fails++ {
			synctest.Test(t, func(t *testing.T) { // synctest fails if a goroutine is left
				fs := newFaulty(newMemory())
				counted := &handles{FS: fs}
				s := openStore(t, counted, storePath)
				keep(t, s, 0, 50)
				closeStore(t, s)
				var done atomic.Int64
				fs.set(failing(failure, func(errorfs.Op) bool { return done.Add(1) > int64(fails) }))
				db, err := openDatabase(counted, storePath, false, new(damages), zap.NewNop())
				writes = int(done.Load())
				if err != nil && (!errors.Is(err, failure) || strings.Contains(err.Error(), "damaged")) {
					t.Errorf("after %d writes: %v, want %v", fails, err, failure)
				}
				if err == nil {
					db.disk.fail(failure)
					_ = db.close()
				}
				synctest.Wait()
				if n := counted.open.Load(); n != 0 {
					t.Fatalf("%v after %d writes: %d files are open", failure, fails, n)
				}
				fs.set(nil)
				s = openStore(t, counted, storePath)
				replaysAll(t, s, 0, 50)
			})
		}
	}
}

// If the disk accepts the writes of an opening, and then fails every flush, the store tries again twice
// a second, and the failed databases leave nothing behind.
func TestRepeatedDiskFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFaulty(newMemory())
		counted := &handles{FS: fs}
		s := openStore(t, counted, storePath)
		keep(t, s, 0, 50)
		opened := s.current()
		fs.set(failing(syscall.EIO, func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileSyncData && strings.HasSuffix(op.Path, ".log")
		}))
		openings := 0
		for range 100 {
			if _, err := s.Claim(t.Context(), holding("a")); err == nil {
				t.Fatal("a claim was acknowledged")
			}
			time.Sleep(probeInterval)
			if db := s.current(); db != opened {
				opened = db
				openings++
			}
		}
		if openings < 40 {
			t.Errorf("%d databases were opened in %v", openings, 100*probeInterval)
		}
		fs.set(nil)
		awaitReady(t, s)
		synctest.Wait()
		if n := counted.open.Load(); n > 20 {
			t.Errorf("%d files are open after %d databases", n, openings)
		}
		replaysAll(t, s, 0, 50)
		if got, err := ask(t.Context(), s, "a"); err != nil || got.Verdict == idempotency.ReplayKept {
			t.Errorf("the claim in doubt: %v, %v", got.Verdict, err)
		}
		closeStore(t, s)
		storetest.Equal(t, counted.open.Load(), 0, "files that stay open")
	})
}

// Close returns within closeTimeout even if the disk fails or is full. It leaves nothing behind, and
// nothing that was acknowledged is lost.
func TestCloseOnFailingDisk(t *testing.T) {
	for _, failure := range []error{syscall.ENOSPC, syscall.EIO} {
		synctest.Test(t, func(t *testing.T) {
			fs := newFaulty(newMemory())
			counted := &handles{FS: fs}
			s, err := openIn(wallClock, counted, storePath, zap.NewNop())
			must(t, err)
			keep(t, s, 0, 50)
			running := claimed(t, s, claimOf("running"))
			fs.set(failing(failure, isAny))
			if err := s.Settle(timeoutContext(t, time.Second), key("running"), running, completeAs("running")); err == nil {
				t.Error("settled")
			}
			start := time.Now()
			wantErr(t, s.Close(), failure)
			if took := time.Since(start); took > closeTimeout {
				t.Errorf("it took %v", took)
			}
			synctest.Wait()
			storetest.Equal(t, counted.open.Load(), 0, "files are open")
			fs.set(nil)
			s = openStore(t, fs, storePath)
			replaysAll(t, s, 0, 50)
		})
	}
}
