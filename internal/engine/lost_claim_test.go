package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestLostClaimIsWrittenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		lose(t, store, req)
		time.Sleep(someLease / 3)
		synctest.Wait()
		a.wantState(req, idempotency.InFlight, 1)
		wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
		time.Sleep(5 * time.Minute)
		wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
		wantEnd(t, run, created("one"), resultKept)
		wantReplay(t, b.claim(req), run.ExecutionID(), created("one"), false)
	})
}

func TestLostClaimWhoseRunReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a := newReplica(t, store)
		run := a.run(req)
		w := a.claimLater(context.Background(), req)
		synctest.Wait()
		lose(t, store, req)
		wantEnd(t, run, broken("out of order"), resultLost)
		wantReplay(t, w.decision(), run.ExecutionID(), broken("out of order"), true)
		a.drain()
		if record := a.stored(req); record != nil {
			t.Errorf("the store has %+v, want nothing", record)
		}
	})
}

// A renewal writes a lost claim again while the run ends. The claim must not stay in the store
// without a run: under `on_unknown hold` its key would be held.
func TestLostClaimIsWrittenAgainWhileItsRunReleases(t *testing.T) {
	for name, how := range map[string]fault{"slow": works, "executed later": executedLater} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), holding()
				a := newReplica(t, store)
				run := a.run(req)
				lose(t, store, req)
				resume := a.link.pause("claim")
				a.link.fail(how, "claim")
				time.Sleep(someLease / 3)
				synctest.Wait() // for the renewal, which claims
				if got := end(run, broken("out of order")); got != resultLost {
					t.Errorf("the run ended %q", got)
				}
				resume()
				time.Sleep(2 * idempotency.ClaimTimeout)
				a.link.recover()
				a.drain()
				if record := a.stored(req); record != nil && record.State != idempotency.Released {
					t.Fatalf("the key is %s by a claim without a run", record.State)
				}
				if again := a.run(req); again.Attempt() != 1 {
					t.Errorf("the next attempt is %d", again.Attempt())
				}
			})
		})
	}
}

func TestClaimLostToAnotherIsNotRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		first := a.run(req)
		lose(t, store, req)
		run := b.run(req)
		time.Sleep(2 * someLease)
		if n := a.link.count("renew"); n != 1 {
			t.Errorf("renewed %d times after the claim was lost", n-1)
		}
		wantEnd(t, run, created("two"), resultKept)
		wantEnd(t, first, created("one"), resultFenced)
	})
}

// The store has lost a claim, and the engine writes it again. In between,
// another request may claim the key.
func TestClaimLostToAnotherWhileItIsWrittenAgain(t *testing.T) {
	t.Run("by a renewal", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, req := newShared(t), someRequest()
			a, b := newReplica(t, store), newReplica(t, store)
			first := a.run(req)
			lose(t, store, req)
			resume := a.link.pause("claim")
			time.Sleep(someLease / 3)
			synctest.Wait()
			run := b.run(req)
			resume()
			time.Sleep(someLease)
			if n := a.link.count("renew"); n != 1 {
				t.Errorf("renewed %d times after the claim was lost", n-1)
			}
			wantEnd(t, first, created("one"), resultFenced)
			wantEnd(t, run, created("two"), resultKept)
		})
	})
	t.Run("at the end", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store, req := newShared(t), someRequest()
			a, b := newReplica(t, store), newReplica(t, store)
			first := a.run(req)
			lose(t, store, req)
			resume := a.link.pause("claim")
			result := make(chan result, 1)
			go func() { result <- end(first, created("one")) }()
			synctest.Wait()
			run := b.run(req)
			resume()
			if got := <-result; got != resultFenced {
				t.Errorf("the run ended %q, want %q", got, resultFenced)
			}
			if n := a.link.count("settle"); n != 1 {
				t.Errorf("settled %d times, want once: the claim is another's", n)
			}
			wantEnd(t, run, created("two"), resultKept)
			wantReplay(t, a.claim(req), run.ExecutionID(), created("two"), false)
		})
	})
}
