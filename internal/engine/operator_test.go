package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestOperatorReleasesAKey(t *testing.T) {
	failed := &idempotency.Response{Status: 504, Failed: true}
	for name, block := range map[string]func(t *testing.T, r *replica, req engine.Request){
		"held": func(t *testing.T, r *replica, req engine.Request) {
			ended(r.run(req), idempotency.End{How: idempotency.Unknown, Response: failed})
			as[engine.Refusal](t, r.claim(req))
		},
		"held since its owner crashed": func(t *testing.T, r *replica, req engine.Request) {
			crashed := newReplica(t, r.link.Store)
			crashed.run(req)
			_ = crashed.Close()
			time.Sleep(someLease)
			as[engine.Refusal](t, r.claim(req))
		},
		"complete": func(t *testing.T, r *replica, req engine.Request) {
			wantEnd(t, r.run(req), created("first"), resultKept)
		},
		"complete with the last attempt": func(t *testing.T, r *replica, req engine.Request) {
			wantEnd(t, r.run(req), broken("last"), resultKept)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, req := newReplica(t, newShared(t)), holding()
				req.Policy.MaxAttempts = 1
				block(t, r, req)
				before := r.stored(req)
				if err := r.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
					t.Fatal(err)
				}
				r.wantState(req, idempotency.Released, 1)
				if after := r.stored(req); after.ExecutionID != before.ExecutionID || after.Token == before.Token {
					t.Errorf("it left %+v of %+v", after, before)
				}
				run := r.run(req)
				if run.Attempt() != 2 {
					t.Errorf("the run of the released key is attempt %d, want 2", run.Attempt())
				}
				wantEnd(t, run, created("second"), resultKept)
				wantReplay(t, r.claim(req), run.ExecutionID(), created("second"), false)
			})
		})
	}
}

// A late owner comes back after an operator has released or completed its key.
func TestLateOwnerOfAChangedKeyIsFenced(t *testing.T) {
	for _, completes := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			store, req := newShared(t), holding()
			a, b := newReplica(t, store), newReplica(t, store)
			late := a.run(req)
			a.link.fail(refused, "renew")
			time.Sleep(2 * someLease)
			var err error
			if completes {
				err = b.Complete(context.Background(), req.Key, created("by hand"), idempotency.Precondition{})
			} else {
				err = b.Release(context.Background(), req.Key, idempotency.Precondition{})
			}
			if err != nil {
				t.Fatal(err)
			}
			a.link.recover()
			wantEnd(t, late, created("late"), resultFenced)
			if completes {
				wantReplay(t, a.claim(req), late.ExecutionID(), created("by hand"), false)
			} else {
				wantEnd(t, b.run(req), created("second"), resultKept)
			}
		})
	}
}

// An operator completes a key that is exhausted: its duplicates are not refused any more. The record
// says who did it.
func TestOperatorCompletesAnExhaustedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		req.Policy.MaxAttempts = 1
		run := r.run(req)
		ended(run, idempotency.End{How: idempotency.Unknown, Response: &idempotency.Response{Status: 504, Failed: true}})
		wantRefusal(t, r.claim(req), engine.ReasonExhausted, run.ExecutionID())
		for by, operator := range map[string]engine.Operator{
			"alice":                  {User: "alice", Remote: "192.0.2.1:4711"},
			"192.0.2.1":              {Remote: "192.0.2.1:4711"},
			"2001:db8::1":            {Remote: "[2001:db8::1]:4711"},
			"unix socket /run/admin": {Remote: "unix socket /run/admin"},
			"an operator":            {},
		} {
			ctx := engine.ByOperator(context.Background(), operator)
			if err := r.Complete(ctx, req.Key, created("by hand"), idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			wantReplay(t, r.claim(req), run.ExecutionID(), created("by hand"), false)
			if got := r.stored(req).Reason; got != "completed by "+by {
				t.Errorf("the reason is %q, want that it was completed by %s", got, by)
			}
			if err := r.Complete(ctx, req.Key, created("again"), idempotency.Precondition{}); !errors.Is(err, idempotency.ErrComplete) {
				t.Errorf("completed twice: %v", err)
			}
			if err := r.Release(ctx, req.Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			if got := r.stored(req).Reason; got != "released by "+by {
				t.Errorf("the reason is %q, want that it was released by %s", got, by)
			}
		}
	})
}

func TestOperatorLeavesALiveRunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, newShared(t)), someRequest()
		if err := r.Release(context.Background(), req.Key, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrGone) {
			t.Errorf("freeing an unknown key: %v", err)
		}
		if err := r.Forget(context.Background(), req.Key, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrGone) {
			t.Errorf("forgetting an unknown key: %v", err)
		}
		run := r.run(req)
		if err := r.Release(context.Background(), req.Key, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("freeing a key in flight: %v", err)
		}
		if err := r.Forget(context.Background(), req.Key, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("forgetting a key in flight: %v", err)
		}
		wantEnd(t, run, created("first"), resultKept)
		if err := r.Forget(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
			t.Errorf("forgetting a complete key: %v", err)
		}
		if again := r.run(req); again.Attempt() != 1 {
			t.Errorf("a forgotten key's run is attempt %d", again.Attempt())
		}
	})
}

// The log of an operator's action has the state as the operator saw it, not as it is stored.
func TestOperatorsActsAreLoggedAsSeen(t *testing.T) {
	for what, act := range map[string]func(*engine.Engine, idempotency.Key) error{
		"released": func(e *engine.Engine, key idempotency.Key) error {
			return e.Release(context.Background(), key, idempotency.Precondition{})
		},
		"completed": func(e *engine.Engine, key idempotency.Key) error {
			return e.Complete(context.Background(), key, created("by hand"), idempotency.Precondition{})
		},
		"forgot": func(e *engine.Engine, key idempotency.Key) error {
			return e.Forget(context.Background(), key, idempotency.Precondition{})
		},
	} {
		for state, req := range map[string]engine.Request{"lapsed": someRequest(), "held": holding()} {
			t.Run(what+", "+state, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store := newShared(t)
					crashed := newReplica(t, store)
					run := crashed.run(req)
					crashed.link.fail(refused, "renew")
					time.Sleep(2 * someLease)
					core, logged := observer.New(zap.WarnLevel)
					options := someOptions()
					options.Logger = zap.New(core)
					e := engine.New(store, options)
					defer e.Close()
					if err := act(e, req.Key); err != nil {
						t.Fatal(err)
					}
					lines := logged.FilterMessageSnippet("an operator " + what).All()
					if len(lines) != 1 || lines[0].ContextMap()["state"] != state || lines[0].ContextMap()["execution_id"] != run.ExecutionID() {
						t.Errorf("it is logged as %v, want the state %s", lines, state)
					}
				})
			})
		}
	}
}

// The timeout of the store applies even if the caller allows more time.
func TestHungStoreIsNotReadyWithinItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		a.link.fail(hung)
		ctx, cancel := context.WithTimeout(t.Context(), 10*storeTimeout)
		defer cancel()
		asked := time.Now()
		if err, took := a.Ready(ctx), time.Since(asked); !errors.Is(err, context.DeadlineExceeded) || took != storeTimeout {
			t.Errorf("%v after %v, want that it does not answer after %v", err, took, storeTimeout)
		}
		a.link.fail(works)
		if err := a.Ready(ctx); err != nil {
			t.Errorf("it answers again: %v", err)
		}
	})
}
