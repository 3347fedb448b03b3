package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// forcing returns a forced request.
func forcing(req engine.Request) engine.Request {
	req.Force = true
	return req
}

// A request that waits for a forced run gets the answer of that run, even if it is not
// kept. A request after the run gets the response that is kept by then.
func TestForcedRun(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(t *testing.T, run *engine.Run)
		waited *idempotency.Response
		kept   bool
	}{
		{"keeps its response", func(t *testing.T, run *engine.Run) {
			wantEnd(t, run, created("second"), resultKept)
		}, created("second"), true},
		{"fails", func(t *testing.T, run *engine.Run) {
			wantEnd(t, run, broken("failed"), resultReleased)
		}, broken("failed"), false},
		{"is not sent", func(t *testing.T, run *engine.Run) {
			failed := &idempotency.Response{Status: 502, Failed: true}
			if got := ended(run, idempotency.End{How: idempotency.NotSent, Response: failed}); got != resultNotSent {
				t.Errorf("the run ended %q", got)
			}
		}, &idempotency.Response{Status: 502, Failed: true}, false},
		{"ends unknown under hold", func(t *testing.T, run *engine.Run) {
			failed := &idempotency.Response{Status: 504, Failed: true}
			if got := ended(run, idempotency.End{How: idempotency.Unknown, Response: failed}); got != resultReleased {
				t.Errorf("the run ended %q", got)
			}
		}, &idempotency.Response{Status: 504, Failed: true}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			onBoth(t, func(t *testing.T, owner, other *replica) {
				req := holding()
				first := owner.run(req)
				wantEnd(t, first, created("first"), resultKept)
				run := owner.run(forcing(req))
				if run.Record().ParentID != first.ExecutionID() || run.Attempt() != 2 {
					t.Errorf("the forced run is %+v", run.Record())
				}
				plain, forced := other.waiters(3, req), other.waiters(3, forcing(req))
				synctest.Wait()
				c.end(t, run)
				for _, w := range append(plain, forced...) {
					wantReplay(t, w.decision(), run.ExecutionID(), c.waited, true)
				}
				if c.kept {
					wantReplay(t, other.claim(req), run.ExecutionID(), created("second"), false)
				} else {
					wantReplay(t, other.claim(req), first.ExecutionID(), created("first"), false)
				}
			})
		})
	}
}

// The process of a forced run crashes. Then the response that was kept before counts
// again, also under `on_unknown hold`, and another run can be forced.
func TestForcedRunOfACrashedOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), holding()
		a, b := newReplica(t, store), newReplica(t, store)
		first := a.run(req)
		wantEnd(t, first, created("first"), resultKept)
		a.run(forcing(req))
		_ = a.Close() // so that it does not renew
		time.Sleep(someLease)
		wantReplay(t, b.claim(req), first.ExecutionID(), created("first"), false)
		again := b.run(forcing(req))
		wantEnd(t, again, created("third"), resultKept)
		wantReplay(t, b.claim(req), again.ExecutionID(), created("third"), false)
	})
}

// A forced request may differ from the request whose response is kept. But while a run
// is in flight, it is a duplicate like any other, and it cannot run while its key is
// held.
func TestForcedRequestBesideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), holding()
		other := forcing(req)
		other.Fingerprint = "body:two"
		run := a.run(req)
		wantRefusal(t, a.claim(other), engine.ReasonReused, run.ExecutionID())
		wantEnd(t, run, created("first"), resultKept)
		second := a.run(other)
		wantEnd(t, second, created("second"), resultKept)
		wantRefusal(t, a.claim(req), engine.ReasonReused, second.ExecutionID())

		held := req
		held.Key = idempotency.Identity{ID: "held"}.Key()
		lost := a.run(held)
		ended(lost, idempotency.End{How: idempotency.Unknown, Response: &idempotency.Response{Status: 502, Failed: true}})
		wantRefusal(t, a.claim(forcing(held)), engine.ReasonHeld, lost.ExecutionID())
	})
}

// Not more runs reach the upstream than MaxAttempts allows. The answer of the last one
// is kept, whatever its status is. If it is unknown how the last one ended, no more
// requests run; those that waited for it get its error.
func TestMaxAttempts(t *testing.T) {
	onBoth(t, func(t *testing.T, a, b *replica) {
		req := someRequest()
		req.Policy.MaxAttempts = 3
		for n := 1; n <= 3; n++ {
			unsent := a.run(req)
			if got := ended(unsent, idempotency.End{How: idempotency.NotSent, Response: &idempotency.Response{Status: 502, Failed: true}}); got != resultNotSent {
				t.Errorf("the run ended %q", got)
			}
			run := b.run(req)
			if run.Attempt() != n {
				t.Errorf("run %d is attempt %d", n, run.Attempt())
			}
			want := resultReleased
			if n == 3 {
				want = resultKept
			}
			wantEnd(t, run, broken("still"), want)
		}
		for range 3 {
			got := as[engine.Replay](t, a.claim(req))
			if got.Response.Status != 500 || got.Record.Attempt != 3 {
				t.Errorf("replayed %d of attempt %d", got.Response.Status, got.Record.Attempt)
			}
		}

		req.Key = idempotency.Identity{ID: "unknown"}.Key()
		for range 2 {
			wantEnd(t, a.run(req), broken("still"), resultReleased)
		}
		last := a.run(req)
		waiting := b.claimLater(context.Background(), req)
		synctest.Wait()
		ended(last, idempotency.End{How: idempotency.Unknown, Response: failed(504)})
		wantReplay(t, waiting.decision(), last.ExecutionID(), failed(504), true)
		wantRefusal(t, b.claim(req), engine.ReasonExhausted, last.ExecutionID())
	})
}

// A forced request that arrives while a response is not stored yet waits until it is, and does not
// keep asking the store.
func TestForcedRequestWaitsForAPendingResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		first := r.run(req)
		r.link.fail(refused, "settle", "renew", "claim")
		wantEnd(t, first, created("first"), resultTrying)
		wantReplay(t, r.claim(req), first.ExecutionID(), created("first"), false)

		impatient := r.claimLater(context.Background(), forcing(req))
		wantRefusal(t, impatient.decision(), engine.ReasonInFlight, first.ExecutionID())
		if impatient.took != someWait {
			t.Errorf("it was refused after %v, want %v", impatient.took, someWait)
		}
		atOnce := forcing(req)
		atOnce.Wait = 0
		wantRefusal(t, r.claim(atOnce), engine.ReasonInFlight, first.ExecutionID())
		ctx, leave := context.WithCancel(context.Background())
		left := r.claimLater(ctx, forcing(req))
		synctest.Wait()
		leave()
		if <-left.done; left.err == nil {
			t.Error("a client that left got a decision")
		}

		patient := r.claimLater(context.Background(), forcing(req))
		synctest.Wait()
		r.link.recover()
		run := as[*engine.Run](t, patient.decision())
		if run.Record().ParentID != first.ExecutionID() {
			t.Errorf("the forced run is %+v", run.Record())
		}
		wantEnd(t, run, created("second"), resultKept)
	})
}

// If the body of a forced run is too large, only its status and header would be kept.
// They do not replace a whole response.
func TestForcedResponseWithoutItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		first := r.run(req)
		wantEnd(t, first, created("first"), resultKept)
		omitted := &idempotency.Response{Status: 201, Omitted: true}
		wantEnd(t, r.run(forcing(req)), omitted, resultReleased)
		wantReplay(t, r.claim(req), first.ExecutionID(), created("first"), false)
	})
}
