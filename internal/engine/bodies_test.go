package engine_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// movingStore takes a second for each MiB of a body.
type movingStore struct {
	idempotency.Store
	progress idempotency.Progress
	stuck    atomic.Bool
}

func (s *movingStore) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	if settlement.Response != nil {
		idempotency.Follow(ctx, &s.progress)
		for left := len(settlement.Response.Body); left >= 1<<20 && ctx.Err() == nil; left -= 1 << 20 {
			if s.stuck.Load() {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(time.Second)
			s.progress.Moved()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return s.Store.Settle(ctx, key, claimed, settlement)
}

func bodyOf(mib int) string { return strings.Repeat("x", mib<<20) }

// withUnstored returns a replica whose bodies that are not stored are limited.
func withUnstored(t *testing.T, store idempotency.Store, unstored *engine.Unstored) *replica {
	r := &replica{t: t, link: newLink(store)}
	return r.open(r.link, func(o *engine.Options) { o.Unstored = unstored })
}

// A body moves for longer than an operation may take, and than the lease lasts.
func TestBodyTimeoutMovesWithBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &movingStore{Store: newShared(t)}
		a, b := newReplica(t, shared), newReplica(t, shared)
		run := a.run(someRequest())
		early := a.claimLater(t.Context(), waiting(time.Hour))
		go func() {
			time.Sleep(45 * time.Second)
			as[engine.Refusal](t, b.claim(someRequest())) // the lease has not lapsed
		}()
		start := time.Now()
		wantEnd(t, run, created(bodyOf(60)), resultKept)
		storetest.Equal(t, time.Since(start), time.Minute, "stored after")
		<-early.done
		as[engine.Replay](t, early.d)
	})
}

func waiting(wait time.Duration) engine.Request {
	req := someRequest()
	req.Wait = wait
	return req
}

func TestStalledBodyTimesOut(t *testing.T) {
	for size, want := range map[int]time.Duration{1 << 10: storeTimeout, 1 << 20: 2 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			shared := &movingStore{Store: newShared(t)}
			shared.stuck.Store(true)
			a := newReplica(t, shared)
			if size < 1<<20 {
				a.link.fail(hung, "settle")
			}
			run, start := a.run(someRequest()), time.Now()
			wantEnd(t, run, created(strings.Repeat("x", size)), resultTrying)
			storetest.Equal(t, time.Since(start).Round(10*time.Millisecond), want, "given up after", size)
			shared.stuck.Store(false)
			a.link.fail(works)
			a.drain()
			as[engine.Replay](t, a.claim(someRequest()))
		})
	}
}

// What cannot be stored in time before the process exits is stored without its body, so that it does not
// run again.
func TestBodiesAreDroppedBeforeTheExit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &movingStore{Store: newShared(t)}
		shared.stuck.Store(true)
		a := newReplica(t, shared)
		failed, settling, late, small := a.run(nth(0)), a.run(nth(1)), a.run(nth(2)), a.run(nth(3))
		wantEnd(t, failed, created(bodyOf(2)), resultTrying)
		done := make(chan struct{})
		go func() {
			defer close(done)
			wantEnd(t, settling, created(bodyOf(2)), resultKept)
		}()
		time.Sleep(time.Second)
		a.DropBodies()
		start := time.Now()
		<-done
		synctest.Wait()
		storetest.Equal(t, time.Since(start), 0, "stored after")
		wantEnd(t, late, created(bodyOf(2)), resultKept)
		storetest.Equal(t, time.Since(start), time.Second, "a late body is dropped after")
		wantEnd(t, small, created("small"), resultKept)
		for n, omitted := range []bool{true, true, true, false} {
			replay := as[engine.Replay](t, a.claim(nth(n)))
			storetest.Equal(t, replay.Response.Omitted, omitted, "without body", n)
			storetest.Equal(t, replay.Response.Status, 201, "status", n)
		}
		storetest.Equal(t, a.observer.of("bodies dropped")["bodies dropped"], 3, "dropped")
		storetest.Equal(t, a.observer.of("settle failed")["settle failed"], 1, "settlements that failed by the store, not because the body is dropped")
	})
}

// The bodies that cannot be stored have a limit together, for all stores of a process. Those that are
// still being stored do not count.
func TestBodiesThatCannotBeStoredAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unstored := engine.NewUnstored(func() int64 { return 10 << 20 })
		moving := &movingStore{Store: newShared(t)}
		a, b, c := withUnstored(t, newShared(t), unstored), withUnstored(t, newShared(t), unstored), withUnstored(t, moving, unstored)
		a.link.fail(refused)
		var released [5]bool
		for n, mib := range []int{2, 3, 5, 4, 1} {
			store := a
			if n%2 == 1 {
				store = b
			}
			a.link.fail(works, "claim")
			run := store.run(nth(n))
			a.link.fail(refused)
			b.link.fail(refused)
			wantStored(t, run, created(bodyOf(mib)), resultTrying, func() { released[n] = true })
			b.link.fail(works, "claim")
		}
		go func() { wantEnd(t, c.run(nth(5)), created(bodyOf(20)), resultKept) }()
		synctest.Wait()
		// The fourth has exceeded the limit, and the third was larger.
		storetest.Equal(t, released, [5]bool{2: true}, "room released")
		replay := as[engine.Replay](t, a.claim(nth(2)))
		if !replay.Response.Omitted || replay.Response.Status != 201 || !strings.Contains(replay.Record.Reason, "half of `buffered`") {
			t.Errorf("a duplicate of the largest got %d, omitted %v, because %q", replay.Response.Status, replay.Response.Omitted, replay.Record.Reason)
		}
		if replay := as[engine.Replay](t, a.claim(nth(0))); len(replay.Response.Body) != 2<<20 {
			t.Errorf("a duplicate of a smaller one got %d bytes", len(replay.Response.Body))
		}
		a.link.fail(works)
		b.link.fail(works)
		a.drain()
		b.drain()
		c.drain()
		storetest.Equal(t, a.stored(nth(2)).Status, 201, "status that is stored")
		storetest.Equal(t, a.observer.of("bodies dropped")["bodies dropped"], 1, "dropped")
	})
}

// GiveUp ends the attempts for a reason, for a store that no configuration uses.
func TestGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		run := a.run(someRequest())
		if _, ok := a.FailingSince(); ok {
			t.Error("it fails")
		}
		start := time.Now()
		a.link.fail(refused)
		wantEnd(t, run, created("x"), resultTrying)
		time.Sleep(time.Minute)
		if since, ok := a.FailingSince(); !ok || !since.Equal(start) {
			t.Errorf("failing since %v, %v; want %v", since, ok, start)
		}
		storetest.Equal(t, a.GiveUp(errors.New("nothing uses the store")), 1, "runs given up")
		synctest.Wait()
		if !a.Idle() {
			t.Error("it is not idle")
		}
		storetest.Equal(t, a.logged.FilterMessageSnippet("never stored: nothing uses the store").Len(), 1, "lines")
	})
}

// A body that is dropped while it moves says nothing of the store, which still fails since then.
func TestFailingSinceWithDroppedBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &movingStore{Store: newShared(t)}
		shared.stuck.Store(true)
		a := newReplica(t, shared)
		first, second := a.run(nth(0)), a.run(nth(1))
		wantEnd(t, first, created(bodyOf(2)), resultTrying)
		since := time.Now()
		time.Sleep(time.Second)
		go func() { wantEnd(t, second, created(bodyOf(2)), resultTrying) }()
		time.Sleep(time.Second)
		a.link.fail(refused)
		a.DropBodies()
		time.Sleep(time.Second)
		if got, ok := a.FailingSince(); !ok || !got.Equal(since) {
			t.Errorf("failing since %v, %v; want %v", got, ok, since)
		}
		a.link.fail(works)
		a.drain()
	})
}

// Runs whose settlements failed together are not tried again together.
func TestRetriesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const runs = 8
		a := newReplica(t, newShared(t))
		var all []*engine.Run
		for n := range runs {
			all = append(all, a.run(nth(n)))
		}
		a.link.fail(refused, "settle")
		for _, run := range all {
			wantEnd(t, run, created("done"), resultTrying)
		}
		time.Sleep(100 * time.Millisecond) // the longest first pause
		synctest.Wait()
		retries := a.link.times("settle")[runs:]
		if len(retries) < runs || retries[0].Equal(retries[runs-1]) {
			t.Errorf("tried again at %v", retries)
		}
		a.link.fail(works)
		a.drain()
	})
}

// A retry holds nothing of a body whose room is released.
func TestDroppedBodyIsFreed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := withUnstored(t, newShared(t), engine.NewUnstored(func() int64 { return 1 << 20 }))
		run := a.run(someRequest())
		a.link.fail(refused)
		released := false
		body := func() weak.Pointer[byte] {
			response := created(bodyOf(8))
			wantStored(t, run, response, resultTrying, func() { released = true })
			return weak.Make(&response.Body[0])
		}()
		time.Sleep(time.Minute)
		synctest.Wait()
		runtime.GC()
		if !released || body.Value() != nil {
			t.Errorf("room released: %v, body in memory: %v", released, body.Value() != nil)
		}
		a.link.fail(works)
		a.drain()
	})
}

// tooLargeStore is down, or takes no body of more than 3 MiB.
type tooLargeStore struct {
	idempotency.Store
	takesNoBodies atomic.Bool
}

func (s *tooLargeStore) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	if s.takesNoBodies.Load() && len(settlement.Response.Body) > 3<<20 {
		return idempotency.ErrTooLarge
	}
	return errRefused
}

// A body that a store refuses as too large counts no longer, while what is left of its response still
// cannot be stored.
func TestBodyRefusedAsTooLargeNoLongerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unstored := engine.NewUnstored(func() int64 { return 10 << 20 })
		shared := &tooLargeStore{Store: newShared(t)}
		full, other := withUnstored(t, shared, unstored), withUnstored(t, newShared(t), unstored)
		runs := []*engine.Run{full.run(nth(0)), other.run(nth(1)), other.run(nth(2))}
		wantEnd(t, runs[0], created(bodyOf(4)), resultTrying)
		shared.takesNoBodies.Store(true)
		time.Sleep(time.Minute)
		other.link.fail(refused)
		for _, run := range runs[1:] {
			wantEnd(t, run, created(bodyOf(5)), resultTrying)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		storetest.Equal(t, full.observer.of("bodies dropped")["bodies dropped"], 1, "dropped as too large")
		storetest.Equal(t, other.observer.of("bodies dropped")["bodies dropped"], 0, "dropped of 10 MiB, which is the limit")
	})
}
