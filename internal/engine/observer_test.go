package engine_test

import (
	"context"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// countingObserver counts the calls of an observer, by name.
type countingObserver struct {
	mu     sync.Mutex
	counts map[string]int
	took   map[engine.Operation]time.Duration // the longest
}

func (o *countingObserver) add(name string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.counts == nil {
		o.counts, o.took = make(map[string]int), make(map[engine.Operation]time.Duration)
	}
	o.counts[name]++
}

func (o *countingObserver) BodyDropped() { o.add("bodies dropped") }

func (o *countingObserver) RunEnded(_ string, result engine.Result) { o.add("run " + string(result)) }

func (o *countingObserver) TookOver() { o.add("takeover") }

func (o *countingObserver) Overloaded(limit engine.Limit) { o.add("limit " + string(limit)) }

func (o *countingObserver) Asked(operation engine.Operation, took time.Duration, failed bool) {
	o.add(string(operation))
	if failed {
		o.add(string(operation) + " failed")
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.took[operation] = max(o.took[operation], took)
}

// of returns the counts with these names that are not 0.
func (o *countingObserver) of(names ...string) map[string]int {
	o.mu.Lock()
	defer o.mu.Unlock()
	found := make(map[string]int)
	for _, name := range names {
		if n := o.counts[name]; n > 0 {
			found[name] = n
		}
	}
	return found
}

// runs returns the counts of ended runs and of takeovers.
func (o *countingObserver) runs() map[string]int {
	names := []string{"takeover"}
	for _, result := range engine.Results {
		names = append(names, "run "+string(result))
	}
	return o.of(names...)
}

// overloads returns how often each limit has refused something.
func (o *countingObserver) overloads() map[string]int {
	var names []string
	for _, limit := range engine.AllLimits {
		names = append(names, "limit "+string(limit))
	}
	return o.of(names...)
}

func wantCounts(t *testing.T, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// Every run counts once, with its final result.
func TestEveryRunCountsOnce(t *testing.T) {
	play(t, []scene{
		{"kept", "", "a runs run; run ends 201 kept; a counts kept=1"},
		{"released, and then kept", "", "a runs one; one ends 500 released; a runs two; two ends 201 kept; a counts released=1 kept=1"},
		{"held", "hold", "a runs run; run ends unknown held; a counts held=1"},
		{"not sent", "", "a runs run; run ends unsent unsent; a counts not_sent=1"},
		{"fenced", "", "a runs run; a store fenced settle; run ends 201 fenced; a counts fenced=1"},
		{"lost and released", "", "a runs run; a store gone settle; run ends 500 lost; a counts lost=1"},
		{"stored later", "", "a runs run; a store refused; run ends 201 trying; a counts; a store works; a drains; a counts kept=1"},
		{"never stored", "retention=1m", "a runs run; a store refused; run ends 201 trying; a drains; a counts lost=1"},
		{"never stored before the process stops", "", "a runs run; a store refused; run ends 201 trying; a closes; a counts lost=1"},
		{"taken over", "", "b runs gone; b closes; sleep 30s; a runs run lapsed=gone; run ends 201 kept; a counts takeover=1 kept=1"},
	})
}

// A run that is only observed is in none of the counts and takes no place from another run, but Drain
// waits for it.
func TestObservedRunsCountNothing(t *testing.T) {
	play(t, []scene{{"beside one that is enforced", "now", `
		a limits in_flight=1 waiters=1 per_key=1; b runs gone key=lapsed observed; b closes; sleep 30s
		a runs run key=lapsed observed lapsed=gone; a refuses overloaded - key=other observed; a refuses in_flight run key=lapsed observed
		a progress 0 0; a busy; a counts
		a runs enforced key=enforced; a asks w key=enforced wait=5s; a store refused; run ends 201 trying
		a refuses in_flight run key=lapsed observed force; a draining; a store works; a store refused settle; enforced ends 201 trying; w shares enforced
		sleep 1m; a undone; a store works; sleep 4s; a done
		a room full; a refuses no_room - key=other observed; a room free; a store full claim; a refuses full - key=other observed
		a counts kept=1; a overloads`}})
}

// A reply that the rules know is no failure of the store, and neither is a caller that has
// disconnected. A store that is full refuses a claim by its limit.
func TestFailuresOfTheStoreCount(t *testing.T) {
	play(t, []scene{
		{"replies by the rules", "", `
			a runs run; a store {works|fenced|gone|in_flight|damaged|large} settle; run ends 500 {released|fenced|lost|trying|trying|trying}
			a failures settle 0; a store works; a drains`},
		{"failures", "", "a runs run; a store {full|closed|refused|hung} settle; run ends 500 trying; a failures settle 1; a store works; a drains"},
	})
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		a.link.failWith(context.Canceled, "lookup")
		if _, _, err := a.Lookup(ctx, someRequest().Key); err == nil {
			t.Error("the lookup of a cancelled caller succeeds")
		}
		wantCounts(t, a.observer.of("lookup", "lookup failed"), map[string]int{"lookup": 1})
	})
}

// Each operation is reported with the time that it took.
func TestOperationsAreTimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		resume := a.link.pause("claim")
		first := a.claimLater(context.Background(), req)
		time.Sleep(100 * time.Millisecond)
		resume()
		wantEnd(t, as[*engine.Run](t, first.decision()), created("one"), resultKept)
		record := a.stored(req)
		ctx := context.Background()
		_, _ = a.Response(ctx, req.Key, record)
		_, _, _ = a.List(ctx, "", 1)
		_, _, _ = a.Find(ctx, nil, "", 1)
		_ = a.Release(ctx, req.Key, idempotency.Precondition{})
		_ = a.Complete(ctx, req.Key, created("by hand"), idempotency.Precondition{})
		_ = a.Forget(ctx, req.Key, idempotency.Precondition{})
		run := a.run(req)
		time.Sleep(someLease / 2)
		wantEnd(t, run, created("one"), resultKept)
		storetest.Equal(t, a.observer.took[engine.OperationClaim], 100*time.Millisecond, "the claim took")
		var names []string
		for _, operation := range engine.Operations {
			names = append(names, string(operation))
		}
		counts := a.observer.of(names...)
		for _, name := range names {
			if counts[name] == 0 {
				t.Errorf("%s is not reported", name)
			}
		}
		if counts["list"] != 2 {
			t.Errorf("lists count %d times, want 2", counts["list"])
		}
	})
}
