package engine_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func TestOperators(t *testing.T) {
	play(t, []scene{
		{"release a key that is held, held since its owner crashed, complete, or complete with its last attempt", "hold attempts=1", `
			{a runs run; run ends unknown held; a refuses held run|b runs run; b closes; sleep 30s; a refuses held run|
			a runs run; run ends 201 kept|a runs run; run ends 500 kept}; a releases; a has released 1
			a runs next attempt=2; next ends 201 kept; a replays next`},
		{"fence a late owner by releasing or completing its key", "hold", `
			a runs late; a store refused renew; sleep 1m; b {releases|completes late done}; a store works; late ends 201 fenced
			{b runs next; next ends 201 kept|a replays done}`},
		{"leave a live run alone, and may forget a key after it", "", `
			a releases gone; a forgets gone; a runs run; a releases in_flight; a forgets in_flight; run ends 201 kept; a forgets
			a runs next attempt=1`},
		{"are logged with the state as they saw it, not as it is stored", "", `
			b runs run {|hold}; b store refused renew; sleep 1m; a {releases|releases}
			a logs 1 an operator released state={lapsed|held} execution_id=run`},
		{"are logged when they forget or complete a key", "", `
			b runs run {|hold|}; b store refused renew; sleep 1m; a {forgets|forgets|completes run done}
			a logs 1 an operator {forgot|forgot|completed} state={lapsed|held|lapsed} execution_id=run`},
	})
}

// An operator completes a key that is exhausted: its duplicates are not refused any more. The record
// and the log say who did it.
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
			must(t, r.Complete(ctx, req.Key, created("by hand"), idempotency.Precondition{}))
			wantReplay(t, r.claim(req), run.ExecutionID(), created("by hand"), false)
			storetest.Equal(t, r.stored(req).Reason, "completed by "+by, "the reason is", by)
			wantErr(t, r.Complete(ctx, req.Key, created("again"), idempotency.Precondition{}), idempotency.ErrComplete)
			must(t, r.Release(ctx, req.Key, idempotency.Precondition{}))
			storetest.Equal(t, r.stored(req).Reason, "released by "+by, "the reason is", by)
			for _, act := range []string{"an operator completed a key", "an operator released a key"} {
				for _, line := range r.logged.FilterMessage(act).All() {
					fields := line.ContextMap()
					user, _ := fields["user"].(string)
					storetest.Equal(t, fmt.Sprint(user, " at ", fields["remote"]), operator.User+" at "+operator.Remote, act)
				}
			}
			r.logged.TakeAll()
		}
	})
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
		wantErr(t, a.Ready(ctx), nil)
	})
}

// lossy is a store that has lost its responses, as a Redis does that evicts them.
type lossy struct{ idempotency.Store }

func (lossy) Response(context.Context, idempotency.Key, string) (*idempotency.Response, error) {
	return nil, nil
}

// A response that a complete record has and the store has not is an error, for operators and replays: it
// is not that there is none.
func TestResponseThatTheStoreHasLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, req := newReplica(t, lossy{newShared(t)}), someRequest()
		wantEnd(t, r.run(req), created("paid"), resultKept)
		record := r.stored(req)
		if got, err := r.Response(t.Context(), req.Key, record); got != nil || !isUnreadable(err) {
			t.Errorf("got %+v, %v", got, err)
		}
		must(t, r.Release(t.Context(), req.Key, idempotency.Precondition{}))
		if got, err := r.Response(t.Context(), req.Key, record); got != nil || err != nil {
			t.Errorf("of a key that was released meanwhile: %+v, %v", got, err)
		}
	})
}
