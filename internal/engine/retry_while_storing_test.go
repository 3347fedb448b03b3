package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// While the settlement of a run is being stored, or its reply is under way, waiters on other replicas
// may have the response already. So a request that arrives now may be a retry, and must not get a
// response that releases the key.
func TestRetryThatComesWhileTheEndIsStored(t *testing.T) {
	for name, paused := range map[string]string{"before it": "settle", "after it": "reply to settle"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				early := []*waiter{a.claimLater(context.Background(), req), b.claimLater(context.Background(), req)}
				synctest.Wait()
				resume := a.link.pause(paused)
				stored := make(chan result)
				go func() { stored <- end(run, broken("out of order")) }()
				synctest.Wait()
				if paused != "settle" {
					wantReplay(t, early[1].decision(), run.ExecutionID(), broken("out of order"), true)
				}
				retry := a.claimLater(context.Background(), req)
				synctest.Wait()
				resume()
				if got := <-stored; got != resultReleased {
					t.Errorf("the run ended %q", got)
				}
				again := as[*engine.Run](t, retry.decision())
				for _, w := range early {
					wantReplay(t, w.decision(), run.ExecutionID(), broken("out of order"), true)
				}
				wantEnd(t, again, created("two"), resultKept)
			})
		})
	}
}

// A request that arrives while a kept response is being stored gets it, too. It does not follow a
// stream, whose status may release the key.
func TestDuplicateThatComesWhileTheAnswerIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		run := a.run(req)
		run.Stream("the stream")
		resume := a.link.pause("settle")
		stored := make(chan result)
		go func() { stored <- end(run, created("one")) }()
		synctest.Wait()
		w := a.claimLater(context.Background(), req)
		reused := req
		reused.Fingerprint = "body:two"
		wantRefusal(t, a.claim(reused), engine.ReasonReused, run.ExecutionID())
		synctest.Wait()
		if w.decided() {
			t.Errorf("decided %+v before the end is stored", w.decision())
		}
		resume()
		wantReplay(t, w.decision(), run.ExecutionID(), created("one"), true)
		if got := <-stored; got != resultKept {
			t.Errorf("the run ended %q", got)
		}
	})
}

// A forced run that took longer than its first lease keeps nothing. A request that arrives while that
// is being stored gets the previous response, which counts again.
func TestDuplicateThatComesWhileAForcedRunLeavesTheResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), holding()
		kept := a.run(req)
		wantEnd(t, kept, created("one"), resultKept)
		run := a.run(forcing(req))
		time.Sleep(3 * someLease)
		resume := a.link.pause("settle")
		stored := make(chan result)
		go func() { stored <- end(run, broken("out of order")) }()
		synctest.Wait()
		w := a.claimLater(context.Background(), req)
		synctest.Wait()
		resume()
		<-stored
		wantReplay(t, w.decision(), kept.ExecutionID(), created("one"), false)
	})
}

// A run on another replica that took longer than its first lease releases its key, and the next run
// claims it before a poll finds the end. A request that arrived during that poll waits for the second
// run: the key is not held.
func TestDuplicateThatComesDuringTheLookAndAfterTheNextClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), holding()
		req.Wait = time.Hour
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		early := b.claimLater(context.Background(), req)
		time.Sleep(3 * someLease)
		resume := b.link.pause("lookup")
		time.Sleep(2 * time.Second) // b polls
		wantEnd(t, run, broken("out of order"), resultReleased)
		second := a.run(req)
		late := b.claimLater(context.Background(), req)
		synctest.Wait()
		resume()
		wantReplay(t, early.decision(), run.ExecutionID(), broken("out of order"), true)
		synctest.Wait()
		if late.decided() {
			t.Errorf("decided %+v beside a run in flight", late.decision())
		}
		wantEnd(t, second, created("two"), resultKept)
		wantReplay(t, late.decision(), second.ExecutionID(), created("two"), true)
	})
}
