package engine_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The work that must outlive the requests holds the engine; with its end the
// engine may be closed.
func TestBusyAndIdleAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var e *engine.Engine
		var busy, idle atomic.Int32
		options := someOptions()
		options.OnBusy = func() { busy.Add(1) }
		options.OnIdle = func() {
			if idle.Add(1) == 3 {
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			}
		}
		e = engine.New(newShared(t), options)
		want := func(wantBusy, wantIdle int32) {
			t.Helper()
			synctest.Wait()
			if busy.Load() != wantBusy || idle.Load() != wantIdle {
				t.Errorf("busy %d times and idle %d times, want %d and %d", busy.Load(), idle.Load(), wantBusy, wantIdle)
			}
		}
		begin := func(n int) *engine.Run {
			t.Helper()
			d, err := e.Begin(context.Background(), keyed(n))
			if err != nil {
				t.Fatal(err)
			}
			return as[*engine.Run](t, d)
		}
		want(0, 0)
		one := begin(1)
		two := begin(2)
		want(1, 0)
		end(one, created("one"))
		want(1, 0)
		end(two, created("two"))
		want(1, 1)
		end(begin(3), broken("three"))
		want(2, 2)
		end(begin(4), created("four"))
		want(3, 3)
	})
}

func TestDrainWaitsForRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		a.drain()
		run := a.run(req)
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drain with a run in flight returned %v", err)
		}
		drained := make(chan error)
		go func() { drained <- a.Drain(context.Background()) }()
		synctest.Wait()
		select {
		case err := <-drained:
			t.Fatalf("drained with a run in flight: %v", err)
		default:
		}
		wantEnd(t, run, created("one"), engine.ResultKept)
		if err := <-drained; err != nil {
			t.Error(err)
		}
	})
}

// synctest fails a test that leaves a goroutine behind.
func TestCloseEndsTheBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req) // renews
		watching := b.beginLater(context.Background(), req)
		synctest.Wait()
		two := someRequest()
		two.Key = idempotency.Identity{ID: "two"}.Key()
		a.link.fail(replyLost, "claim")
		wantRefusal(t, a.begin(two), engine.ReasonUnavailable, "") // withdraws
		three := someRequest()
		three.Key = idempotency.Identity{ID: "three"}.Key()
		a.link.fail(works)
		pending := a.run(three)
		a.link.fail(refused)
		wantEnd(t, pending, created("three"), engine.ResultPending) // goes on storing
		for _, r := range []*replica{a, b} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		wantRefusal(t, watching.decision(), engine.ReasonUnavailable, "")
		// A run that outlives its engine still ends, and its waiters with it.
		waiting := a.beginLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, created("one"), engine.ResultPending)
		wantReplay(t, waiting.decision(), run.ExecutionID(), created("one"), true)
	})
}

// An exit that has waited long enough closes the engine beside its requests.
func TestCloseBesideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		var requests sync.WaitGroup
		for i := range 50 {
			requests.Go(func() {
				req := someRequest()
				req.Key = idempotency.Identity{ID: string(rune('a' + i))}.Key()
				d, err := a.Begin(context.Background(), req)
				if run, ok := d.(*engine.Run); ok {
					end(run, created("one"))
				} else {
					t.Errorf("decided %v %v", d, err)
				}
			})
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		requests.Wait()
		a.drain()
	})
}
