package engine_test

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
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
	for name, c := range map[string]struct {
		run  func(t *testing.T, a *replica)
		want map[string]int
	}{
		"kept": {func(t *testing.T, a *replica) {
			wantEnd(t, a.run(someRequest()), created("one"), resultKept)
		}, map[string]int{"run kept": 1}},
		"released, and then kept": {func(t *testing.T, a *replica) {
			wantEnd(t, a.run(someRequest()), broken("out of order"), resultReleased)
			wantEnd(t, a.run(someRequest()), created("one"), resultKept)
		}, map[string]int{"run released": 1, "run kept": 1}},
		"held": {func(_ *testing.T, a *replica) {
			ended(a.run(holding()), idempotency.End{How: idempotency.Unknown})
		}, map[string]int{"run held": 1}},
		"not sent": {func(_ *testing.T, a *replica) {
			ended(a.run(someRequest()), idempotency.End{How: idempotency.NotSent})
		}, map[string]int{"run not_sent": 1}},
		"fenced": {func(t *testing.T, a *replica) {
			late := a.run(someRequest())
			a.link.failWith(idempotency.ErrFenced, "settle")
			_ = ended(late, idempotency.End{How: idempotency.Answered, Response: created("late")})
		}, map[string]int{"run fenced": 1}},
		"lost and released": {func(t *testing.T, a *replica) {
			run := a.run(someRequest())
			a.link.failWith(idempotency.ErrGone, "settle")
			_ = ended(run, idempotency.End{How: idempotency.Answered, Response: broken("out of order")})
		}, map[string]int{"run lost": 1}},
		"stored later": {func(t *testing.T, a *replica) {
			run := a.run(someRequest())
			a.link.fail(refused)
			wantEnd(t, run, created("one"), resultTrying)
			wantCounts(t, a.observer.runs(), map[string]int{})
			a.link.recover()
			a.drain()
		}, map[string]int{"run kept": 1}},
		"never stored": {func(t *testing.T, a *replica) {
			req := someRequest()
			req.Policy.Retention = time.Minute
			run := a.run(req)
			a.link.fail(refused)
			wantEnd(t, run, created("one"), resultTrying)
			a.drain()
		}, map[string]int{"run lost": 1}},
		"never stored before the process stops": {func(t *testing.T, a *replica) {
			run := a.run(someRequest())
			a.link.fail(refused)
			wantEnd(t, run, created("one"), resultTrying)
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
		}, map[string]int{"run lost": 1}},
		"taken over": {func(t *testing.T, a *replica) {
			crashed := newReplica(t, a.link.Store)
			lapsed := crashed.run(someRequest())
			_ = crashed.Close()
			time.Sleep(someLease)
			run := a.run(someRequest())
			if run.Lapsed() != lapsed.ExecutionID() {
				t.Errorf("it has taken over %q, want %q", run.Lapsed(), lapsed.ExecutionID())
			}
			wantEnd(t, run, created("one"), resultKept)
		}, map[string]int{"takeover": 1, "run kept": 1}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newReplica(t, newShared(t))
				c.run(t, a)
				wantCounts(t, a.observer.runs(), c.want)
			})
		})
	}
}

// A run that is only observed is in none of the counts and takes no place from another run, but Drain
// waits for it.
func TestObservedRunsCountNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		a.Configure(engine.Settings{Limits: engine.Limits{InFlight: 1, Waiters: 1, WaitersPerKey: 1}})
		observing := func(key string) engine.Request {
			req := withKey(someRequest(), key)
			req.Observed, req.Wait = true, 0
			return req
		}
		crashed := newReplica(t, a.link.Store)
		crashed.run(observing("lapsed"))
		_ = crashed.Close()
		time.Sleep(someLease)

		run := a.run(observing("lapsed")) // it takes over
		wantOverloaded(t, a.claim(observing("other")))
		if got := as[engine.Refusal](t, a.claim(observing("lapsed"))); got.Reason != engine.ReasonInFlight {
			t.Errorf("beside it: %+v", got)
		}
		if inFlight, waiting := a.InProgress(); inFlight != 0 || waiting != 0 {
			t.Errorf("%d runs in flight and %d requests wait", inFlight, waiting)
		}
		if a.Idle() {
			t.Error("nothing is left to do while a run is observed")
		}
		wantCounts(t, a.observer.runs(), map[string]int{})
		enforced := a.run(withKey(someRequest(), "enforced"))
		waiters := a.waiters(1, withKey(someRequest(), "enforced")) // as many as may wait
		synctest.Wait()
		a.link.fail(refused)
		wantEnd(t, run, created("one"), resultTrying)
		forced := observing("lapsed")
		forced.Force = true
		if got := as[engine.Refusal](t, a.claim(forced)); got.Reason != engine.ReasonInFlight {
			t.Errorf("before its end is stored: %+v", got)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := a.Drain(ctx); err == nil {
			t.Error("the process does not wait for the end of an observed run to be stored")
		}
		a.link.recover()
		wantEnd(t, enforced, created("one"), resultKept)
		waiters[0].decision()
		a.drain()
		a.setRoom(errors.New("no room"))
		wantOverloaded(t, a.claim(observing("other")))
		a.setRoom(nil)
		a.link.failWith(idempotency.ErrFull, "claim")
		as[engine.Refusal](t, a.claim(observing("other")))
		wantCounts(t, a.observer.runs(), map[string]int{"run kept": 1})
		wantCounts(t, a.observer.overloads(), map[string]int{})
	})
}

func TestEveryLimitCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		a.Configure(engine.Settings{Limits: engine.Limits{Waiters: 3, WaitersPerKey: 2, InFlight: 2}})
		one, two, three := withKey(someRequest(), "one"), withKey(someRequest(), "two"), withKey(someRequest(), "three")
		first, second := a.run(one), a.run(two)
		waiting := append(a.waiters(2, one), a.waiters(1, two)...)
		synctest.Wait()
		if inFlight, waiting := a.InProgress(); inFlight != 2 || waiting != 3 {
			t.Errorf("%d runs in flight and %d requests wait, want 2 and 3", inFlight, waiting)
		}
		wantOverloaded(t, a.claim(one))
		wantOverloaded(t, a.claim(two))
		wantOverloaded(t, a.claim(three))
		wantEnd(t, first, created("one"), resultKept)
		wantEnd(t, second, created("two"), resultKept)
		for _, w := range waiting {
			w.decision()
		}
		a.setRoom(errors.New("no room"))
		wantOverloaded(t, a.claim(three))
		a.setRoom(nil)
		a.link.failWith(idempotency.ErrFull, "claim")
		as[engine.Refusal](t, a.claim(three))
		want := make(map[string]int)
		for _, limit := range engine.AllLimits {
			want["limit "+string(limit)] = 1
		}
		wantCounts(t, a.observer.overloads(), want)
		if inFlight, waiting := a.InProgress(); inFlight != 0 || waiting != 0 {
			t.Errorf("%d runs in flight and %d requests wait after the end", inFlight, waiting)
		}
	})
}

// A reply that the rules know is no failure of the store, and neither is a caller that has
// disconnected.
func TestFailuresOfTheStoreCount(t *testing.T) {
	for _, c := range []struct {
		err    error
		failed bool
	}{
		{nil, false},
		{idempotency.ErrFenced, false},
		{idempotency.ErrGone, false},
		{idempotency.ErrInFlight, false},
		{&idempotency.UnreadableError{Where: "record", Err: errors.New("damaged")}, false},
		{idempotency.ErrFull, true},      // of a settlement; of a claim it is a limit
		{idempotency.ErrTooLarge, false}, // it is stored without its body
		{idempotency.ErrClosed, true},
		{context.DeadlineExceeded, true},
		{errors.New("connection refused"), true},
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newReplica(t, newShared(t))
			run := a.run(someRequest())
			a.link.failWith(c.err, "settle")
			_ = ended(run, idempotency.End{How: idempotency.Answered, Response: broken("out of order")})
			failed := a.observer.of("settle failed")["settle failed"] > 0
			if failed != c.failed {
				t.Errorf("%v counts as a failure: %v, want %v", c.err, failed, c.failed)
			}
			a.link.failWith(nil, "settle")
			a.drain()
		})
	}
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
		if took := a.observer.took[engine.OperationClaim]; took != 100*time.Millisecond {
			t.Errorf("the claim took %v, want 100ms", took)
		}
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
