package engine_test

import (
	"context"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// servers are a master and a stale replica, to which operations go after the failover.
type servers struct {
	idempotency.Store // the master
	behind            idempotency.Store
	failedOver        atomic.Bool
}

func newServers(t *testing.T) *servers { return &servers{Store: newShared(t), behind: newShared(t)} }

// now returns the server to which operations go.
func (s *servers) now() idempotency.Store {
	if s.failedOver.Load() {
		return s.behind
	}
	return s.Store
}

func (s *servers) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	return s.now().Claim(ctx, c)
}

func (s *servers) Renew(ctx context.Context, c idempotency.Claim) error { return s.now().Renew(ctx, c) }

func (s *servers) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	return s.now().Settle(ctx, key, claimed, settlement)
}

func (s *servers) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	return s.now().Lookup(ctx, key)
}

func (s *servers) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	return s.now().Response(ctx, key, token)
}

// replicate copies the record of the key, which must be released, to the replica.
func (s *servers) replicate(t *testing.T, req engine.Request) {
	t.Helper()
	record, _, err := s.Store.Lookup(t.Context(), req.Key)
	if err != nil || record == nil || record.State != idempotency.Released {
		t.Fatalf("the master has %+v, %v", record, err)
	}
	claimed, err := s.behind.Claim(t.Context(), idempotency.Claim{Key: req.Key, Token: record.Token, ExecutionID: record.ExecutionID, Terms: req.Policy.Terms})
	if err == nil {
		err = s.behind.Settle(t.Context(), req.Key, claimed.Record, idempotency.Settlement{
			State: idempotency.Released, Counted: true, Retention: time.Hour,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// failover is a run in flight over a released record, on the master alone, and then a
// failover to the replica, which has only that record.
func failover(t *testing.T, req engine.Request) (a, b *replica, run *engine.Run) {
	store := newServers(t)
	a, b = newReplica(t, store), newReplica(t, store)
	wantEnd(t, a.run(req), broken("out of order"), resultReleased)
	store.replicate(t, req)
	run = a.run(req)
	if run.Attempt() != 2 {
		t.Fatalf("it is attempt %d", run.Attempt())
	}
	store.failedOver.Store(true)
	return a, b, run
}

// The promoted replica is stale: it has the record of the previous run. The run in flight loses
// nothing.
func TestRunOutlivesAFailoverToAnOldRecord(t *testing.T) {
	for name, wait := range map[string]time.Duration{"it ends before a renewal": 0, "its claim is renewed": someLease / 2, "for long": 10 * someLease} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				req := someRequest()
				a, b, run := failover(t, req)
				waiting := a.waiters(2, req)
				synctest.Wait()
				if time.Sleep(wait); wait > 0 {
					wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
					waiting = a.waiters(2, req)
					synctest.Wait()
				}
				wantEnd(t, run, created("two"), resultKept)
				for _, w := range waiting {
					wantReplay(t, w.decision(), run.ExecutionID(), created("two"), true)
				}
				wantReplay(t, b.claim(req), run.ExecutionID(), created("two"), false)
				a.wantState(req, idempotency.Complete, 2)
			})
		})
	}
}

// The same if the run releases or holds the key.
func TestEndsAfterAFailoverToAnOldRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		req := someRequest()
		a, _, run := failover(t, req)
		wantEnd(t, run, broken("still"), resultLost)
		a.wantState(req, idempotency.Released, 1)
	})
	synctest.Test(t, func(t *testing.T) {
		req := holding()
		a, b, run := failover(t, req)
		if got := ended(run, idempotency.End{How: idempotency.Unknown, Response: failed(502)}); got != resultHeld {
			t.Errorf("the run ended %q", got)
		}
		a.wantState(req, idempotency.Held, 2)
		wantRefusal(t, b.claim(req), engine.ReasonHeld, run.ExecutionID())
	})
}

// Once another request has claimed the key on the new master, the run has lost it, also
// if that one has released the key again.
func TestRunIsFencedAfterAFailover(t *testing.T) {
	for name, then := range map[string]func(t *testing.T, other *engine.Run){
		"in flight": func(*testing.T, *engine.Run) {},
		"released":  func(t *testing.T, other *engine.Run) { wantEnd(t, other, broken("again"), resultReleased) },
		"not sent": func(t *testing.T, other *engine.Run) {
			if got := ended(other, idempotency.End{How: idempotency.NotSent}); got != resultNotSent {
				t.Errorf("the other run ended %q", got)
			}
		},
		"kept": func(t *testing.T, other *engine.Run) { wantEnd(t, other, created("three"), resultKept) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				req := someRequest()
				_, b, run := failover(t, req)
				other := b.run(req)
				then(t, other)
				before := b.stored(req)
				wantEnd(t, run, created("two"), resultFenced)
				if after := b.stored(req); !reflect.DeepEqual(*after, *before) {
					t.Errorf("the late owner changed %+v into %+v", before, after)
				}
				if name == "in flight" {
					wantEnd(t, other, created("three"), resultKept)
				}
			})
		})
	}
}
