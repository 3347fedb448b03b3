package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// breakable is a disk in memory that can be made to fail.
type breakable struct {
	vfs.FS
	mu    sync.Mutex
	fails func(op errorfs.Op) error
	met   atomic.Int64 // how often it has failed
}

func newBreakable(fs vfs.FS) *breakable {
	b := new(breakable)
	b.FS = errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		b.mu.Lock()
		fails := b.fails
		b.mu.Unlock()
		if fails == nil {
			return nil
		}
		err := fails(op)
		if err != nil {
			b.met.Add(1)
		}
		return err
	}))
	return b
}

// fail says from now on which operations fail; nil: none.
func (b *breakable) fail(fails func(op errorfs.Op) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = fails
}

func isFlush(op errorfs.Op) bool {
	return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData
}

// full is a disk without room: nothing can be made or written.
func full(op errorfs.Op) error {
	switch op.Kind {
	case errorfs.OpFileWrite, errorfs.OpFileWriteAt, errorfs.OpCreate, errorfs.OpReuseForWrite:
		return syscall.ENOSPC
	default:
		return nil
	}
}

// A flush that fails acknowledges nothing. Afterwards the database is opened anew, and
// has all that was acknowledged.
func TestFlushThatFails(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 20)
	running, err := s.Claim(t.Context(), counted("running"))
	if err != nil {
		t.Fatal(err)
	}
	writes := map[string]func() error{
		"claim":  func() error { _, err := s.Claim(t.Context(), counted("new")); return err },
		"settle": func() error { return s.Settle(t.Context(), key("running"), running.Record, completeAs("running")) },
		"free": func() error {
			_, err := s.Free(t.Context(), key("1"), "token of an operator", idempotency.Seen{})
			return err
		},
		"forget": func() error { return s.Forget(t.Context(), key("2"), idempotency.Seen{}) },
	}
	for name, write := range writes {
		fs.fail(func(op errorfs.Op) error {
			if isFlush(op) {
				return syscall.EIO
			}
			return nil
		})
		if err := write(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s, with a flush that fails: %v; want the error of the flush", name, err)
		}
		if _, err := ask(s, "3"); !errors.Is(err, syscall.EIO) {
			t.Errorf("a duplicate after that: %v; want the error of the flush", err)
		}
		fs.fail(nil)
		poll(t, "the store is available again", func() bool {
			_, err := ask(s, "3")
			return err == nil
		})
		for i := 3; i < 20; i++ {
			replays(t, s, fmt.Sprint(i))
		}
	}
	if err := keep(t.Context(), s, "afterwards"); err != nil {
		t.Fatal(err)
	}
}

// The claim whose flush nobody waits for may be acknowledged, but nothing after it.
func TestFlushThatFailsInTheBackground(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 20)
	fs.fail(func(op errorfs.Op) error {
		if isFlush(op) {
			return syscall.EIO
		}
		return nil
	})
	claimed, err := s.Claim(t.Context(), claimOf("a"))
	if err != nil && (!errors.Is(err, syscall.EIO) || claimed.Record == nil) {
		t.Fatalf("%+v, %v; want the claim, or that it is in doubt", claimed, err) // the flush may fail first
	}
	if err := s.Settle(t.Context(), key("a"), claimed.Record, completeAs("a")); !errors.Is(err, syscall.EIO) {
		t.Errorf("settle: %v; want the error of the flush", err)
	}
	fs.fail(nil)
	poll(t, "the end of the run is stored", func() bool {
		return s.Settle(t.Context(), key("a"), claimed.Record, completeAs("a")) == nil
	})
	replays(t, s, "a")
	replays(t, s, "1")
}

// While there is no room, nothing is taken and what is kept is replayed; when there is
// room again, all goes on.
func TestDiskWithoutRoom(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 50)
	running, err := s.Claim(t.Context(), claimOf("running"))
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		fs.fail(full)
		before := fs.met.Load()
		doubtful, err := s.Claim(t.Context(), counted(fmt.Sprint("doubtful ", round)))
		if !errors.Is(err, ErrNoSpace) {
			t.Fatalf("claim: %v, want ErrNoSpace", err)
		}
		if doubtful.Record == nil {
			t.Error("nobody is told that the claim may yet be written")
		}
		for i := range 50 {
			replays(t, s, fmt.Sprint(i))
		}
		refused, err := s.Claim(t.Context(), claimOf(fmt.Sprint("refused ", round)))
		if !errors.Is(err, ErrNoSpace) || refused.Record != nil {
			t.Fatalf("claim: %+v, %v; want ErrNoSpace and no doubt", refused, err)
		}
		if err := s.Renew(t.Context(), claimOf("running")); !errors.Is(err, ErrNoSpace) {
			t.Errorf("renew: %v, want ErrNoSpace", err)
		}
		if record, _, err := s.Lookup(t.Context(), key(fmt.Sprint("refused ", round))); record != nil || err != nil {
			t.Errorf("the refused claim: %+v, %v", record, err)
		}
		poll(t, "the write is tried again", func() bool { return fs.met.Load() > before+2 })
		fs.fail(nil)
		poll(t, "there is room again", func() bool { return s.Renew(t.Context(), claimOf("running")) == nil })
		if err := keep(t.Context(), s, fmt.Sprint("refused ", round)); err != nil {
			t.Fatal(err)
		}
		if claimed, err := ask(s, fmt.Sprint("doubtful ", round)); err != nil || claimed.Verdict != idempotency.WaitForRun {
			t.Errorf("the claim that was under way: verdict %v, %v", claimed.Verdict, err)
		}
	}
	if err := s.Settle(t.Context(), key("running"), running.Record, completeAs("running")); err != nil {
		t.Fatal(err)
	}
	closeStore(t, s)
	s = reopenIn(t, fs, "/data/keys")
	for i := range 50 {
		replays(t, s, fmt.Sprint(i))
	}
	replays(t, s, "running")
}

// The tables that pebble writes in the background find no room, and neither does the
// next log: nothing is lost, and what is kept can be read.
func TestNoRoomForTables(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 50)
	fs.fail(full)
	flushed := make(chan error, 1)
	go func() { flushed <- s.database.db.Flush() }()
	poll(t, "there is no room", func() bool {
		err, _ := s.database.disk.trouble()
		return errors.Is(err, ErrNoSpace)
	})
	for i := range 50 {
		replays(t, s, fmt.Sprint(i))
	}
	fs.fail(nil)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	keepMore(t, s)
}

func keepMore(t *testing.T, s *Store) {
	t.Helper()
	for i := range 20 {
		if err := keep(t.Context(), s, fmt.Sprint("afterwards ", i)); err != nil {
			t.Fatal(err)
		}
	}
}

// A store that is closed while its disk is full keeps nobody waiting, and has lost
// nothing when it is opened again.
func TestCloseOnADiskWithoutRoom(t *testing.T) {
	fs := newBreakable(newMemory())
	s, err := openIn(fs, "/data/keys", reopenIn(t, newMemory(), "/x").logger)
	if err != nil {
		t.Fatal(err)
	}
	keepMany(t, s, 50)
	fs.fail(full)
	if _, err := s.Claim(t.Context(), counted("doubtful")); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("claim: %v, want ErrNoSpace", err)
	}
	if err := s.Close(); !errors.Is(err, ErrNoSpace) || !errors.Is(err, errNotClosed) {
		t.Errorf("close: %v; want it to say that there is no space", err)
	}
	fs.fail(nil)
	s = reopenIn(t, fs, "/data/keys")
	for i := range 50 {
		replays(t, s, fmt.Sprint(i))
	}
}

// failWrites has all writes to files fail.
func (b *breakable) failWrites(failure syscall.Errno) {
	b.fail(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite {
			return failure
		}
		return nil
	})
}

// An existing store on a disk that fails is not damaged: the error is that of the disk.
func TestOpenOnADiskThatFails(t *testing.T) {
	fs := newBreakable(newMemory())
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 50)
	logger := s.logger
	closeStore(t, s)
	fs.failWrites(syscall.EIO)
	if s, err := openIn(fs, "/data/keys", logger); err == nil {
		s.Close()
		t.Error("it was opened on a disk that fails")
	} else if !errors.Is(err, syscall.EIO) || strings.Contains(err.Error(), "damaged") {
		t.Errorf("with EIO: %v", err)
	}
	fs.fail(nil)
	s = reopenIn(t, fs, "/data/keys")
	for i := range 50 {
		replays(t, s, fmt.Sprint(i))
	}
}

// A disk that has some room, and less than an opening writes, is not tried: what each try
// left behind would take the room that the next one needs.
func TestOpenOnADiskWithLittleRoom(t *testing.T) {
	memory := vfs.NewMem()
	fs := newBreakable(inMemory{memory})
	s := reopenIn(t, fs, "/data/keys")
	keepMany(t, s, 50)
	closeStore(t, s)
	fs.failWrites(syscall.ENOSPC)
	s = reopenIn(t, fs, "/data/keys")
	memory.TestingSetDiskUsage(vfs.DiskUsage{TotalBytes: 1 << 30, AvailBytes: 100})
	var probes, others atomic.Int64
	fs.fail(func(op errorfs.Op) error {
		switch {
		case op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, newLabel):
			probes.Add(1)
		case op.Kind == errorfs.OpCreate:
			others.Add(1)
		}
		return nil
	})
	poll(t, "the room was looked for", func() bool { return probes.Load() >= 3 })
	if _, err := s.Claim(t.Context(), claimOf("0")); !errors.Is(err, ErrNoSpace) || others.Load() > 0 {
		t.Errorf("a claim: %v; %d files were made", err, others.Load())
	}
	memory.TestingSetDiskUsage(vfs.DiskUsage{TotalBytes: 1 << 30, AvailBytes: 1 << 30})
	poll(t, "the store is open", func() bool {
		record, _, err := s.Lookup(t.Context(), key("0"))
		return err == nil && record != nil
	})
}

// An existing store on a full disk is unavailable until there is room, and nothing keeps its
// process from starting. A new one says that it cannot be made.
func TestOpenOnADiskWithoutRoom(t *testing.T) {
	for name, ends := range map[string]func(t *testing.T, fs *breakable, s *Store, n int){
		"there is room again": func(t *testing.T, fs *breakable, s *Store, n int) {
			fs.fail(nil)
			poll(t, "the store is open", func() bool {
				record, _, err := s.Lookup(t.Context(), key("0"))
				return err == nil && record != nil
			})
			for i := range 50 {
				replays(t, s, fmt.Sprint(i))
			}
			if err := keep(t.Context(), s, fmt.Sprint("new ", n)); err != nil {
				t.Error(err)
			}
		},
		"it is closed": func(*testing.T, *breakable, *Store, int) {},
	} {
		t.Run(name, func(t *testing.T) {
			fs := newBreakable(newMemory())
			s := reopenIn(t, fs, "/data/keys")
			keepMany(t, s, 50)
			closeStore(t, s)
			for n, full := range spaceErrors {
				fs.failWrites(full)
				s = reopenIn(t, fs, "/data/keys")
				if _, err := s.Claim(t.Context(), claimOf("0")); !errors.Is(err, ErrNoSpace) || !errors.Is(err, full) {
					t.Errorf("a claim on a full disk: %v", err)
				}
				ends(t, fs, s, n)
				closeStore(t, s)
				fs.fail(nil)
			}
			s = reopenIn(t, fs, "/data/keys")
			for i := range 50 {
				replays(t, s, fmt.Sprint(i))
			}
		})
	}
	fs := newBreakable(newMemory())
	fs.failWrites(syscall.ENOSPC)
	if s, err := openIn(fs, "/data/keys", zap.NewNop()); err == nil {
		s.Close()
		t.Error("a new store was made on a full disk")
	} else if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new store: %v", err)
	}
}

// lateTimer is a context whose own timer has not said yet that its time is over.
type lateTimer struct{ byTime }

// Err implements [context.Context].
func (lateTimer) Err() error { return nil }

// An operation whose time is over was not done, whatever its context says of itself.
func TestOperationWhoseTimeIsOverIsNotDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, begin := paused(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if c, err := s.Claim(lateTimer{byTime{ctx}}, counted("a")); !errors.Is(err, context.DeadlineExceeded) || c.Verdict == idempotency.Proceed {
			t.Errorf("%+v, %v", c, err)
		}
		begin()
	})
}
