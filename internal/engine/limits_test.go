package engine_test

import (
	"errors"
	"testing"
	"testing/synctest"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func wantOverloaded(t *testing.T, d engine.Decision) {
	t.Helper()
	got := as[engine.Refusal](t, d)
	if got.Reason != engine.ReasonOverloaded || !errors.Is(got.Err, engine.ErrOverloaded) {
		t.Errorf("refused with %q (%v), want %q", got.Reason, got.Err, engine.ReasonOverloaded)
	}
}

func withKey(req engine.Request, id string) engine.Request {
	req.Key = idempotency.Identity{ID: id}.Key()
	return req
}

func TestLimitOfWaiters(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		limited := someRequest()
		other.Configure(engine.Settings{Limits: engine.Limits{Waiters: 5, WaitersPerKey: 3}})
		one, two := withKey(limited, "one"), withKey(limited, "two")
		first, second := owner.run(one), owner.run(two)
		// On another replica, the first duplicate of a key watches the run, and does not
		// count as a waiter.
		watchers := 0
		if owner != other {
			watchers = 1
		}
		waiting := other.waiters(3+watchers, one)
		synctest.Wait()
		wantOverloaded(t, other.begin(one))
		more := other.waiters(2+watchers, two)
		synctest.Wait()
		wantOverloaded(t, other.begin(two))

		wantEnd(t, first, created("one"), resultKept)
		wantEnd(t, second, created("two"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), first.ExecutionID(), created("one"), true)
		}
		for _, w := range more {
			wantReplay(t, w.decision(), second.ExecutionID(), created("two"), true)
		}
		if got := other.Overloads(); got != (engine.Overloads{Waiters: 1, WaitersPerKey: 1}) {
			t.Errorf("it counts %+v", got)
		}
		// Requests that have left make room for others.
		third := withKey(limited, "three")
		run := owner.run(third)
		again := other.waiters(3+watchers, third)
		synctest.Wait()
		wantOverloaded(t, other.begin(third))
		wantEnd(t, run, created("three"), resultKept)
		for _, w := range again {
			wantReplay(t, w.decision(), run.ExecutionID(), created("three"), true)
		}
	})
}

func TestLimitOfRunsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, newShared(t))
		limited := someRequest()
		r.Configure(engine.Settings{Limits: engine.Limits{InFlight: 2}})
		one := r.run(withKey(limited, "one"))
		two := r.run(withKey(limited, "two"))
		wantOverloaded(t, r.begin(withKey(limited, "three")))
		wantEnd(t, one, created("one"), resultKept)

		// A response that is not stored yet counts too, because it takes memory.
		r.link.fail(refused, "settle")
		wantEnd(t, two, created("two"), resultTrying)
		three := r.run(withKey(limited, "three"))
		wantOverloaded(t, r.begin(withKey(limited, "four")))
		r.link.recover()
		wantEnd(t, three, created("three"), resultKept)
		r.drain()
		if got := r.Overloads(); got != (engine.Overloads{InFlight: 2}) {
			t.Errorf("it counts %+v", got)
		}
		wantEnd(t, r.run(withKey(limited, "four")), created("four"), resultKept)
	})
}
