package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The store loses the claim of a forced run, and with it the response that the run is
// meant to replace. The claim is written again, but the record with that response
// must not be.
func TestForcedRunAfterTheStoreLostWhatItReplaces(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    idempotency.End
		answer *idempotency.Response
	}{
		{"answered 500", idempotency.End{How: idempotency.Answered}, broken("failed")},
		{"unknown", idempotency.End{How: idempotency.Unknown}, failed(502)},
		{"not sent", idempotency.End{How: idempotency.NotSent}, failed(502)},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				wantEnd(t, a.run(req), created("first"), resultKept)
				forced := a.run(forcing(req))
				lose(t, store, req)
				time.Sleep(someLease / 2) // until the claim is written again
				wantRefusal(t, b.claim(impatient(req)), engine.ReasonInFlight, forced.ExecutionID())
				ended(forced, withResponse(c.end, c.answer))
				a.drain()
				wantEnd(t, b.run(req), created("second"), resultKept)
			})
		})
	}
}

// If it is unknown how such a run ended, its key is held under `on_unknown hold`: the previous
// response, which would otherwise stay, is lost.
func TestForcedRunUnderHoldAfterTheStoreLostWhatItReplaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), holding()
		a, b := newReplica(t, store), newReplica(t, store)
		wantEnd(t, a.run(req), created("first"), resultKept)
		forced := a.run(forcing(req))
		lose(t, store, req)
		time.Sleep(someLease / 2)
		if got := ended(forced, idempotency.End{How: idempotency.Unknown, Response: failed(502)}); got != resultHeld {
			t.Errorf("the run ended %q, want it held", got)
		}
		wantRefusal(t, b.claim(req), engine.ReasonHeld, forced.ExecutionID())
	})
}

// impatient returns a request that does not wait for a run in flight.
func impatient(req engine.Request) engine.Request {
	req.Wait = 0
	return req
}

// A forced run whose process crashed counts as an attempt, because it may have reached
// the upstream.
func TestForcedRunOfACrashedOwnerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		wantEnd(t, a.run(req), created("first"), resultKept)
		if n := a.run(forcing(req)).Attempt(); n != 2 {
			t.Fatalf("the forced run is attempt %d, want 2", n)
		}
		_ = a.Close() // so that it does not renew
		time.Sleep(someLease)
		if n := b.run(forcing(req)).Attempt(); n != 3 {
			t.Errorf("the next forced run is attempt %d, want 3", n)
		}
	})
}

// The same, if no renewal has noticed the loss before the end.
func TestForcedRunUnderHoldAfterAnUnnoticedLoss(t *testing.T) {
	for name, outage := range map[string]fault{"at once": works, "after an outage": refused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), holding()
				a, b := newReplica(t, store), newReplica(t, store)
				wantEnd(t, a.run(req), created("first"), resultKept)
				forced := a.run(forcing(req))
				lose(t, store, req)
				a.link.fail(outage, "settle")
				want := resultHeld
				if outage != works {
					want = resultTrying
				}
				if got := ended(forced, idempotency.End{How: idempotency.Unknown, Response: failed(502)}); got != want {
					t.Errorf("the run ended %q, want %q", got, want)
				}
				a.link.fail(works)
				a.drain()
				wantRefusal(t, b.claim(req), engine.ReasonHeld, forced.ExecutionID())
			})
		})
	}
}

// A renewal writes a lost claim again while its run ends: it must not replace the response that the
// run itself has kept.
func TestForcedClaimIsWrittenAgainWhileItsRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		wantEnd(t, a.run(req), created("first"), resultKept)
		forced := a.run(forcing(req))
		lose(t, store, req)
		resume := a.link.pause("claim")
		time.Sleep(someLease / 3)
		synctest.Wait() // the renewal's claim is under way
		done := make(chan result, 1)
		go func() { done <- end(forced, created("second")) }() // and that of the end
		synctest.Wait()
		resume()
		if got := <-done; got != resultKept {
			t.Errorf("the run ended %q", got)
		}
		synctest.Wait()
		a.wantState(req, idempotency.Complete, 2)
		wantReplay(t, b.claim(impatient(req)), forced.ExecutionID(), created("second"), false)
	})
}

// The store loses a forced claim, and another request runs and keeps its response:
// the claim that is written again must not replace that response.
func TestForcedClaimIsNeverForcedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		wantEnd(t, a.run(req), created("first"), resultKept)
		forced := a.run(forcing(req))
		lose(t, store, req)
		resume := a.link.pause("claim")
		time.Sleep(someLease / 3)
		synctest.Wait() // the renewal's claim is under way
		other := b.run(req)
		wantEnd(t, other, created("other"), resultKept)
		resume()
		synctest.Wait()
		b.wantState(req, idempotency.Complete, 1)
		wantEnd(t, forced, created("second"), resultFenced)
		wantReplay(t, a.claim(req), other.ExecutionID(), created("other"), false)
	})
}

// A forced claim that the store executes again after its run has ended changes nothing.
func TestForcedClaimExecutedAgainAfterItsRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a := newReplica(t, store)
		wantEnd(t, a.run(req), created("first"), resultKept)
		run := a.run(forcing(req))
		wantEnd(t, run, created("second"), resultKept)
		got, err := store.Claim(context.Background(), idempotency.Claim{
			Key: req.Key, Token: run.Record().Token, ExecutionID: run.ExecutionID(),
			Fingerprints: []string{"body:one"}, Terms: req.Policy.Terms, Force: true,
		})
		if err != nil || got.Verdict != idempotency.ReplayKept {
			t.Errorf("the copy got %v, %v", got.Verdict, err)
		}
		a.wantState(req, idempotency.Complete, 2)
		wantReplay(t, a.claim(req), run.ExecutionID(), created("second"), false)
	})
}
