package engine_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lostReplies are the ways in which a claim can be in doubt.
var lostReplies = map[string]fault{
	"never executed": hung,
	"executed":       replyLost,
	"executed later": executedLater,
	"executed twice": twice,
}

func TestClaimInDoubtIsWithdrawn(t *testing.T) {
	for name, how := range lostReplies {
		for choice, req := range map[string]engine.Request{"release": someRequest(), "hold": holding()} {
			t.Run(name+" under "+choice, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newReplica(t, newShared(t))
					a.link.fail(how, "claim")
					w := a.waiters(3, req)
					for _, w := range w {
						wantRefusal(t, w.decision(), engine.ReasonUnavailable, "")
						if w.took != storeTimeout {
							t.Errorf("refused after %v", w.took)
						}
					}
					a.link.recover()
					time.Sleep(2 * idempotency.ClaimTimeout)
					a.drain()
					if record := a.stored(req); record != nil {
						a.wantState(req, idempotency.Released, 0)
					}
					if run := a.run(req); run.Attempt() != 1 {
						t.Errorf("the first attempt is %d", run.Attempt())
					}
				})
			})
		}
	}
}

// The client that was refused sends its request again. The claim in doubt must not
// keep that request from running.
func TestRetryRunsOverAClaimInDoubt(t *testing.T) {
	for name, how := range lostReplies {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), holding()
				a, b := newReplica(t, store), newReplica(t, store)
				a.link.fail(how, "claim")
				wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
				a.link.recover()
				run := b.run(req)
				time.Sleep(2 * idempotency.ClaimTimeout)
				b.wantState(req, idempotency.InFlight, 1)
				wantEnd(t, run, created("one"), resultKept)
				a.drain()
				wantReplay(t, a.claim(req), run.ExecutionID(), created("one"), false)
			})
		})
	}
}

// A claim whose reply was lost is executed only after a retry of its request has run
// and has released the key.
func TestClaimIsExecutedAfterAReleasedRetry(t *testing.T) {
	for _, how := range []fault{executedLater, twice} {
		synctest.Test(t, func(t *testing.T) {
			store, req := newShared(t), holding()
			a, b := newReplica(t, store), newReplica(t, store)
			a.link.fail(how, "claim")
			wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
			a.link.recover()
			wantEnd(t, b.run(req), broken("out of order"), resultReleased)
			time.Sleep(2 * idempotency.ClaimTimeout)
			a.drain()
			b.wantState(req, idempotency.Released, 1)
			if run := b.run(req); run.Attempt() != 2 {
				t.Errorf("the second attempt is %d", run.Attempt())
			}
		})
	}
}

func TestTakeoverInDoubtKeepsTheAttempts(t *testing.T) {
	for name, how := range lostReplies {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				a, b := newReplica(t, store), newReplica(t, store)
				wantEnd(t, a.run(req), broken("out of order"), resultReleased)
				a.run(req)
				a.crash() // while attempt 2 is in flight
				time.Sleep(someLease)
				b.link.fail(how, "claim")
				wantRefusal(t, b.claim(req), engine.ReasonUnavailable, "")
				b.link.recover()
				time.Sleep(2 * idempotency.ClaimTimeout)
				b.drain()
				if run := b.run(req); run.Attempt() != 3 {
					t.Errorf("the next attempt is %d, want 3", run.Attempt())
				}
			})
		})
	}
}

func TestWithdrawingWaitsForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), holding()
		a.link.fail(hung)
		a.link.fail(replyLost, "claim")
		wantRefusal(t, a.claim(req), engine.ReasonUnavailable, "")
		time.Sleep(time.Hour)
		a.wantState(req, idempotency.InFlight, 1)
		a.link.recover()
		a.drain()
		a.wantState(req, idempotency.Released, 0)
	})
}

// TestWithdrawingEndsWithTheClaim has a store that never comes back. The engine is idle when no
// claim in doubt can have an effect any more, and its store can be closed. Until then it logs a
// warning at an interval.
func TestWithdrawingEndsWithTheClaim(t *testing.T) {
	release := someRequest()
	release.Policy.Retention = time.Hour
	hold, attempts := release, release
	hold.Policy.Hold, attempts.Policy.MaxAttempts = true, 3
	for name, test := range map[string]struct {
		req    engine.Request
		effect time.Duration
	}{
		"release":      {release, someLease},
		"hold":         {hold, time.Hour},
		"max_attempts": {attempts, time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				core, logs := observer.New(zap.WarnLevel)
				options, broken := someOptions(), newLink(newShared(t))
				options.Logger = zap.New(core)
				e := engine.New(broken, options)
				defer func() { _ = e.Close() }()
				broken.fail(hung)
				for range 3 {
					if d, err := e.Claim(t.Context(), test.req); err != nil {
						t.Fatalf("%v, %v", d, err)
					}
				}
				time.Sleep(test.effect - time.Second)
				if e.Idle() {
					t.Error("idle while the claims still have an effect")
				}
				time.Sleep(10 * time.Second)
				if !e.Idle() {
					t.Error("not idle, although the claims have no effect any more")
				}
				if n, max := logs.Len(), 2+int(test.effect/(5*time.Minute)); n == 0 || n > max {
					t.Errorf("%d warnings, want at most %d", n, max)
				}
			})
		})
	}
}

// keyed returns a request with the key number n.
func keyed(n int) engine.Request {
	req := holding()
	req.Key = idempotency.Identity{ID: strconv.Itoa(n)}.Key()
	return req
}

func TestDamagedRecordDoesNotKeepOthersInDoubt(t *testing.T) {
	damaged := &idempotency.UnreadableError{Where: "dedup:0", Err: errors.New("it is cut off")}
	for name, err := range map[string]error{"damaged": damaged, "out of reach": errRefused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newReplica(t, newShared(t))
				a.link.fail(replyLost, "claim")
				a.link.failKey(keyed(0).Key, err)
				for n := range 5 {
					wantRefusal(t, a.claim(keyed(n)), engine.ReasonUnavailable, "")
				}
				a.link.recover()
				time.Sleep(10 * time.Second)
				for n := 1; n < 5; n++ {
					a.wantState(keyed(n), idempotency.Released, 0)
				}
				if errors.Is(err, errRefused) {
					a.link.failKey(idempotency.Key{}, nil)
				}
				a.drain()
			})
		})
	}
}

// One lost connection leaves many claims in doubt. The engine withdraws them concurrently, up to
// maxConcurrentWithdrawals.
func TestManyClaimsAreWithdrawnTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		a.link.fail(replyLost, "claim")
		const claims = 100
		for n := range claims {
			a.claimLater(context.Background(), keyed(n))
		}
		a.link.failWith(errRefused, "settle")
		// Between two rounds: of one that begins now, some calls would be counted before.
		time.Sleep(2*storeTimeout + 250*time.Millisecond)
		before := a.link.count("settle")
		resume := a.link.pause("settle")
		a.link.failWith(nil, "settle")
		time.Sleep(time.Second)
		if n := a.link.count("settle") - before; n < 10 || n > claims/2 {
			t.Errorf("%d of %d claims are being withdrawn, want some at the same time, and not all", n, claims)
		}
		resume()
		a.link.recover()
		time.Sleep(time.Second)
		for n := range claims {
			a.wantState(keyed(n), idempotency.Released, 0)
		}
		a.drain()
	})
}
