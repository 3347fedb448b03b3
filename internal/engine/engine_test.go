package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestConcurrentDuplicatesAskTheStoreOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		resume := a.link.pause("claim")
		all := a.waiters(100, req)
		synctest.Wait()
		resume()
		synctest.Wait()
		var run *engine.Run
		for _, w := range all {
			if !w.decided() {
				continue
			}
			if run != nil {
				t.Fatal("two requests were decided on while one runs")
			}
			run = as[*engine.Run](t, w.decision())
		}
		if run == nil {
			t.Fatal("no request runs")
		}
		if run.Attempt() != 1 {
			t.Errorf("the first attempt is %d", run.Attempt())
		}
		answer := created("paid")
		wantEnd(t, run, answer, resultKept)
		for _, w := range all {
			if d := w.decision(); d != engine.Decision(run) {
				wantReplay(t, d, run.ExecutionID(), answer, true)
			}
		}
		for _, operation := range []string{"claim", "settle"} {
			if n := a.link.count(operation); n != 1 {
				t.Errorf("the store saw %d of %s, want 1", n, operation)
			}
		}
		if n := a.link.count("lookup") + a.link.count("response"); n != 0 {
			t.Errorf("the store was asked %d times for a run of this process", n)
		}
		wantReplay(t, a.claim(req), run.ExecutionID(), answer, false)
		a.wantState(req, idempotency.Complete, 1)
	})
}

func TestKeysDoNotWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, one, two := newReplica(t, newShared(t)), someRequest(), someRequest()
		two.Key = idempotency.Identity{ID: "two"}.Key()
		first := a.run(one)
		second := a.run(two)
		wantEnd(t, second, created("two"), resultKept)
		wantEnd(t, first, created("one"), resultKept)
		wantReplay(t, a.claim(one), first.ExecutionID(), created("one"), false)
		wantReplay(t, a.claim(two), second.ExecutionID(), created("two"), false)
	})
}

func TestOtherFingerprintIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		reused := req
		reused.Fingerprint = "body:two"
		run := owner.run(req)
		w := other.claimLater(context.Background(), reused)
		wantRefusal(t, w.decision(), engine.ReasonReused, run.ExecutionID())
		if w.took != 0 {
			t.Errorf("the refusal waited %v", w.took)
		}
		wantEnd(t, run, created("one"), resultKept)
		wantRefusal(t, other.claim(reused), engine.ReasonReused, run.ExecutionID())
		wantReplay(t, other.claim(req), run.ExecutionID(), created("one"), false)
	})
}

// The first request of a flight may be refused for a reason that does not hold for the
// others. Each of them gets its own decision.
func TestDuplicateBesideAReusedKeyIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		run := a.run(req)
		wantEnd(t, run, created("one"), resultKept)
		reused := req
		reused.Fingerprint = "body:two"
		resume := a.link.pause("claim")
		first := a.claimLater(context.Background(), reused)
		synctest.Wait()
		second := a.claimLater(context.Background(), req)
		synctest.Wait()
		resume()
		wantRefusal(t, first.decision(), engine.ReasonReused, run.ExecutionID())
		wantReplay(t, second.decision(), run.ExecutionID(), created("one"), false)
	})
}

func TestInFlightIsRefusedWithoutWaiting(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		req.Wait = 0
		run := owner.run(req)
		w := other.claimLater(context.Background(), req)
		wantRefusal(t, w.decision(), engine.ReasonInFlight, run.ExecutionID())
		if w.took != 0 {
			t.Errorf("the refusal waited %v", w.took)
		}
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, other.claim(req), run.ExecutionID(), created("one"), false)
	})
}

// Two handlers with the same store may differ: with one of them duplicates wait, with
// the other they do not. A request that waits must not be refused because it has
// joined the flight of a request that does not.
func TestWaitingBesideOneThatDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		impatient := req
		impatient.Wait = 0
		resume := b.link.pause("claim")
		first := b.claimLater(context.Background(), impatient)
		synctest.Wait()
		second := b.claimLater(context.Background(), req)
		synctest.Wait()
		resume()
		wantRefusal(t, first.decision(), engine.ReasonInFlight, run.ExecutionID())
		synctest.Wait()
		wantRefusal(t, b.claim(impatient), engine.ReasonInFlight, run.ExecutionID())
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, second.decision(), run.ExecutionID(), created("one"), true)
	})
}

func TestWaitEndsAtItsLimit(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		run := owner.run(req)
		w := other.claimLater(context.Background(), req)
		wantRefusal(t, w.decision(), engine.ReasonInFlight, run.ExecutionID())
		if w.took != someWait {
			t.Errorf("waited %v, want %v", w.took, someWait)
		}
		later := other.claimLater(context.Background(), req)
		time.Sleep(someWait / 2)
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, later.decision(), run.ExecutionID(), created("one"), true)
	})
}

func TestWaiterWhoseClientLeft(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		run := owner.run(req)
		ctx, cancel := context.WithCancelCause(context.Background())
		gone, stays := other.claimLater(ctx, req), other.claimLater(context.Background(), req)
		time.Sleep(time.Second)
		left := errors.New("the client left")
		cancel(left)
		<-gone.done
		if !errors.Is(gone.err, left) || gone.d != nil {
			t.Errorf("decided %v with %v, want nothing with %v", gone.d, gone.err, left)
		}
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, stays.decision(), run.ExecutionID(), created("one"), true)
	})
}

func TestClientsThatLeaveWhileTheStoreIsAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		resume := a.link.pause("claim")
		ctx, cancel := context.WithCancel(context.Background())
		first := a.claimLater(ctx, req)
		synctest.Wait()
		second := a.claimLater(ctx, req)
		third := a.claimLater(context.Background(), req)
		synctest.Wait()
		cancel()
		synctest.Wait()
		<-second.done
		if !errors.Is(second.err, context.Canceled) {
			t.Errorf("the second request got %v with %v", second.d, second.err)
		}
		if first.decided() {
			t.Fatal("the claim was given up with its client: it is in doubt")
		}
		resume()
		run := as[*engine.Run](t, first.decision())
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, third.decision(), run.ExecutionID(), created("one"), true)
	})
}

// A request within a run does not wait for that run, with any settings, and even if another request
// already waits for it.
func TestRequestWithinItsOwnRunIsRefused(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := someRequest()
		run := owner.run(req)
		for range 2 {
			for _, fingerprint := range []string{req.Fingerprint, "json:as another handler takes it", "body:two"} {
				inner := req
				inner.Within, inner.Fingerprint = run.ExecutionID(), fingerprint
				w := other.claimLater(context.Background(), inner)
				wantRefusal(t, w.decision(), engine.ReasonLoop, run.ExecutionID())
				if w.took != 0 {
					t.Errorf("it waited %v for itself", w.took)
				}
			}
			other.claimLater(context.Background(), req)
			synctest.Wait()
		}
		elsewhere := req
		elsewhere.Within, elsewhere.Wait = "another run", 0
		wantRefusal(t, other.claim(elsewhere), engine.ReasonInFlight, run.ExecutionID())
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, owner.claim(elsewhere), run.ExecutionID(), created("one"), false)
	})
}

// A response about the caller is for that caller only. The requests that waited claim again, one
// after the other, on all replicas. The record of a forged request expires soon.
func TestAnswerAboutTheCallerIsNotShared(t *testing.T) {
	for _, status := range []int{401, 403, 407} {
		onBoth(t, func(t *testing.T, owner, other *replica) {
			req := someRequest()
			req.Policy.ReleaseOn, _ = idempotency.ParseStatuses("5xx", "401", "403", "407")
			req.Wait = time.Minute
			forged := owner.run(req)
			genuine := other.waiters(3, req)
			synctest.Wait()
			if got := end(forged, &idempotency.Response{Status: status}); got != resultReleased {
				t.Errorf("%d: the run ended %q", status, got)
			}
			var run *engine.Run
			time.Sleep(2 * time.Second) // the other replica polls
			synctest.Wait()
			for _, w := range genuine {
				if w.decided() {
					if run != nil {
						t.Fatalf("%d: two run at once", status)
					}
					run = as[*engine.Run](t, w.decision())
				}
			}
			if run == nil {
				t.Fatalf("%d: no request runs", status)
			}
			wantEnd(t, run, created("one"), resultKept)
			for _, w := range genuine {
				if d := w.decision(); d != engine.Decision(run) {
					wantReplay(t, d, run.ExecutionID(), created("one"), true)
				}
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		req.Policy.ReleaseOn, _ = idempotency.ParseStatuses("401")
		end(a.run(req), &idempotency.Response{Status: 401})
		time.Sleep(someLease)
		if record := a.stored(req); record != nil {
			t.Errorf("after a lease there is still %+v", record)
		}
		// Where attempts are counted, a forgery counts as long as any other.
		req.Policy.MaxAttempts = 5
		end(a.run(req), &idempotency.Response{Status: 401})
		time.Sleep(10 * someLease)
		a.wantState(req, idempotency.Released, 1)
	})
}

func TestStoreErrorsRefuseAllThatJoined(t *testing.T) {
	damaged := &idempotency.UnreadableError{Where: "dedup:one", Err: errors.New("it is cut off")}
	for name, test := range map[string]struct {
		err    error
		reason engine.Reason
	}{
		"down":       {errRefused, engine.ReasonUnavailable},
		"full":       {idempotency.ErrFull, engine.ReasonOverloaded},
		"unreadable": {damaged, engine.ReasonUnreadable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, req := newReplica(t, newShared(t)), someRequest()
				a.link.failWith(test.err, "claim")
				resume := a.link.pause("claim")
				all := a.waiters(10, req)
				synctest.Wait()
				resume()
				for _, w := range all {
					d := w.decision()
					wantRefusal(t, d, test.reason, "")
					if err := d.(engine.Refusal).Err; !errors.Is(err, test.err) {
						t.Errorf("the refusal's error is %v, want %v", err, test.err)
					}
				}
				if n := a.link.count("claim"); n != 1 {
					t.Errorf("the store was asked %d times, want 1", n)
				}
				a.link.failWith(nil, "claim")
				wantEnd(t, a.run(req), created("one"), resultKept)
			})
		})
	}
}

func TestHungStoreRefusesWithinItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		a.link.fail(hung)
		for _, w := range a.waiters(3, req) {
			wantRefusal(t, w.decision(), engine.ReasonUnavailable, "")
			if w.took != storeTimeout {
				t.Errorf("it took %v, want %v", w.took, storeTimeout)
			}
		}
		a.link.fail(works)
		wantEnd(t, a.run(req), created("one"), resultKept)
	})
}

func TestStoreThatPanicsLeavesNoRequestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		a.link.fail(panics, "claim")
		resume := a.link.pause("claim")
		panicked := make(chan any)
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = a.Claim(context.Background(), req)
		}()
		synctest.Wait()
		all := a.waiters(3, req)
		synctest.Wait()
		resume()
		if <-panicked == nil {
			t.Error("the panic was swallowed")
		}
		for _, w := range all {
			wantRefusal(t, w.decision(), engine.ReasonUnavailable, "")
		}
		a.link.fail(works)
		run := a.run(req)

		// The same at the end of a run: neither its waiters nor later requests may wait
		// forever.
		waiting := a.claimLater(context.Background(), req)
		synctest.Wait()
		a.link.fail(panics, "settle")
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic was swallowed")
				}
			}()
			end(run, created("one"))
		}()
		a.link.fail(works)
		a.drain()
		time.Sleep(someLease)
		synctest.Wait()
		wantRefusal(t, waiting.decision(), engine.ReasonInFlight, run.ExecutionID())
		if again := a.run(req); again.Attempt() != 2 {
			t.Errorf("the next attempt is %d, want 2", again.Attempt())
		}
	})
}

// mute is a faulty store: it replies that a response is kept, and does not return it.
type mute struct{ idempotency.Store }

// Claim implements [idempotency.Store].
func (m mute) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	got, err := m.Store.Claim(ctx, c)
	got.Response = nil
	return got, err
}

// The engine must not ask such a store again: it would never stop.
func TestKeptResponseThatDoesNotCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, mute{newShared(t)}), someRequest()
		wantEnd(t, a.run(req), created("one"), resultKept)
		wantRefusal(t, a.claim(req), engine.ReasonUnreadable, "")
	})
}
