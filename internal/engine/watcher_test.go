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

func TestOtherReplicaIsWoken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		all := b.waiters(10, req)
		time.Sleep(100 * time.Millisecond)
		wantEnd(t, run, created("one"), resultKept)
		for _, w := range all {
			wantReplay(t, w.decision(), run.ExecutionID(), created("one"), true)
			if w.took != 100*time.Millisecond {
				t.Errorf("woken after %v, want at once", w.took-100*time.Millisecond)
			}
		}
		for _, operation := range []string{"claim", "response"} {
			if n := b.link.count(operation); n != 1 {
				t.Errorf("10 waiters made %d of %s, want 1", n, operation)
			}
		}
		// One poll for each request that joins, and one for the end.
		if n := b.link.count("lookup"); n > 11 {
			t.Errorf("10 waiters made %d of lookup, want 11 at most", n)
		}
	})
}

// A wake-up can come before the reply to the claim that waits for it.
func TestWakeUpBeforeTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		resume := b.link.pauseReply("claim")
		w := b.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, created("one"), resultKept)
		resume()
		wantReplay(t, w.decision(), run.ExecutionID(), created("one"), true)
		if w.took != 0 {
			t.Errorf("it took %v", w.took)
		}
	})
}

func TestLostWakeUpIsMadeUpFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		b.link.dropWakeUps()
		run := a.run(req)
		w := b.claimLater(context.Background(), req)
		time.Sleep(2300 * time.Millisecond)
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, w.decision(), run.ExecutionID(), created("one"), true)
		if w.took > 3300*time.Millisecond {
			t.Errorf("notified %v after the end, want within a second", w.took-2300*time.Millisecond)
		}
	})
}

func TestWatchingAsksTheStoreSeldom(t *testing.T) {
	for _, lease := range []time.Duration{3 * time.Millisecond, 600 * time.Millisecond, 2 * time.Second, someLease} {
		t.Run(lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				req.Policy.Lease = lease
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
				asked := append(b.link.times("claim"), b.link.times("lookup")...)
				if len(asked) < 5 {
					t.Errorf("asked %d times in %v", len(asked), someWait)
				}
				for i := 1; i < len(asked); i++ {
					if between := asked[i].Sub(asked[i-1]); between < 500*time.Millisecond || between > time.Second {
						t.Errorf("asked again after %v, want 500 ms to 1 s", between)
					}
				}
				end(run, created("one"))
			})
		})
	}
}

func TestDesertedRunIsNotWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		ctx, cancel := context.WithCancel(context.Background())
		all := []*waiter{b.claimLater(ctx, req), b.claimLater(ctx, req)}
		time.Sleep(2500 * time.Millisecond) // to a moment between two lookups
		cancel()
		for _, w := range all {
			<-w.done
		}
		asked := b.link.count("lookup")
		time.Sleep(10 * time.Second)
		if n := b.link.count("lookup"); n != asked {
			t.Errorf("asked %d times for no request", n-asked)
		}
		later := b.claimLater(context.Background(), req)
		time.Sleep(time.Second)
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, later.decision(), run.ExecutionID(), created("one"), true)
	})
}

// patient returns a request that waits longer than a lease.
func patient(req engine.Request) engine.Request {
	req.Wait = 10 * time.Minute
	return req
}

// crash makes a replica look dead to the others.
func (r *replica) crash() { r.link.fail(refused) }

func TestOneWaiterTakesOverFromACrashedOwner(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, req := newShared(t), patient(someRequest())
			a, b, c := newReplica(t, store), newReplica(t, store), newReplica(t, store)
			if deaf {
				b.link.dropWakeUps()
				c.link.dropWakeUps()
			}
			start := time.Now()
			crashed := a.run(req)
			a.crash()
			all := append(b.waiters(5, req), c.waiters(5, req)...)
			time.Sleep(someLease - time.Millisecond)
			synctest.Wait()
			for _, w := range all {
				if w.decided() {
					t.Fatalf("decided %v while the lease was live", w.decision())
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
			var run *engine.Run
			for _, w := range all {
				if w.decided() {
					if run != nil {
						t.Fatal("two took over")
					}
					run = as[*engine.Run](t, w.decision())
					if delay := w.took - someLease; delay > 501*time.Millisecond {
						t.Errorf("taken over %v after the lease's end", delay)
					}
				}
			}
			if run == nil {
				t.Fatalf("no request took over %v after the claim", time.Since(start))
			}
			if run.Attempt() != 2 || run.ExecutionID() == crashed.ExecutionID() {
				t.Errorf("it runs as attempt %d of %q, the crashed one was %q", run.Attempt(), run.ExecutionID(), crashed.ExecutionID())
			}
			time.Sleep(2 * someLease)
			wantEnd(t, run, created("two"), resultKept)
			for _, w := range all {
				if d := w.decision(); d != engine.Decision(run) {
					wantReplay(t, d, run.ExecutionID(), created("two"), true)
				}
			}
			a.link.fail(works)
			wantEnd(t, crashed, created("one"), resultFenced)
			wantReplay(t, a.claim(req), run.ExecutionID(), created("two"), false)
		})
	}
}

func TestCrashUnderHoldHoldsTheKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), patient(holding())
		a, b, c := newReplica(t, store), newReplica(t, store), newReplica(t, store)
		crashed := a.run(req)
		a.crash()
		releasing := patient(someRequest()) // the setting of the run decides, not that of the duplicate
		all := append(b.waiters(3, req), c.waiters(3, releasing)...)
		for _, w := range all {
			wantRefusal(t, w.decision(), engine.ReasonHeld, crashed.ExecutionID())
		}
		wantRefusal(t, b.claim(req), engine.ReasonHeld, crashed.ExecutionID())
	})
}

func TestLateOwnerIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), patient(someRequest())
		a, b := newReplica(t, store), newReplica(t, store)
		late := a.run(req)
		a.link.fail(refused) // the replica is alive, but cannot reach the store
		time.Sleep(someLease)
		run := b.run(req)
		waiting := a.waiters(3, req)
		synctest.Wait()
		a.link.fail(works, "claim", "settle", "lookup", "response")
		wantEnd(t, late, created("one"), resultFenced)
		synctest.Wait()
		a.wantState(req, idempotency.InFlight, 2)
		wantEnd(t, run, created("two"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), run.ExecutionID(), created("two"), true)
		}
		wantReplay(t, a.claim(req), run.ExecutionID(), created("two"), false)
		wantReplay(t, b.claim(req), run.ExecutionID(), created("two"), false)
	})
}

// A run that has lost its claim may go on for minutes. Its duplicates on the same
// replica must not wait for it, because another request owns the key now.
func TestDuplicatesOfALateOwnerFollowTheNewOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), patient(someRequest())
		a, b := newReplica(t, store), newReplica(t, store)
		late := a.run(req)
		waiting := a.waiters(3, req)
		a.link.fail(refused)
		time.Sleep(someLease)
		run := b.run(req)
		a.link.fail(works)
		time.Sleep(someLease / 3)
		synctest.Wait() // for the renewal, which finds out
		wantEnd(t, run, created("two"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), run.ExecutionID(), created("two"), true)
		}
		wantReplay(t, a.claim(req), run.ExecutionID(), created("two"), false)
		wantEnd(t, late, created("one"), resultFenced)
		wantReplay(t, a.claim(req), run.ExecutionID(), created("two"), false)
	})
}

// After its time limit, the lease of a run is no longer renewed: the run may never end,
// for example because its client does not read a stream to the end. A duplicate on
// this or on another replica then takes over.
func TestRunPastItsTimeLimitIsTakenOver(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := patient(someRequest())
		req.Timeout = time.Minute
		start := time.Now()
		stuck := owner.run(req)
		all := other.waiters(5, req)
		time.Sleep(time.Minute + someLease - time.Millisecond)
		synctest.Wait()
		for _, w := range all {
			if w.decided() {
				t.Fatalf("decided %v within the run's time", w.decision())
			}
		}
		time.Sleep(someLease + time.Second)
		synctest.Wait()
		var run *engine.Run
		for _, w := range all {
			if w.decided() {
				if run != nil {
					t.Fatal("two took over")
				}
				run = as[*engine.Run](t, w.decision())
			}
		}
		if run == nil {
			t.Fatalf("no request took over %v after the claim", time.Since(start))
		}
		if stuck.Lapsed() != "" || run.Lapsed() != stuck.ExecutionID() {
			t.Errorf("the first took over %q, the second %q", stuck.Lapsed(), run.Lapsed())
		}
		wantEnd(t, stuck, created("one"), resultFenced)
		wantEnd(t, run, created("two"), resultKept)
		for _, w := range all {
			if d := w.decision(); d != engine.Decision(run) {
				wantReplay(t, d, run.ExecutionID(), created("two"), true)
			}
		}
	})
}

func TestRunEndedPastItsTimeLimitIsKept(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := patient(someRequest())
		req.Timeout = time.Minute
		run := owner.run(req)
		waiting := other.claimLater(context.Background(), req)
		time.Sleep(time.Minute + someLease + time.Millisecond)
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, waiting.decision(), run.ExecutionID(), created("one"), true)
		wantReplay(t, owner.claim(req), run.ExecutionID(), created("one"), false)
	})
}

func TestWaiterGetsItsRunThoughAThirdRunsAlready(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b, c := newReplica(t, store), newReplica(t, store), newReplica(t, store)
		b.link.dropWakeUps()
		first := a.run(req)
		w := b.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, first, broken("out of order"), resultReleased)
		second := c.run(req)
		if second.Attempt() != 2 {
			t.Errorf("the second attempt is %d", second.Attempt())
		}
		wantReplay(t, w.decision(), first.ExecutionID(), broken("out of order"), true)
		wantEnd(t, second, created("two"), resultKept)
		wantReplay(t, b.claim(req), second.ExecutionID(), created("two"), false)
	})
}

// The same, but the run has kept no response: the waiter waits for the next run.
func TestWaiterOfARunWithoutAnswerWaitsForTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b, c := newReplica(t, store), newReplica(t, store), newReplica(t, store)
		b.link.dropWakeUps()
		first := a.run(req)
		w := b.claimLater(context.Background(), req)
		synctest.Wait()
		if got := ended(first, idempotency.End{How: idempotency.NotSent}); got != resultNotSent {
			t.Errorf("the run ended %q", got)
		}
		second := c.run(req)
		time.Sleep(1500 * time.Millisecond)
		wantEnd(t, second, created("two"), resultKept)
		wantReplay(t, w.decision(), second.ExecutionID(), created("two"), true)
	})
}

func TestWaitersOfAForgottenRunAskAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		w := b.claimLater(context.Background(), req)
		synctest.Wait()
		lose(t, store, req)
		again := as[*engine.Run](t, w.decision())
		if again.Attempt() != 1 {
			t.Errorf("the attempt of a forgotten key is %d", again.Attempt())
		}
		wantEnd(t, run, created("one"), resultFenced)
		wantEnd(t, again, created("two"), resultKept)
		wantReplay(t, a.claim(req), again.ExecutionID(), created("two"), false)
	})
}

func TestWatchingGoesOnOverStoreErrors(t *testing.T) {
	for name, operation := range map[string]string{"lookup": "lookup", "response": "response"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				b.link.fail(hung, operation)
				impatient := req
				impatient.Wait = 2 * time.Second
				leaves, stays := b.claimLater(context.Background(), impatient), b.claimLater(context.Background(), req)
				synctest.Wait()
				wantEnd(t, run, created("one"), resultKept)
				wantRefusal(t, leaves.decision(), engine.ReasonInFlight, run.ExecutionID())
				if leaves.took != 2*time.Second {
					t.Errorf("refused after %v", leaves.took)
				}
				b.link.fail(works)
				wantReplay(t, stays.decision(), run.ExecutionID(), created("one"), true)
			})
		})
	}
}

func TestUnreadableRecordEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		damaged := &idempotency.UnreadableError{Where: "dedup:one", Err: errors.New("it is cut off")}
		b.link.failWith(damaged, "response")
		all := b.waiters(3, req)
		synctest.Wait()
		wantEnd(t, run, created("one"), resultKept)
		for _, w := range all {
			wantRefusal(t, w.decision(), engine.ReasonUnreadable, "")
		}
	})
}
