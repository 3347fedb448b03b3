package engine_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Who closes a store waits for all that is left to do, claims in doubt too; a
// process that exits does so for a while.
func TestFinishAndDrainWithAClaimInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		if err := a.Finish(context.Background()); err != nil {
			t.Errorf("with nothing to do: %v", err)
		}
		a.link.fail(hung)
		a.link.fail(replyLost, "claim")
		wantRefusal(t, a.begin(holding()), engine.ReasonUnavailable, "")
		start := time.Now()
		if err := a.Drain(context.Background()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drained with a claim in doubt: %v", err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("it drained for %v", took)
		}
		finished := make(chan error)
		go func() { finished <- a.Finish(context.Background()) }()
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-finished:
			t.Fatalf("finished with a claim in doubt: %v", err)
		default:
		}
		a.link.recover()
		if err := <-finished; err != nil {
			t.Error(err)
		}
		a.wantState(holding(), idempotency.Released, 0)
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
		wantEnd(t, run, created("one"), resultKept)
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
		wantEnd(t, pending, created("three"), resultTrying) // goes on storing
		for _, r := range []*replica{a, b} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		wantRefusal(t, watching.decision(), engine.ReasonUnavailable, "")
		// A run that outlives its engine still ends, and its waiters with it.
		waiting := a.beginLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, created("one"), resultTrying)
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
