package engine_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// shortLease is the shortest one that fits the timeout of the store.
const shortLease = 3 * storeTimeout

// A lease begins in the store, and the reply may come almost a timeout later. The
// renewal counts from when the claim was sent.
func TestFirstRenewalCountsFromTheClaim(t *testing.T) {
	for _, slow := range []time.Duration{0, storeTimeout - time.Millisecond, shortLease} {
		t.Run(slow.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, req := newReplica(t, newShared(t)), someRequest()
				req.Policy.Lease = shortLease
				resume := a.link.pauseReply("claim")
				sent := time.Now()
				w := a.beginLater(context.Background(), req)
				time.Sleep(slow)
				resume()
				run := as[*engine.Run](t, w.decision())
				time.Sleep(shortLease)
				renewals := a.link.times("renew")
				if due := max(slow, shortLease/3); len(renewals) == 0 || renewals[0].Sub(sent) > due {
					t.Errorf("renewed at %v, want the first time %v after %v", renewals, due, sent)
				}
				wantEnd(t, run, created("one"), resultKept)
			})
		})
	}
}

// The same of a renewal whose reply is slow, and of one that hangs: the next one is not
// late because of it, and no other replica can take over.
func TestSlowRenewalDoesNotDelayTheNext(t *testing.T) {
	for name, how := range map[string]fault{"reply lost": replyLost, "hung": hung} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), someRequest()
				req.Policy.Lease = shortLease
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(req)
				a.link.fail(how, "renew")
				time.Sleep(shortLease/3 + time.Millisecond)
				a.link.fail(works, "renew")
				time.Sleep(shortLease)
				renewals := a.link.times("renew")
				for i := 1; i < len(renewals); i++ {
					if between := renewals[i].Sub(renewals[i-1]); between != shortLease/3 {
						t.Errorf("renewal %d came %v after the one before, want %v", i+1, between, shortLease/3)
					}
				}
				req.Wait = 0
				wantRefusal(t, b.begin(req), engine.ReasonInFlight, run.ExecutionID())
				wantEnd(t, run, created("one"), resultKept)
			})
		})
	}
}

// A store that only this process uses may take longer than a lease for one operation.
// Its renewals still do not wait for each other.
func TestRenewalTakesAThirdOfTheLeaseAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		const lease = storeTimeout / 2
		req.Policy.Lease = lease
		run := a.run(req)
		a.link.fail(hung, "renew")
		time.Sleep(lease/3 + time.Millisecond)
		a.link.fail(works, "renew")
		time.Sleep(2 * lease)
		a.wantState(req, idempotency.InFlight, 1)
		if renewals := a.link.times("renew"); len(renewals) < 2 || renewals[1].Sub(renewals[0]) > lease/3 {
			t.Errorf("renewed at %v, want a renewal each %v", renewals, lease/3)
		}
		wantEnd(t, run, created("one"), resultKept)
	})
}

// The end of a run that hangs in the store leaves time for one renewal before the lease
// lapses: it goes before the next try.
func TestClaimOutlastsAnEndThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		req.Policy.Lease = shortLease
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req)
		time.Sleep(shortLease/3 - time.Millisecond) // before the first renewal
		a.link.fail(hung, "settle")
		wantEnd(t, run, created("one"), resultTrying)
		time.Sleep(shortLease/3 + 50*time.Millisecond) // the lease of the claim is over
		req.Wait = 0
		wantRefusal(t, b.begin(req), engine.ReasonInFlight, run.ExecutionID())
		a.link.recover()
		a.drain()
		wantReplay(t, b.begin(req), run.ExecutionID(), created("one"), false)
	})
}
