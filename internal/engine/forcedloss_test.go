package engine_test

import (
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
				wantRefusal(t, b.begin(impatient(req)), engine.ReasonInFlight, forced.ExecutionID())
				ended(forced, withResponse(c.end, c.answer))
				a.drain()
				wantEnd(t, b.run(req), created("second"), resultKept)
			})
		})
	}
}

// If nobody knows how such a run ended, its key is held under `unknown hold`: the
// response from before is lost, so that it cannot stay in place of holding the key.
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
		wantRefusal(t, b.begin(req), engine.ReasonHeld, forced.ExecutionID())
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
