package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// failed returns the error that the client of a run gets if no upstream has answered.
func failed(status int) *idempotency.Response {
	return &idempotency.Response{Status: status, Failed: true}
}

func TestWaitersGetTheAnswerThatReleases(t *testing.T) {
	for name, test := range map[string]struct {
		end      idempotency.End
		response *idempotency.Response
		result   result
		next     int // the attempt of the next run
	}{
		"answered 500": {
			idempotency.End{How: idempotency.Answered}, broken("out of order"),
			resultReleased, 2,
		},
		"unknown": {
			idempotency.End{How: idempotency.Unknown}, failed(504),
			resultReleased, 2,
		},
		"not sent": {
			idempotency.End{How: idempotency.NotSent}, failed(502),
			resultNotSent, 1,
		},
		"asked for by the upstream": {
			idempotency.End{How: idempotency.Answered, Retention: new(time.Duration)}, created("try again"),
			resultReleased, 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				all := append(a.waiters(3, req), b.waiters(3, req)...)
				synctest.Wait()
				if got := ended(run, withResponse(test.end, test.response)); got != test.result {
					t.Errorf("the run ended %q, want %q", got, test.result)
				}
				for _, w := range all {
					wantReplay(t, w.decision(), run.ExecutionID(), test.response, true)
				}
				a.wantState(req, idempotency.Released, test.next-1)
				for _, r := range []*replica{b, a} {
					again := r.run(req)
					if again.Attempt() != test.next {
						t.Errorf("the next attempt is %d, want %d", again.Attempt(), test.next)
					}
					if again.ExecutionID() == run.ExecutionID() {
						t.Error("two runs have one execution ID")
					}
					ended(again, idempotency.End{How: idempotency.NotSent, Response: failed(502)})
				}
			})
		})
	}
}

// A request that joins while the run is in flight counts as one that waited, even if its goroutine
// first views the flight after the run has ended.
func TestAllThatCameBeforeTheEndGetTheAnswer(t *testing.T) {
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

func TestEndThatIsUnknownHoldsTheKey(t *testing.T) {
	for name, test := range map[string]struct {
		end      idempotency.End
		response *idempotency.Response
	}{
		"cut off":         {idempotency.End{How: idempotency.Unknown}, failed(502)},
		"gateway timeout": {idempotency.End{How: idempotency.Answered}, &idempotency.Response{Status: 504}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), holding()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				all := append(a.waiters(3, req), b.waiters(3, req)...)
				synctest.Wait()
				if got := ended(run, withResponse(test.end, test.response)); got != resultHeld {
					t.Errorf("the run ended %q", got)
				}
				for _, w := range all {
					wantRefusal(t, w.decision(), engine.ReasonHeld, run.ExecutionID())
				}
				for _, r := range []*replica{a, b} {
					wantRefusal(t, r.claim(req), engine.ReasonHeld, run.ExecutionID())
					wantRefusal(t, r.claim(someRequest()), engine.ReasonHeld, run.ExecutionID())
				}
				a.wantState(req, idempotency.Held, 1)
			})
		})
	}
}

func TestRetentionCountsFromTheEnd(t *testing.T) {
	for name, test := range map[string]struct {
		asked *time.Duration
		want  time.Duration
	}{
		"the handler's":  {nil, 24 * time.Hour},
		"the upstream's": {new(time.Minute), time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, req := newReplica(t, newShared(t)), someRequest()
				run := a.run(req)
				time.Sleep(3 * time.Minute)
				ended(run, idempotency.End{How: idempotency.Answered, Retention: test.asked, Response: created("one")})
				time.Sleep(test.want - time.Millisecond)
				wantReplay(t, a.claim(req), run.ExecutionID(), created("one"), false)
				time.Sleep(time.Millisecond)
				if again := a.run(req); again.Attempt() != 1 {
					t.Errorf("the attempt after the retention is %d, want 1", again.Attempt())
				}
			})
		})
	}
}

func TestLeaseIsRenewedAtAThird(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		start := time.Now()
		run := a.run(req)
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		for i, at := range a.link.times("renew") {
			if want := time.Duration(i+1) * someLease / 3; at.Sub(start) != want {
				t.Errorf("renewal %d was after %v, want %v", i+1, at.Sub(start), want)
			}
		}
		if n := a.link.count("renew"); n != 30 {
			t.Errorf("renewed %d times in 5 minutes, want 30", n)
		}
		wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
		wantEnd(t, run, created("one"), resultKept)
		time.Sleep(someLease)
		if n := a.link.count("renew"); n != 30 {
			t.Errorf("renewed %d times after the end", n-30)
		}
	})
}

func TestLeaseOutlivesFailedRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		time.Sleep(time.Second)
		a.link.fail(hung, "renew")
		time.Sleep(20 * time.Second) // two renewals fail
		a.link.fail(works)
		time.Sleep(time.Minute)
		wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
		wantEnd(t, run, created("one"), resultKept)
	})
}

// The store is unavailable while two renewals are due, and available for the last third of the lease.
// The engine renews in that third, before the lease lapses.
func TestLeaseIsRenewedWhenTheStoreIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		start, run := time.Now(), a.run(req)
		until := func(end time.Duration) { time.Sleep(time.Until(start.Add(end))) }
		until(someLease/3 - 100*time.Millisecond)
		a.link.fail(refused, "renew")
		until(2*someLease/3 + 100*time.Millisecond)
		a.link.fail(works)
		asked := a.link.count("renew")
		if pauses := int(someLease / 3 / time.Second); asked > pauses+2 {
			t.Errorf("the store was asked %d times within %s", asked, someLease/3)
		}
		until(someLease - time.Second)
		if a.link.count("renew") == asked {
			t.Error("the store is back for a third of the lease, and was not asked")
		}
		until(someLease + time.Second)
		wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
		wantEnd(t, run, created("one"), resultKept)
	})
}
