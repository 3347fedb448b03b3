package redis

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// timed is a context as the engine makes them.
type timed struct{ context.Context }

func (timed) EndsByTimeAlone() {}

// withTime returns a context for an operation that may take so long.
func withTime(t testing.TB, limit time.Duration) timed {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return timed{ctx}
}

// alone reports whether a caller makes a flush for its own command.
func (f *flushes) alone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.queues {
		if q.alone {
			return true
		}
	}
	return false
}

// TestLoneCaller goes out from its own goroutine. Others who come meanwhile wait for
// nothing but a free flush, and there are no more flushes than without it.
func TestLoneCaller(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	warm(t, s)
	eventually(t, "nothing is under way", func() bool {
		s.flushes.mu.Lock()
		defer s.flushes.mu.Unlock()
		return s.flushes.queues[s.client.(*goredis.Client)].underWay() == 0
	})
	_, before := s.flushes.state()
	server.Pause()
	const callers = 20
	errs := make(chan error, callers)
	claim := func(i int) {
		claimed, err := s.Claim(withTime(t, generous/2), claimOf(fmt.Sprint(i), "token"))
		if err == nil && claimed.Verdict != idempotency.Proceed {
			err = fmt.Errorf("verdict %v", claimed.Verdict)
		}
		errs <- err
	}
	go claim(0)
	eventually(t, "the first goes alone", func() bool { return s.flushes.alone() })
	for i := range callers - 1 {
		go claim(i + 1)
	}
	eventually(t, "the others wait, or are in the second flush", func() bool {
		waiting, flushed := s.flushes.state()
		return flushed == before+flushers && waiting+int(s.flushes.sent.Load()) >= callers
	})
	server.Resume()
	for range callers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if waiting, _ := s.flushes.state(); waiting != 0 || s.flushes.alone() {
		t.Errorf("%d commands still wait; one is alone: %v", waiting, s.flushes.alone())
	}
}

// looked counts who waits for the end of a context. That of an operation makes a timer
// and a channel then.
type looked struct {
	timed
	waits *atomic.Int64
}

func (l looked) Done() <-chan struct{} {
	l.waits.Add(1)
	return l.timed.Done()
}

// TestCallersContextIsLookedAt has a caller alone, and some that go out together.
func TestCallersContextIsLookedAt(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	s.flushes.timeout = generous / 2 // ends before the callers' time
	warm(t, s)
	c := looked{withTime(t, generous-time.Second), new(atomic.Int64)}
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if _, err := s.Claim(c, claimOf(fmt.Sprint(i), "token")); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	mustClaimWithin(t, s, c, claimOf("alone", "token"))
	if n := c.waits.Load(); n != 0 {
		t.Errorf("%d times somebody waited for the end of a caller's context", n)
	}
}

func mustClaimWithin(t *testing.T, s *Store, limited context.Context, c idempotency.Claim) {
	t.Helper()
	eventually(t, "nothing is under way", func() bool {
		s.flushes.mu.Lock()
		defer s.flushes.mu.Unlock()
		return s.flushes.queues[s.client.(*goredis.Client)].underWay() == 0
	})
	before := s.flushes.count.Load()
	if _, err := s.Claim(limited, c); err != nil || s.flushes.count.Load() != before+1 {
		t.Errorf("alone, in %d flushes: %v", s.flushes.count.Load()-before, err)
	}
}

// TestLoneCallersTime ends while the server stands still. The claim is in doubt, and the
// next caller has its turn.
func TestLoneCallersTime(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	warm(t, s)
	server.Pause()
	claimed, err := s.Claim(withTime(t, 50*time.Millisecond), claimOf("a", "token"))
	if err == nil || claimed.Record == nil {
		t.Errorf("%+v, %v; want an error, and a claim in doubt", claimed, err)
	}
	if s.flushes.alone() {
		t.Error("it is still alone")
	}
	server.Resume()
	mustClaim(t, s, claimOf("b", "token"), idempotency.Proceed)
}

// TestLoneCallerOfAClosedStore finds its connection closed, or the store.
func TestLoneCallerOfAClosedStore(t *testing.T) {
	server := redistest.Start(t)
	s := openAt(t, server.Addr)
	warm(t, s)
	server.Pause()
	done := make(chan error, 1)
	go func() { _, err := s.Claim(withTime(t, generous/2), claimOf("a", "token")); done <- err }()
	eventually(t, "it is alone", func() bool { return s.flushes.alone() })
	_ = s.Close()
	if err := <-done; err == nil {
		t.Error("a claim without a reply succeeded")
	}
	if _, err := s.Claim(withTime(t, generous/2), claimOf("b", "token")); !errors.Is(err, idempotency.ErrClosed) {
		t.Errorf("after that: %v, want ErrClosed", err)
	}
	server.Resume()
}

// TestTimeIsAskedWhereItCounts counts how often the server is asked for its time.
func TestTimeIsAskedWhereItCounts(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	warm(t, s)
	q := s.flushes.queues[s.client.(*goredis.Client)]
	asked := func(what string, want int, operation func() error) {
		t.Helper()
		before := calls(t, server)["time"]
		if err := operation(); err != nil {
			t.Fatal(err)
		}
		if n := calls(t, server)["time"] - before; n != want {
			t.Errorf("%s: the server was asked for its time %d times, want %d", what, n, want)
		}
	}
	last := func(ago time.Duration) {
		s.flushes.mu.Lock()
		defer s.flushes.mu.Unlock()
		q.timed = time.Now().Add(-ago)
	}
	var record *idempotency.Record
	claim := func(c idempotency.Claim) func() error {
		return func() error {
			claimed, err := s.Claim(ctx, c)
			record = claimed.Record
			return err
		}
	}
	settle := func(name string) func() error {
		return func() error { return s.Settle(ctx, keyOf(name), record, kept(small)) }
	}
	last(-time.Hour)
	asked("a claim", 1, claim(claimOf("a", "token")))
	last(-time.Hour)
	asked("its end", 0, settle("a"))
	held := claimOf("warm script", "token")
	held.Hold = true
	mustClaim(t, s, held, idempotency.Proceed)
	held.Key = keyOf("b")
	asked("a claim with a deadline, by a script that asks too", 2, claim(held))
	last(2 * timeAtLeast)
	asked("an end after a while", 1, settle("b"))
}
