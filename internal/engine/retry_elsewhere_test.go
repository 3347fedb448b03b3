package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A run on replica a releases its key, and the wake-up of replica b, where a request waits, is lost. A
// request that arrives at b after the end runs; only requests from before it get the response.
func TestRetryElsewhereRuns(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Millisecond, 400 * time.Millisecond} {
		t.Run(pause.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				b.link.dropWakeUps()
				run := a.run(req)
				early := b.claimLater(context.Background(), req)
				time.Sleep(2300 * time.Millisecond) // to a moment between two polls
				late := b.waiters(3, req)
				synctest.Wait() // b polls
				wantEnd(t, run, broken("out of order"), resultReleased)
				time.Sleep(pause)
				retry := as[*engine.Run](t, b.claim(req))
				if retry.Attempt() != 2 {
					t.Errorf("the retry is attempt %d, want 2", retry.Attempt())
				}
				for _, w := range append(late, early) {
					wantReplay(t, w.decision(), run.ExecutionID(), broken("out of order"), true)
				}
				wantEnd(t, retry, created("two"), resultKept)
			})
		})
	}
}

// The poll that finds the end may have started before a retry arrives.
func TestRetryThatComesDuringTheLook(t *testing.T) {
	for name, paused := range map[string]string{"before it": "lookup", "after it": "reply to lookup", "its response": "response"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				early := b.claimLater(context.Background(), req)
				synctest.Wait()
				resume := b.link.pause(paused)
				wantEnd(t, run, broken("out of order"), resultReleased)
				synctest.Wait() // b is notified, and polls
				retry := b.claimLater(context.Background(), req)
				synctest.Wait()
				resume()
				again := as[*engine.Run](t, retry.decision())
				wantReplay(t, early.decision(), run.ExecutionID(), broken("out of order"), true)
				wantEnd(t, again, created("two"), resultKept)
			})
		})
	}
}

// A retry arrives during the claim of another request, which still finds the run in flight.
func TestRetryThatComesDuringTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		b.link.dropWakeUps()
		run := a.run(req)
		resume := b.link.pauseReply("claim")
		early := b.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, broken("out of order"), resultReleased)
		retry := b.claimLater(context.Background(), req)
		synctest.Wait()
		resume()
		again := as[*engine.Run](t, retry.decision())
		wantReplay(t, early.decision(), run.ExecutionID(), broken("out of order"), true)
		wantEnd(t, again, created("two"), resultKept)
	})
}

// A kept response is for all requests, whenever they arrived.
func TestKeptAnswerIsForLateOnesToo(t *testing.T) {
	for name, forced := range map[string]bool{"first run": false, "forced run": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				b.link.dropWakeUps()
				first := req
				if first.Force = forced; forced {
					wantEnd(t, a.run(req), created("zero"), resultKept)
				}
				run := a.run(first)
				early := b.claimLater(context.Background(), req)
				time.Sleep(2300 * time.Millisecond)
				wantEnd(t, run, created("one"), resultKept)
				wantReplay(t, b.claim(req), run.ExecutionID(), created("one"), true)
				wantReplay(t, early.decision(), run.ExecutionID(), created("one"), true)
			})
		})
	}
}

// Many requests that arrive together, or during a poll, cost one more poll. Those that are refused at
// once cost none.
func TestWaitersShareTheirLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		all := b.waiters(1, req)
		synctest.Wait()
		resume := b.link.pause("lookup")
		for range 5 {
			all = append(all, b.waiters(20, req)...)
			synctest.Wait()
		}
		resume()
		synctest.Wait()
		if n := b.link.count("lookup"); n != 2 {
			t.Errorf("101 waiters made %d polls, want 2", n)
		}
		reused := req
		reused.Fingerprint = "body:two"
		wantRefusal(t, b.claim(reused), engine.ReasonReused, run.ExecutionID())
		synctest.Wait()
		if n := b.link.count("lookup"); n != 2 {
			t.Errorf("a refusal made %d polls", n-2)
		}
		if got := ended(run, idempotency.End{How: idempotency.Unknown, Response: failed(502)}); got != resultReleased {
			t.Errorf("the run ended %q", got)
		}
		for _, w := range all {
			wantReplay(t, w.decision(), run.ExecutionID(), failed(502), true)
		}
	})
}

// The wake-up is lost, and the lease lapses before the next poll. The waiter still gets the response.
func TestAnswerOutlivesAShortLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		req.Policy.Lease = 300 * time.Millisecond
		a, b := newReplica(t, store), newReplica(t, store)
		b.link.dropWakeUps()
		run := a.run(req)
		w := b.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, broken("out of order"), resultReleased)
		b.link.fail(refused, "lookup")
		time.Sleep(3 * time.Second)
		b.link.fail(works)
		wantReplay(t, w.decision(), run.ExecutionID(), broken("out of order"), true)
	})
}
