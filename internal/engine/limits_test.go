package engine_test

import (
	"context"
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

// wantNoRoomToWait is wantOverloaded for a request that would wait for a run. The refusal names that
// run, which may be executing now.
func wantNoRoomToWait(t *testing.T, d engine.Decision, run *engine.Run) {
	t.Helper()
	wantOverloaded(t, d)
	if got := as[engine.Refusal](t, d); got.ExecutionID != run.ExecutionID() || got.Attempt != run.Attempt() {
		t.Errorf("refused because of %q, attempt %d; want the run %q, attempt %d", got.ExecutionID, got.Attempt, run.ExecutionID(), run.Attempt())
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
		// On another replica, the first duplicate of a key watches the run. It waits as all
		// others do, and counts.
		waiting := other.waiters(3, one)
		synctest.Wait()
		wantNoRoomToWait(t, other.claim(one), first)
		more := other.waiters(2, two)
		synctest.Wait()
		if runs, n := owner.InProgress(); runs != 2 || n != 0 && owner != other {
			t.Errorf("in progress are %d runs and %d that wait", runs, n)
		}
		if _, n := other.InProgress(); n != 5 {
			t.Errorf("%d wait", n)
		}
		wantNoRoomToWait(t, other.claim(two), second)

		wantEnd(t, first, created("one"), resultKept)
		wantEnd(t, second, created("two"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), first.ExecutionID(), created("one"), true)
		}
		for _, w := range more {
			wantReplay(t, w.decision(), second.ExecutionID(), created("two"), true)
		}
		wantCounts(t, other.observer.overloads(), map[string]int{"limit waiters": 1, "limit waiters_per_key": 1})
		// Requests that have left make room for others.
		third := withKey(limited, "three")
		run := owner.run(third)
		again := other.waiters(3, third)
		synctest.Wait()
		wantNoRoomToWait(t, other.claim(third), run)
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
		wantOverloaded(t, r.claim(withKey(limited, "three")))
		wantEnd(t, one, created("one"), resultKept)

		// A response that is not stored yet counts too, because it takes memory.
		r.link.fail(refused, "settle")
		wantEnd(t, two, created("two"), resultTrying)
		three := r.run(withKey(limited, "three"))
		wantOverloaded(t, r.claim(withKey(limited, "four")))
		r.link.recover()
		wantEnd(t, three, created("three"), resultKept)
		r.drain()
		wantCounts(t, r.observer.overloads(), map[string]int{"limit in_flight": 2})
		wantEnd(t, r.run(withKey(limited, "four")), created("four"), resultKept)
	})
}

// The limit of runs refuses only requests that would run, and no replays.
func TestLimitOfRunsRefusesOnlyRuns(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		kept, held, busy := withKey(req, "kept"), withKey(holding(), "held"), withKey(req, "busy")
		first := owner.run(kept)
		wantEnd(t, first, created("kept"), resultKept)
		lost := owner.run(held)
		if got := ended(lost, idempotency.End{How: idempotency.Unknown}); got != resultHeld {
			t.Fatalf("the run ended %q", got)
		}
		run := owner.run(busy)
		other.Configure(engine.Settings{Limits: engine.Limits{InFlight: 1}})
		if other != owner {
			filling := other.run(withKey(req, "filling"))
			defer func() { wantEnd(t, filling, created("filling"), resultKept) }()
		}
		wantOverloaded(t, other.claim(withKey(req, "new")))

		wantReplay(t, other.claim(kept), first.ExecutionID(), created("kept"), false)
		reused := kept
		reused.Fingerprint = "body:two"
		wantRefusal(t, other.claim(reused), engine.ReasonReused, first.ExecutionID())
		wantRefusal(t, other.claim(held), engine.ReasonHeld, lost.ExecutionID())
		reused = busy
		reused.Fingerprint = "body:two"
		wantRefusal(t, other.claim(reused), engine.ReasonReused, run.ExecutionID())
		inner := busy
		inner.Within = run.ExecutionID()
		wantRefusal(t, other.claim(inner), engine.ReasonLoop, run.ExecutionID())
		forced := kept
		forced.Force = true
		wantOverloaded(t, other.claim(forced))

		waiting := other.waiters(3, busy)
		synctest.Wait()
		wantEnd(t, run, created("busy"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), run.ExecutionID(), created("busy"), true)
		}
		wantCounts(t, other.observer.of("limit in_flight"), map[string]int{"limit in_flight": 2})
	})
}

// The limit may refuse the first request of a flight while another one is a replay.
func TestReplayBesideARunThatIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		kept := r.run(withKey(req, "kept"))
		wantEnd(t, kept, created("kept"), resultKept)
		run := r.run(withKey(req, "busy"))
		r.Configure(engine.Settings{Limits: engine.Limits{InFlight: 1}})
		forced := withKey(req, "kept")
		forced.Force = true
		resume := r.link.pause("lookup")
		first := r.claimLater(context.Background(), forced)
		synctest.Wait()
		others := r.waiters(3, withKey(req, "kept"))
		synctest.Wait()
		resume()
		wantOverloaded(t, first.decision())
		for _, w := range others {
			wantReplay(t, w.decision(), kept.ExecutionID(), created("kept"), false)
		}
		// The other requests that would run are refused with it, after one lookup.
		lookups := r.link.count("lookup")
		resume = r.link.pause("lookup")
		all := r.waiters(5, withKey(req, "new"))
		synctest.Wait()
		resume()
		for _, w := range all {
			wantOverloaded(t, w.decision())
		}
		if n := r.link.count("lookup"); n != lookups+1 {
			t.Errorf("the store was asked %d times, want once", n-lookups)
		}
		wantEnd(t, run, created("busy"), resultKept)
	})
}

// If the limit is reached and the store hangs, the refusal comes within the timeout, and says that the
// store is unavailable.
func TestLimitOfRunsAndAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		run := r.run(req)
		r.Configure(engine.Settings{Limits: engine.Limits{InFlight: 1}})
		r.link.fail(hung)
		w := r.claimLater(context.Background(), withKey(req, "new"))
		wantRefusal(t, w.decision(), engine.ReasonUnavailable, "")
		if w.took != storeTimeout {
			t.Errorf("it took %v, want %v", w.took, storeTimeout)
		}
		r.link.fail(panics, "lookup")
		panicked := func() (reason any) {
			defer func() { reason = recover() }()
			_, _ = r.Claim(context.Background(), withKey(req, "new"))
			return nil
		}()
		if panicked == nil {
			t.Error("the panic was swallowed")
		}
		r.link.fail(works)
		wantOverloaded(t, r.claim(withKey(req, "new")))
		wantEnd(t, run, created("one"), resultKept)
		r.drain()
	})
}

// The limits of waiters refuse only requests that have to wait.
func TestLimitOfWaitersRefusesOnlyWaiters(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		kept, busy := withKey(req, "kept"), withKey(req, "busy")
		first := owner.run(kept)
		wantEnd(t, first, created("kept"), resultKept)
		run := owner.run(busy)
		other.Configure(engine.Settings{Limits: engine.Limits{Waiters: 1, WaitersPerKey: 1}})
		waiting := other.claimLater(context.Background(), busy)
		synctest.Wait()
		wantOverloaded(t, other.claim(busy))

		reused := busy
		reused.Fingerprint = "body:two"
		wantRefusal(t, other.claim(reused), engine.ReasonReused, run.ExecutionID())
		inner := busy
		inner.Within = run.ExecutionID()
		wantRefusal(t, other.claim(inner), engine.ReasonLoop, run.ExecutionID())
		impatient := busy
		impatient.Wait = 0
		wantRefusal(t, other.claim(impatient), engine.ReasonInFlight, run.ExecutionID())
		// Duplicates that join while the store is asked turn out to be replays.
		resume := other.link.pause("claim")
		all := other.waiters(5, kept)
		synctest.Wait()
		resume()
		for _, w := range all {
			wantReplay(t, w.decision(), first.ExecutionID(), created("kept"), false)
		}
		wantEnd(t, run, created("busy"), resultKept)
		wantReplay(t, waiting.decision(), run.ExecutionID(), created("busy"), true)
	})
}

// Of the requests that joined during the claim, as many wait as the limit allows, and the first one
// counts like the others.
func TestLimitOfWaitersThatJoinedTogether(t *testing.T) {
	for _, limits := range []engine.Limits{{Waiters: 4}, {WaitersPerKey: 4}} {
		synctest.Test(t, func(t *testing.T) {
			store, req := newShared(t), someRequest()
			a, b := newReplica(t, store), newReplica(t, store)
			b.Configure(engine.Settings{Limits: limits})
			run := a.run(req)
			resume := b.link.pause("claim")
			all := b.waiters(10, req)
			synctest.Wait()
			resume()
			synctest.Wait()
			refused := 0
			for _, w := range all {
				if w.decided() {
					wantOverloaded(t, w.decision())
					refused++
				}
			}
			if refused != 6 {
				t.Errorf("%+v: %d of 10 were refused, want 6", limits, refused)
			}
			wantEnd(t, run, created("one"), resultKept)
			for _, w := range all {
				if _, ok := w.decision().(engine.Refusal); !ok {
					wantReplay(t, w.decision(), run.ExecutionID(), created("one"), true)
				}
			}
			// All have left, and there is room again.
			again := a.run(withKey(req, "two"))
			more := b.waiters(4, withKey(req, "two"))
			synctest.Wait()
			wantEnd(t, again, created("two"), resultKept)
			for _, w := range more {
				wantReplay(t, w.decision(), again.ExecutionID(), created("two"), true)
			}
		})
	}
}

// Without room no run starts, and all else works.
func TestNoRoomRefusesRuns(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		full := errors.New("full")
		kept, busy := withKey(someRequest(), "kept"), withKey(someRequest(), "busy")
		done, run := owner.run(kept), owner.run(busy)
		wantEnd(t, done, created("kept"), resultKept)
		other.setRoom(full)
		wantReplay(t, other.claim(kept), done.ExecutionID(), created("kept"), false)
		waiting := other.waiters(2, busy)
		synctest.Wait()
		got := other.claim(withKey(someRequest(), "new"))
		wantOverloaded(t, got)
		if err := as[engine.Refusal](t, got).Err; !errors.Is(err, full) {
			t.Errorf("refused because of %v", err)
		}
		wantCounts(t, other.observer.overloads(), map[string]int{"limit buffered": 1})
		wantEnd(t, run, created("busy"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), run.ExecutionID(), created("busy"), true)
		}
		other.setRoom(nil)
		other.run(withKey(someRequest(), "new"))
	})
}
