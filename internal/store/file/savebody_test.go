package file

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
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

func ofBodies(op errorfs.Op) bool { return strings.Contains(op.Path, bodiesName) }

// failBodies has one kind of operation fail from now on, for bodies alone.
func (b *breakable) failBodies(kind errorfs.OpKind, err error) {
	b.fail(func(op errorfs.Op) error {
		if op.Kind == kind && ofBodies(op) {
			return err
		}
		return nil
	})
}

// holding is a disk in memory that holds up some of what is done with bodies.
type holding struct {
	vfs.FS
	holds      func(op errorfs.Op) bool
	mu         sync.RWMutex // locked while they are held up
	held, most atomic.Int64 // how many are
}

func newHolding(holds func(op errorfs.Op) bool) *holding {
	h := &holding{holds: holds}
	h.FS = errorfs.Wrap(newMemory(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if ofBodies(op) && holds(op) {
			n := h.held.Add(1)
			for most := h.most.Load(); n > most && !h.most.CompareAndSwap(most, n); most = h.most.Load() {
			}
			h.mu.RLock()
			defer h.mu.RUnlock()
			h.held.Add(-1)
		}
		return nil
	}))
	return h
}

// inFlight claims a key.
func inFlight(t *testing.T, s *Store, name string) *idempotency.Record {
	t.Helper()
	claimed, err := s.Claim(t.Context(), claimOf(name))
	if err != nil || claimed.Verdict != idempotency.Proceed {
		t.Fatalf("claim %s: verdict %v, %v", name, claimed.Verdict, err)
	}
	return claimed.Record
}

// Whatever fails while a body is written, nothing is acknowledged, and the run can be
// settled when the disk can be written to again.
func TestBodyThatCannotBeWritten(t *testing.T) {
	is := func(kinds ...errorfs.OpKind) func(op errorfs.Op) bool {
		return func(op errorfs.Op) bool {
			for _, kind := range kinds {
				if op.Kind == kind && ofBodies(op) {
					return true
				}
			}
			return false
		}
	}
	isSegment := func(op errorfs.Op) bool { return isSegmentName(filepath.Base(op.Path)) }
	for name, fails := range map[string]func(op errorfs.Op) bool{
		"its directory":      is(errorfs.OpMkdirAll),
		"its segment":        is(errorfs.OpOpen),
		"its bytes":          is(errorfs.OpFileWriteAt),
		"its flush":          func(op errorfs.Op) bool { return ofBodies(op) && isFlush(op) && isSegment(op) },
		"its name":           func(op errorfs.Op) bool { return ofBodies(op) && isFlush(op) && !isSegment(op) },
		"its segment's look": is(errorfs.OpStat),
	} {
		t.Run(name, func(t *testing.T) {
			fs := newBreakable(newMemory())
			s := reopenIn(t, fs, "/data/keys")
			keepMany(t, s, 3)
			record := inFlight(t, s, "a")
			fs.fail(func(op errorfs.Op) error {
				if fails(op) {
					return syscall.EIO
				}
				return nil
			})
			if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); !errors.Is(err, syscall.EIO) {
				t.Fatalf("settle: %v, want the error of the disk", err)
			}
			fs.fail(nil)
			poll(t, "the store is available again", func() bool { _, err := ask(s, "1"); return err == nil })
			if claimed, err := ask(s, "a"); err != nil || claimed.Verdict != idempotency.WaitForRun {
				t.Errorf("a duplicate: verdict %v, %v; want to wait", claimed.Verdict, err)
			}
			if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
				t.Fatal(err)
			}
			replaysLarge(t, s, "a")
		})
	}
}

// Where no file can be made for a body, as without room for one more open file, only that
// settlement fails. The database is as it was, and goes on.
func TestNoFileForABody(t *testing.T) {
	for name, fails := range map[string]errorfs.OpKind{
		"directory": errorfs.OpMkdirAll, "file": errorfs.OpOpen, "flush of its name": errorfs.OpOpenDir,
	} {
		t.Run(name, func(t *testing.T) {
			fs := newBreakable(newMemory())
			s := reopenIn(t, fs, "/data/keys")
			record, before := inFlight(t, s, "a"), s.current()
			fs.failBodies(fails, syscall.EMFILE)
			if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); !errors.Is(err, syscall.EMFILE) {
				t.Fatalf("settle: %v, want the error of the disk", err)
			}
			if err := keep(t.Context(), s, "b"); err != nil {
				t.Errorf("another key: %v", err)
			}
			fs.fail(nil)
			if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
				t.Fatal(err)
			}
			replaysLarge(t, s, "a")
			if s.current() != before {
				t.Error("the database was given up")
			}
			if files := segments(t, s); len(files) != 1 {
				t.Errorf("the segments are %q, want one", files)
			}
		})
	}
}

// A body that finds no room until its bucket is removed is not kept, and that is all.
func TestNoRoomForABodyUntilItHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newBreakable(newMemory())
		s := reopenIn(t, fs, "/data/keys")
		record, before := inFlight(t, s, "a"), s.current()
		fs.failBodies(errorfs.OpFileWriteAt, syscall.ENOSPC)
		brief := largeAs("a")
		brief.Retention = time.Second
		if err := s.Settle(t.Context(), key("a"), record, brief); !errors.Is(err, ErrNoSpace) {
			t.Fatalf("settle: %v, want ErrNoSpace", err)
		}
		time.Sleep(bodiesLate)
		if files := segments(t, s); len(files) != 0 {
			t.Errorf("the segments are %q, want none", files)
		}
		fs.fail(nil)
		time.Sleep(time.Second)
		synctest.Wait()
		if err := s.current().disk.failed(); err != nil || s.current() != before {
			t.Errorf("the database was given up: %v", err)
		}
		keepLarge(t, s, "b")
		replaysLarge(t, s, "b")
	})
}

// A body for which there is no room is refused, and kept when there is room, as what waits in
// the log is.
func TestNoRoomForABody(t *testing.T) {
	for name, fails := range map[string]errorfs.OpKind{
		"directory": errorfs.OpMkdirAll, "file": errorfs.OpOpen, "bytes": errorfs.OpFileWriteAt,
	} {
		t.Run(name, func(t *testing.T) {
			fs := newBreakable(newMemory())
			s := reopenIn(t, fs, "/data/keys")
			keepMany(t, s, 3)
			record := inFlight(t, s, "a")
			fs.failBodies(fails, syscall.ENOSPC)
			if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); !errors.Is(err, ErrNoSpace) {
				t.Fatalf("settle: %v, want ErrNoSpace", err)
			}
			if _, err := s.Claim(t.Context(), claimOf("b")); !errors.Is(err, ErrNoSpace) {
				t.Errorf("claim: %v, want ErrNoSpace", err)
			}
			replays(t, s, "1")
			fs.fail(nil)
			poll(t, "what waited for room is kept", func() bool {
				claimed, err := ask(s, "a")
				return err == nil && claimed.Verdict == idempotency.ReplayKept
			})
			if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
				t.Fatal(err)
			}
			replaysLarge(t, s, "a")
			if files := segments(t, s); len(files) != 1 {
				t.Errorf("the segments are %q, want one", files)
			}
		})
	}
}

// Who gives up while the body is written gets his answer at once. The key stays locked
// until that is over, and then the run is settled: a body that takes longer than a caller
// waits is not written again and again.
func TestSettlementGivenUpInItsBody(t *testing.T) {
	fs := newHolding(isFlush)
	s := reopenIn(t, fs, "/data/keys")
	record := inFlight(t, s, "a")
	fs.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, key("a"), record, largeAs("a")) }()
	poll(t, "the body is being flushed", func() bool { return fs.held.Load() == 1 })
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want canceled", err)
	}
	if s.database.locks.tryLock(key("a")) {
		t.Error("the key is unlocked while its body is written")
	}
	fs.mu.Unlock()
	replaysLarge(t, s, "a") // what was begun goes on to its end
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
		t.Fatal(err)
	}
	if files := segments(t, s); len(files) != 1 {
		t.Errorf("the segments are %q, want one", files)
	}
}

// A settlement that is given up in the queue leaves no body.
func TestSettlementGivenUpInTheQueueLeavesNoBody(t *testing.T) {
	s, begin := pausedIn(t, vfs.Default, newPath(t), newPath(t))
	record := &idempotency.Record{State: idempotency.InFlight, Token: claimOf("a").Token, Expires: clock().Add(time.Hour), LeaseUntil: clock().Add(time.Hour)}
	change := s.database.change()
	if err := change.putRecord(key("a"), nil, record); err != nil {
		t.Fatal(err)
	}
	if err := change.Commit(nil); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, key("a"), record, largeAs("a")) }()
	poll(t, "the settlement is queued", func() bool { return len(s.database.queue) == 1 })
	before := roomOfBodies(t, s)
	if before < largeBytes {
		t.Fatal("the body is not written before the record is")
	}
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want canceled", err)
	}
	begin()
	poll(t, "the room of the body is given back", func() bool { return !givesRoomBack || roomOfBodies(t, s) == 0 })
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
		t.Fatal(err)
	}
	if room := roomOfBodies(t, s); givesRoomBack && room != before {
		t.Errorf("the bodies have %d bytes of room after the second attempt, want %d", room, before)
	}
	replaysLarge(t, s, "a")
}

// Only so many bodies are written at a time, and who waits for his turn can give up.
func TestBodiesWriteInTurn(t *testing.T) {
	fs := newHolding(func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWriteAt })
	s := reopenIn(t, fs, "/data/keys")
	const n = bodyWriters + 8
	var records [n]*idempotency.Record
	for i := range records {
		records[i] = inFlight(t, s, fmt.Sprint(i))
	}
	last := inFlight(t, s, "last")
	fs.mu.Lock()
	var done sync.WaitGroup
	for i, record := range records {
		done.Go(func() {
			name := fmt.Sprint(i)
			if err := s.Settle(t.Context(), key(name), record, largeAs(name)); err != nil {
				t.Error(err)
			}
		})
	}
	poll(t, "the first bodies are being written", func() bool { return fs.held.Load() == bodyWriters })
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, key("last"), last, largeAs("last")) }()
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want canceled", err)
	}
	if err := keep(t.Context(), s, "small"); err != nil { // it waits for none of them
		t.Error(err)
	}
	fs.mu.Unlock()
	done.Wait()
	if most := fs.most.Load(); most > bodyWriters {
		t.Errorf("%d bodies were written at a time, want at most %d", most, bodyWriters)
	}
	for i := range n {
		replaysLarge(t, s, fmt.Sprint(i))
	}
	if err := s.Settle(t.Context(), key("last"), last, largeAs("last")); err != nil {
		t.Error(err)
	}
}

// Close waits for what is still done with bodies for callers that have given up.
func TestCloseWaitsForBodies(t *testing.T) {
	fs := newHolding(func(op errorfs.Op) bool { return op.Kind == errorfs.OpRemove || isFlush(op) })
	s, err := openIn(fs, "/data/keys", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	record := inFlight(t, s, "a")
	fs.mu.Lock()
	ctx, cancel := context.WithCancel(t.Context())
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, key("a"), record, largeAs("a")) }()
	poll(t, "the body is being flushed", func() bool { return fs.held.Load() == 1 })
	cancel()
	if err := <-settled; !errors.Is(err, context.Canceled) {
		t.Errorf("settle: %v, want canceled", err)
	}
	closed := make(chan error, 1)
	go func() { closed <- s.Close() }()
	select {
	case err := <-closed:
		fs.mu.Unlock()
		t.Fatalf("closed while a body is written: %v", err)
	case <-time.After(50 * time.Millisecond): // it would have been closed long before
	}
	fs.mu.Unlock()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	s = reopenIn(t, fs, "/data/keys")
	replaysLarge(t, s, "a")
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
		t.Fatal(err)
	}
}

// A store that is closed while a body finds no room keeps nobody waiting.
func TestCloseWithoutRoomForABody(t *testing.T) {
	fs := newBreakable(newMemory())
	s, err := openIn(fs, "/data/keys", zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	keepLarge(t, s, "kept")
	record := inFlight(t, s, "a")
	fs.failBodies(errorfs.OpFileWriteAt, syscall.ENOSPC)
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); !errors.Is(err, ErrNoSpace) {
		t.Fatalf("settle: %v, want ErrNoSpace", err)
	}
	if err := s.Close(); !errors.Is(err, ErrNoSpace) || !errors.Is(err, errNotClosed) {
		t.Errorf("close: %v; want it to say that there is no space", err)
	}
	fs.fail(nil)
	s = reopenIn(t, fs, "/data/keys")
	replaysLarge(t, s, "kept")
	if err := s.Settle(t.Context(), key("a"), record, largeAs("a")); err != nil {
		t.Fatal(err)
	}
	replaysLarge(t, s, "a")
}
