package engine_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

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
				w := a.claimLater(context.Background(), req)
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

// A renewal whose reply is slow, or that hangs, does not delay the next one, and no other replica can
// take over.
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
				wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
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

// A settlement that hangs leaves time for one renewal before the lease lapses: the engine renews
// before it retries.
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
		wantRefusal(t, b.claim(req), engine.ReasonInFlight, run.ExecutionID())
		a.link.recover()
		a.drain()
		wantReplay(t, b.claim(req), run.ExecutionID(), created("one"), false)
	})
}

// renewalRecorder records when the claim of each key was renewed.
type renewalRecorder struct {
	idempotency.Store
	start time.Time

	mu       sync.Mutex
	renewals map[idempotency.Key][]time.Duration
}

func (r *renewalRecorder) Renew(ctx context.Context, c idempotency.Claim) error {
	r.mu.Lock()
	r.renewals[c.Key] = append(r.renewals[c.Key], time.Since(r.start))
	r.mu.Unlock()
	return r.Store.Renew(ctx, c)
}

// Each lease is renewed after each third of it until its run has ended, beside many other runs with
// other leases, which start and end in any order.
func TestRenewalsOfManyRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &renewalRecorder{Store: newShared(t), start: time.Now(), renewals: make(map[idempotency.Key][]time.Duration)}
		a := newReplica(t, store)
		const runs = 100
		random := rand.New(rand.NewPCG(1, 2))
		want := make(map[idempotency.Key][]time.Duration)
		var all sync.WaitGroup
		for i := range runs {
			req := someRequest()
			req.Key = idempotency.Identity{ID: strconv.Itoa(i)}.Key()
			req.Policy.Lease = shortLease * time.Duration(1+random.IntN(5))
			delay := time.Duration(random.IntN(20_000))*time.Millisecond + time.Duration(i)*time.Microsecond
			lasts := time.Duration(random.IntN(60_000))*time.Millisecond + 500*time.Microsecond
			for at := req.Policy.Lease / 3; at < lasts; at += req.Policy.Lease / 3 {
				want[req.Key] = append(want[req.Key], delay+at)
			}
			all.Go(func() {
				time.Sleep(delay)
				run := a.run(req)
				time.Sleep(lasts)
				wantEnd(t, run, created("one"), resultKept)
			})
		}
		all.Wait()
		time.Sleep(time.Hour)
		if !maps.EqualFunc(store.renewals, want, slices.Equal) {
			t.Errorf("renewed at %v;\nwant %v", store.renewals, want)
		}
	})
}

// A run that is in flight holds no goroutine.
func TestRunHoldsNoGoroutine(t *testing.T) {
	a := newReplica(t, newShared(t))
	before := runtime.NumGoroutine()
	var runs []*engine.Run
	for i := range 1000 {
		req := someRequest()
		req.Key = idempotency.Identity{ID: strconv.Itoa(i)}.Key()
		runs = append(runs, a.run(req))
	}
	if n := runtime.NumGoroutine() - before; n > 10 { // those of other tests may come and go
		t.Errorf("%d runs hold %d goroutines", len(runs), n)
	}
	for _, run := range runs {
		wantEnd(t, run, created("one"), resultKept)
	}
}

// While the store is unavailable, the engine retries every second, and does not log every failure.
func TestRenewalsThatFailAreLoggedOnceInAThirdOfTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.WarnLevel)
		options := someOptions()
		options.Logger = zap.New(core)
		link := newLink(newShared(t))
		e := engine.New(link, options)
		defer e.Close()
		decision, err := e.Claim(context.Background(), someRequest())
		if err != nil {
			t.Fatal(err)
		}
		run := as[*engine.Run](t, decision)
		link.fail(refused, "renew")
		time.Sleep(someLease - time.Millisecond)
		if asked := link.count("renew"); asked < 10 {
			t.Errorf("the store was asked %d times", asked)
		}
		lines := logged.FilterMessageSnippet("could not be renewed").All()
		if len(lines) != 2 {
			t.Errorf("%d failures were logged within two thirds of the lease", len(lines))
		}
		wantEnd(t, run, created("one"), resultKept)
	})
}
