package engine_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A request that joins while the run is in flight counts as one that waited, even if its goroutine
// first views the flight after the run has ended.
func TestRequestsBeforeTheEndGetTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		const n = 200
		resume := a.link.pause("claim")
		ran := make(chan string, n)
		decided := make(chan engine.Decision, n)
		for range n {
			go func() {
				d, _ := a.Claim(context.Background(), req)
				if run, ok := d.(*engine.Run); ok {
					end(run, broken("out of order"))
					ran <- run.ExecutionID()
					return
				}
				decided <- d
			}()
		}
		synctest.Wait()
		resume()
		synctest.Wait()
		if len(ran) != 1 {
			t.Fatalf("%d requests ran, want 1", len(ran))
		}
		executionID := <-ran
		for range n - 1 {
			wantReplay(t, <-decided, executionID, broken("out of order"), true)
		}
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
		waiting := a.claimLater(context.Background(), req)
		synctest.Wait()
		resume()
		if <-panicked == nil {
			t.Error("the panic was swallowed")
		}
		wantRefusal(t, waiting.decision(), engine.ReasonUnavailable, "")
		a.link.fail(works)
		run := a.run(req)
		// Over the limit of runs, the store is asked in another way.
		a.Configure(engine.Settings{Limits: engine.Limits{InFlight: 1}})
		a.link.fail(panics, "lookup")
		go func() {
			defer func() { panicked <- recover() }()
			_, _ = a.Claim(context.Background(), withKey(req, "new"))
		}()
		if <-panicked == nil {
			t.Error("the panic was swallowed")
		}
		a.link.fail(works)
		as[engine.Refusal](t, a.claim(withKey(req, "new")))
		a.Configure(engine.Settings{})

		// The same at the end of a run: neither its waiters nor later requests may wait
		// forever.
		waiting = a.claimLater(context.Background(), req)
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
func TestMissingKeptResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, mute{newShared(t)}), someRequest()
		wantEnd(t, a.run(req), created("one"), resultKept)
		wantRefusal(t, a.claim(req), engine.ReasonUnreadable, "")
	})
}

// Claims that start at about the same time share a deadline, which is at most 2 % early.
func TestClaimsShareADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, timeout := newReplica(t, newShared(t)), storeTimeout
		a.link.fail(hung)
		var all []*waiter
		for n := range 100 {
			all = append(all, a.claimLater(context.Background(), withKey(someRequest(), strconv.Itoa(n))))
			time.Sleep(timeout / 200)
		}
		for _, w := range all {
			wantRefusal(t, w.decision(), engine.ReasonUnavailable, "")
			if w.took > timeout || w.took <= timeout*49/50 {
				t.Errorf("it took %v, want %v or up to 2 %% less", w.took, timeout)
			}
		}
		a.link.fail(works)
	})
}
