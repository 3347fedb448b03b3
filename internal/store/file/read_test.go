package file

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// hangingReads is a disk from which nothing can be read of the tables and the responses beside
// them while it hangs: whoever tries waits.
type hangingReads struct {
	mu      sync.Mutex
	hangs   chan struct{} // closed when it hangs no more; nil while it does not
	waiting atomic.Int64
}

func (h *hangingReads) fs() vfs.FS {
	return errorfs.Wrap(newMemory(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead && (strings.HasSuffix(op.Path, ".sst") || strings.HasSuffix(op.Path, ".blob")) {
			h.mu.Lock()
			hangs := h.hangs
			h.mu.Unlock()
			if hangs != nil {
				h.waiting.Add(1)
				<-hangs
				h.waiting.Add(-1)
			}
		}
		return nil
	}))
}

func (h *hangingReads) hang() (goOn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	hangs := make(chan struct{})
	h.hangs = hangs
	return sync.OnceFunc(func() {
		h.mu.Lock()
		h.hangs = nil
		h.mu.Unlock()
		close(hangs)
	})
}

// onDisk is a store whose keys have to be read from the disk.
func (h *hangingReads) onDisk(t *testing.T, keys int) (s *Store, goOn func()) {
	t.Helper()
	s = reopenIn(t, h.fs(), "/data/keys")
	keepMany(t, s, keys)
	filterMade(t, s)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	compact(t, s)
	goOn = h.hang()
	t.Cleanup(goOn) // before the store is closed
	return s, goOn
}

// soon returns what an operation returns whose time is over soon, and fails the test if it
// does not return.
func soon(t *testing.T, what string, operation func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- operation(ctx) }()
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		t.Fatalf("%s did not return when its time was over", what)
		return nil
	}
}

// A disk that hangs keeps no operation longer than its time, those that only read neither. And
// it is asked once for each key, however many ask the store.
func TestReadsOfADiskThatHangs(t *testing.T) {
	t.Parallel()
	h := new(hangingReads)
	s, goOn := h.onDisk(t, 20)
	c := claimOf("1")
	c.Token = "token of a duplicate"
	operations := map[string]func(ctx context.Context) error{
		"claim":    func(ctx context.Context) error { _, err := s.Claim(ctx, c); return err },
		"renew":    func(ctx context.Context) error { return s.Renew(ctx, claimOf("2")) },
		"settle":   func(ctx context.Context) error { return s.Settle(ctx, key("3"), claimedOf("3"), completeAs("3")) },
		"lookup":   func(ctx context.Context) error { _, _, err := s.Lookup(ctx, key("4")); return err },
		"response": func(ctx context.Context) error { _, err := s.Response(ctx, key("5"), "token of 5"); return err },
		"free":     func(ctx context.Context) error { _, err := s.Free(ctx, key("6"), "t", idempotency.Seen{}); return err },
		"forget":   func(ctx context.Context) error { return s.Forget(ctx, key("7"), idempotency.Seen{}) },
		"list":     func(ctx context.Context) error { _, _, err := s.List(ctx, "", 10); return err },
	}
	for range 2 {
		for name, operation := range operations {
			if err := soon(t, name, operation); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v; want that its time is over", name, err)
			}
		}
	}
	if n := len(s.database.reads); n > len(operations)+1 {
		t.Errorf("%d reads are under way; the second one of a key waits for the first, and there are two lists", n)
	}
	// What is not on the disk is not kept waiting.
	if err := keep(t.Context(), s, "new"); err != nil {
		t.Error(err)
	}
	goOn()
	for i := range 20 {
		replays(t, s, fmt.Sprint(i))
	}
	poll(t, "nothing is read any more", func() bool { return len(s.database.reads) == 0 })
}

// However many keys are asked for, so many threads and no more wait for a disk that hangs.
func TestReadsOfADiskThatHangsAreBounded(t *testing.T) {
	t.Parallel()
	h := new(hangingReads)
	const keys = mostReads + 100
	s, goOn := h.onDisk(t, keys)
	var asking sync.WaitGroup
	for i := range keys {
		asking.Go(func() {
			err := soon(t, "a lookup", func(ctx context.Context) error { _, _, err := s.Lookup(ctx, key(fmt.Sprint(i))); return err })
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("key %d: %v; want that its time is over", i, err)
			}
		})
	}
	asking.Wait()
	if n := h.waiting.Load(); n == 0 || n > mostReads {
		t.Errorf("%d reads wait for the disk; want at least one, and at most %d", n, mostReads)
	}
	goOn()
	for i := range keys {
		replays(t, s, fmt.Sprint(i))
	}
}

// claimedOf is the record of a claim.
func claimedOf(name string) *idempotency.Record {
	c := claimOf(name)
	return c.Record(nil, clock())
}

// Who asks whether the store answers is told that its disk hangs, though nothing is read for
// a key that is new, and that it answers where its disk is only full.
func TestAnswersOfADisk(t *testing.T) {
	t.Parallel()
	answers := func(s *Store) func(ctx context.Context) error {
		return s.Ready
	}
	hanging := newLogWatch()
	s := reopenIn(t, hanging, "/data/keys")
	filterMade(t, s)
	hanging.mu.Lock()
	if err := soon(t, "the question", answers(s)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the disk hangs: %v", err)
	}
	hanging.mu.Unlock()
	if err := answers(s)(t.Context()); err != nil {
		t.Errorf("it does not hang any more: %v", err)
	}

	without := newBreakable(newMemory())
	s = reopenIn(t, without, "/data/keys")
	without.fail(full)
	for range 2 { // the first one finds out that it is full
		if err := answers(s)(t.Context()); err != nil {
			t.Errorf("the disk is full: %v", err)
		}
	}
	without.fail(nil)
	poll(t, "there is room again", func() bool { return keep(t.Context(), s, "a") == nil })
}
