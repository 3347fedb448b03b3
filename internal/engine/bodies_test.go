package engine_test

import (
	"context"
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

func bodyOf(mib int) string { return strings.Repeat("x", mib<<20) }

// withUnstored returns a replica whose bodies that are not stored are limited.
func withUnstored(t *testing.T, store idempotency.Store, unstored *engine.Unstored) *replica {
	r := &replica{t: t, link: newLink(store)}
	return r.open(r.link, func(o *engine.Options) { o.Unstored = unstored })
}

// A store that moves takes a second for each MiB of a body, and one that is stuck takes none.
func TestBodyTimeoutMovesWithBytes(t *testing.T) {
	play(t, []scene{
		{"for longer than an operation may take, and than the lease lasts", "", `
			a store moves; a runs run; a asks w wait=1h; run ending 201x62914560; sleep 45s; b refuses in_flight run now
			run ended kept; elapsed 1m 1m; w shares run`},
		{"until it is stuck", "", `
			a runs run; a store {hung settle|stuck}; run ends {201|201x1048576} trying; elapsed {500ms|2s} {510ms|2010ms}
			a store works; a drains; a replays run`},
	})
}

// What cannot be stored in time before the process exits is stored without its body, so that it does not
// run again. A body that is dropped while it moves says nothing of the store.
func TestBodiesAreDroppedBeforeTheExit(t *testing.T) {
	play(t, []scene{
		{"of runs that have failed, are being settled, or are late", "", `
			a runs failed key=1; a runs settling key=2; a runs late key=3; a runs small key=4; a store stuck
			failed ends 201x2097152 trying; elapsed 2s 2s; settling ending 201x2097152; sleep 1s; a drops; settling ended kept; elapsed 3s 3s
			late ends 201x2097152 kept; elapsed 4s 4s; small ends 201 kept; failed loses body; settling loses body; late loses body
			a replays failed key=1; a replays settling key=2; a replays late key=3; a replays small key=4; a dropped 3; a failures settle 1`},
		{"a closed engine waits for none that moves", "", `
			a runs run; a store refused; run ends 201x62914560 trying; a store moves; sleep 5s; a closes; elapsed 5s 6s; a dropped 0`},
		{"the store fails since then", "", `
			a runs first key=1; a runs second key=2; a store stuck; first ends 201x2097152 trying; sleep 1s; second ending 201x2097152
			sleep 1s; a store refused; a drops; second ended trying; sleep 1s; a failing 2s; a store works; a drains; a failing never`},
	})
}

// GiveUp ends the attempts for a reason, for a store that no configuration uses.
func TestGiveUp(t *testing.T) {
	play(t, []scene{{"after a minute", "", `
		a runs run; a failing never; a store refused; run ends 201 trying; sleep 1m; a failing 0s; a gives-up 1; a idle
		a logs 1 never stored: nothing uses the store`}})
}

// The bodies that cannot be stored have a limit together, for all stores of a process. Those that are
// still being stored do not count.
func TestBodiesThatCannotBeStoredAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unstored := engine.NewUnstored(func() int64 { return 10 << 20 })
		a, b, c := withUnstored(t, newShared(t), unstored), withUnstored(t, newShared(t), unstored), withUnstored(t, newShared(t), unstored)
		c.link.fail(moves, "settle")
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
