package engine_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// shortLease is the shortest one that fits the timeout of the store.
const shortLease = 3 * storeTimeout

func TestLeases(t *testing.T) {
	play(t, []scene{
		{"renewed at a third, until the end", "", `
			a runs run; sleep 5m; a times renew 10s 20s 30s 40s; a asked renew 30; b refuses in_flight run after=5s; run ends 201 kept
			sleep 30s; a asked renew 0`},
		{"a renewal on its way when the run ends is the last", "", `
			a runs run; a pauses renew; sleep 10s; run ends 201 kept; a resumes renew; sleep 1m; a asked renew 1`},
		{"it outlives failed renewals", "", `
			a runs run; sleep 1s; a store hung renew; sleep 20s; a store works; sleep 1m; b refuses in_flight run after=5s; run ends 201 kept`},
		{"the store is away while two renewals are due, and back for the last third", "", `
			a runs run; until 9900ms; a store refused renew; until 20100ms; a store works; a asked renew 5..12; until 29s; a asked renew 1..
			until 31s; b refuses in_flight run after=5s; run ends 201 kept`},
		{"failures are logged once in a third of it", "", `
			a runs run; a store refused renew; sleep 29999ms; a asked renew 10..; a logs 2 could not be renewed; run ends 201 kept`},
		// A lease begins in the store, and the reply may come almost a timeout later.
		{"the first renewal counts from when the claim was sent", "lease=1500ms", `
			a pauses reply-to-claim; a asks w; sleep {0s|499ms|1500ms}; a resumes reply-to-claim; w runs run; sleep 1500ms
			a times renew {500ms|500ms|1500ms}; run ends 201 kept`},
		{"a slow renewal does not delay the next", "lease=1500ms", `
			a runs run; a store {lost|hung} renew; sleep 501ms; a store works renew; sleep 1500ms; a times renew 500ms 1s 1500ms
			b refuses in_flight run now; run ends 201 kept`},
		// A store that only this process uses may take longer than a lease for one operation.
		{"a renewal takes a third of the lease at most", "lease=250ms", `
			a runs run; a store hung renew; sleep 84ms; a store works renew; sleep 500ms; a has in_flight 1; a times renew 83ms 167ms 250ms
			run ends 201 kept`},
		// A settlement that hangs leaves time for one renewal before the lease lapses.
		{"it is renewed before an end that hangs is tried again", "lease=1500ms", `
			a runs run; sleep 499ms; a store hung settle; run ends 201 trying; sleep 550ms; b refuses in_flight run now
			a store works; a drains; b replays run`},
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
			req := nth(i)
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
		runs = append(runs, a.run(nth(i)))
	}
	if n := runtime.NumGoroutine() - before; n > 10 { // those of other tests may come and go
		t.Errorf("%d runs hold %d goroutines", len(runs), n)
	}
	for _, run := range runs {
		wantEnd(t, run, created("one"), resultKept)
	}
}
