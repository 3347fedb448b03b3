package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// outages are the ways in which a settlement can fail to reach the store.
var outages = map[string]func(*link){
	"refused":    func(l *link) { l.fail(refused) },
	"hung":       func(l *link) { l.fail(hung) },
	"reply lost": func(l *link) { l.fail(replyLost, "settle"); l.fail(refused, "claim", "renew", "lookup", "response") },
	"full":       func(l *link) { l.failWith(idempotency.ErrFull, "settle") },
}

func (l *link) recover() {
	l.fail(works)
	l.failWith(nil, "settle")
}

// The timeout for a large response is longer than for other operations, for a small one it is not.
func TestLargeResponseHasMoreTime(t *testing.T) {
	for size, extra := range map[int]time.Duration{10: 0, 4 << 20: 4 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			a := newReplica(t, newShared(t))
			run := a.run(someRequest())
			a.link.fail(hung, "settle")
			start := time.Now()
			wantEnd(t, run, created(strings.Repeat("x", size)), resultTrying)
			if took := time.Since(start).Truncate(time.Second / 10); took != a.Timeout()+extra {
				t.Errorf("%d bytes: given up after %v, want %v", size, took, a.Timeout()+extra)
			}
			a.link.recover()
			a.drain()
		})
	}
}

func TestResponseIsStoredLater(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				waiting := a.waiters(3, req)
				synctest.Wait()
				outage(a.link)
				wantEnd(t, run, created("one"), resultTrying)
				for _, w := range waiting {
					wantReplay(t, w.decision(), run.ExecutionID(), created("one"), true)
				}
				time.Sleep(10 * time.Second)
				claims := a.link.count("claim")
				wantReplay(t, a.claim(req), run.ExecutionID(), created("one"), false)
				reused := req
				reused.Fingerprint = "body:two"
				wantRefusal(t, a.claim(reused), engine.ReasonReused, run.ExecutionID())
				if n := a.link.count("claim"); n != claims {
					t.Errorf("the store was asked %d times for what the process knows", n-claims)
				}
				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				if err := a.Drain(ctx); err == nil {
					t.Error("drained with a response still to be stored")
				}
				a.link.recover()
				a.drain()
				a.wantState(req, idempotency.Complete, 1)
				wantReplay(t, b.claim(req), run.ExecutionID(), created("one"), false)
				wantReplay(t, a.claim(req), run.ExecutionID(), created("one"), false)
				if n := a.link.count("claim"); n != claims+1 {
					t.Error("the process goes on answering for the store")
				}
			})
		})
	}
}

func TestHeldEndIsStoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), holding()
		run := a.run(req)
		a.link.fail(refused)
		if got := ended(run, idempotency.End{How: idempotency.Unknown, Response: failed(502)}); got != resultTrying {
			t.Errorf("the run ended %q", got)
		}
		wantRefusal(t, a.claim(req), engine.ReasonHeld, run.ExecutionID())
		a.link.recover()
		a.drain()
		a.wantState(req, idempotency.Held, 1)
	})
}

func TestStoringIsTriedMoreAndMoreSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		run := a.run(req)
		a.link.fail(refused)
		wantEnd(t, run, created("one"), resultTrying)
		time.Sleep(time.Minute)
		tries := a.link.times("settle")
		want := []time.Duration{100, 200, 400, 800, 1600, 3000, 3000, 3000}
		for i := range want {
			if got := tries[i+1].Sub(tries[i]); got != want[i]*time.Millisecond {
				t.Errorf("try %d came after %v, want %v", i+2, got, want[i]*time.Millisecond)
			}
		}
		a.link.recover()
		a.drain()
	})
}

// While a store has no room for a response but still renews leases, the claim must not lapse.
func TestClaimIsRenewedUntilItsResponseIsStored(t *testing.T) {
	for _, lease := range []time.Duration{2 * time.Second, someLease} {
		t.Run(lease.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				req.Policy.Lease = lease
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				a.link.failWith(idempotency.ErrFull, "settle")
				wantEnd(t, run, created("one"), resultTrying)
				for range 20 {
					wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
				}
				a.link.recover()
				a.drain()
				wantReplay(t, b.claim(req), run.ExecutionID(), created("one"), false)
			})
		})
	}
}

func TestStoreThatCameBackEmpty(t *testing.T) {
	for name, outage := range map[string]fault{"at once": works, "after an outage": refused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				lose(t, store, req)
				a.link.fail(outage)
				want := resultKept
				if outage != works {
					want = resultTrying
				}
				wantEnd(t, run, created("one"), want)
				time.Sleep(time.Minute)
				a.link.recover()
				a.drain()
				a.wantState(req, idempotency.Complete, 1)
				wantReplay(t, b.claim(req), run.ExecutionID(), created("one"), false)
			})
		})
	}
}

func TestSomebodyElseClaimedDuringTheOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		late := a.run(req)
		a.link.fail(refused)
		wantEnd(t, late, created("one"), resultTrying)
		time.Sleep(someLease)
		run := b.run(req)
		a.link.recover()
		a.drain()
		w := a.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, created("two"), resultKept)
		wantReplay(t, w.decision(), run.ExecutionID(), created("two"), true)
		b.wantState(req, idempotency.Complete, 2)
	})
}

// The same, but the store has come back empty: a new claim must not be overwritten.
func TestSomebodyElseClaimedInTheEmptyStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		first := a.run(req)
		lose(t, store, req)
		run := b.run(req)
		wantEnd(t, first, created("one"), resultFenced)
		wantEnd(t, run, created("two"), resultKept)
		wantReplay(t, a.claim(req), run.ExecutionID(), created("two"), false)
	})
}

func TestReleaseIsStoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		waiting := append(a.waiters(3, req), b.waiters(3, req)...)
		synctest.Wait()
		a.link.fail(refused)
		wantEnd(t, run, broken("out of order"), resultTrying)
		for _, w := range waiting[:3] {
			wantReplay(t, w.decision(), run.ExecutionID(), broken("out of order"), true)
		}
		// The store cannot say that the key is free.
		wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
		a.link.recover()
		// Until the end of the run is stored, the store says that the run is in flight.
		w := a.claimLater(context.Background(), req)
		for _, w := range append(waiting[3:], w) {
			wantReplay(t, w.decision(), run.ExecutionID(), broken("out of order"), true)
		}
		a.drain()
		if again := a.run(req); again.Attempt() != 2 {
			t.Errorf("the next attempt is %d, want 2", again.Attempt())
		}
	})
}

func TestStoringEndsWithTheRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		req.Policy.Retention = time.Minute
		run := a.run(req)
		a.link.fail(refused)
		start := time.Now()
		wantEnd(t, run, created("one"), resultTrying)
		a.drain()
		if took := time.Since(start); took < time.Minute || took > time.Minute+4*time.Second {
			t.Errorf("given up after %v, want a minute", took)
		}
		wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
	})
}

func TestUnsettledRunIsLeftToItsLeaseAtClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		a.link.fail(refused)
		wantEnd(t, run, created("one"), resultTrying)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.Drain(ctx); errors.Is(err, context.DeadlineExceeded) {
			t.Error("a closed engine is still busy")
		}
		time.Sleep(someLease)
		if again := b.run(req); again.Attempt() != 2 {
			t.Errorf("the next attempt is %d, want 2", again.Attempt())
		}
	})
}

// onStored is called when the response is stored, and not before.
func TestResponseIsGivenBackWhenItIsStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		calls := 0
		first := r.run(req)
		wantStored(t, first, created("first"), resultKept, func() { calls++ })
		if calls != 1 {
			t.Errorf("onStored was called %d times at once, want 1", calls)
		}
		other := req
		other.Key = idempotency.Identity{ID: "other"}.Key()
		calls = 0
		second := r.run(other)
		r.link.fail(refused, "settle")
		wantStored(t, second, created("second"), resultTrying, func() { calls++ })
		time.Sleep(time.Minute)
		if calls != 0 {
			t.Error("onStored was called before the response is stored")
		}
		r.link.recover()
		r.drain()
		synctest.Wait()
		if calls != 1 {
			t.Errorf("onStored was called %d times, want 1", calls)
		}
	})
}

// The engine also stores a settlement with a short retention, such as the refusal of a caller, after
// an outage that is longer, so that the end of the run does not become unknown.
func TestShortRetentionIsStoredLater(t *testing.T) {
	answer := idempotency.End{How: idempotency.Answered, Response: failed(401)}
	short := 10 * time.Second
	for name, test := range map[string]struct {
		end  idempotency.End
		next func(t *testing.T, b *replica, req engine.Request)
	}{
		"a refusal of the caller": {answer, func(t *testing.T, b *replica, req engine.Request) {
			wantEnd(t, b.run(req), created("two"), resultKept)
		}},
		"a retention of its own": {idempotency.End{How: idempotency.Answered, Response: created("one"), Retention: &short}, func(t *testing.T, b *replica, req engine.Request) {
			as[engine.Replay](t, b.claim(req))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), holding()
				req.Policy.ReleaseOn, _ = idempotency.ParseStatuses("5xx", "401")
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				a.link.fail(refused)
				if got := ended(run, test.end); got != resultTrying {
					t.Fatalf("the run ended %q", got)
				}
				time.Sleep(someLease + 5*time.Second)
				a.link.recover()
				a.drain()
				test.next(t, b, req)
			})
		})
	}
}

// The retention of a response that is stored late counts from the end of its run, and its record
// has the time of that end.
func TestRetentionOfALateResponseCountsFromTheRunsEnd(t *testing.T) {
	for name, outage := range outages {
		for late, kept := range map[time.Duration]time.Duration{10 * time.Second: 30 * time.Second, 50 * time.Second: 0} {
			t.Run(name+" for "+late.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, req := newReplica(t, newShared(t)), someRequest()
					req.Policy.Retention = 30 * time.Second
					run := a.run(req)
					outage(a.link)
					ended := time.Now()
					wantEnd(t, run, created("one"), resultTrying)
					time.Sleep(late)
					a.link.recover()
					a.drain()
					record, _, err := a.link.Lookup(t.Context(), req.Key)
					if err != nil || record == nil {
						t.Fatalf("the record is %+v, %v", record, err)
					}
					if off := record.Ended.Sub(ended); off < 0 || off > time.Second+storeTimeout {
						t.Errorf("it ended %s too late", off)
					}
					if off := record.Expires.Sub(ended.Add(kept)); kept > 0 && (off < 0 || off > time.Second+storeTimeout) {
						t.Errorf("it is kept for %s too long", off)
					}
				})
			})
		}
	}
}
