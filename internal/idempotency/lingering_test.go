package idempotency_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// While a response is not stored yet, its process answers duplicates. A forced
// request needs the store, and is told so at once.
func TestForcedRequestBesideAnUnstoredResponse(t *testing.T) {
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, req := newReplica(t, newShared(t)), someRequest()
				first := a.run(req)
				outage(a.link)
				wantEnd(t, first, created("first"), idempotency.ResultPending)
				other := forcing(req)
				other.Fingerprint = "body:two"
				for _, forced := range []idempotency.Request{forcing(req), other} {
					wantRefusal(t, a.begin(forced), idempotency.ReasonUnavailable, first.ExecutionID())
				}
				wantReplay(t, a.begin(req), first.ExecutionID(), created("first"), false)
				a.link.recover()
				a.drain()
				wantEnd(t, a.run(forcing(req)), created("second"), idempotency.ResultKept)
			})
		})
	}
}

// A forced run whose owner crashed may have reached the upstream, and counts.
func TestForcedRunOfACrashedOwnerCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		wantEnd(t, a.run(req), created("first"), idempotency.ResultKept)
		if n := a.run(forcing(req)).Attempt(); n != 2 {
			t.Fatalf("the forced run is attempt %d, want 2", n)
		}
		_ = a.Close() // it renews no more
		time.Sleep(someLease)
		if n := b.run(forcing(req)).Attempt(); n != 3 {
			t.Errorf("the next forced run is attempt %d, want 3", n)
		}
	})
}
