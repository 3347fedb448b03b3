package engine_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Finish waits for claims in doubt for as long as it takes. Drain, for a process that
// exits, waits for them only for a short time.
func TestFinishAndDrainWithAClaimInDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		if err := a.Finish(context.Background()); err != nil {
			t.Errorf("with nothing to do: %v", err)
		}
		a.link.fail(hung)
		a.link.fail(replyLost, "claim")
		wantRefusal(t, a.claim(holding()), engine.ReasonUnavailable, "")
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

// This test checks little itself: synctest fails it if a goroutine is left at the end.
func TestCloseEndsTheBackgroundWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), someRequest()
		a, b := newReplica(t, store), newReplica(t, store)
		run := a.run(req) // its lease is renewed in the background
		watching := b.claimLater(context.Background(), req)
		synctest.Wait()
		two := someRequest()
		two.Key = idempotency.Identity{ID: "two"}.Key()
		a.link.fail(replyLost, "claim")
		wantRefusal(t, a.claim(two), engine.ReasonUnavailable, "") // its claim is withdrawn in the background
		three := someRequest()
		three.Key = idempotency.Identity{ID: "three"}.Key()
		a.link.fail(works)
		pending := a.run(three)
		a.link.fail(refused)
		wantEnd(t, pending, created("three"), resultTrying) // its end is stored in the background
		for _, r := range []*replica{a, b} {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
		wantRefusal(t, watching.decision(), engine.ReasonUnavailable, "")
		// A run can still end after its engine is closed, and its waiters get an answer.
		waiting := a.claimLater(context.Background(), req)
		synctest.Wait()
		wantEnd(t, run, created("one"), resultTrying)
		wantReplay(t, waiting.decision(), run.ExecutionID(), created("one"), true)
	})
}

// A closed engine, with all that its store has in memory, is garbage at once, and not only when the
// next renewal was due. That also holds for a run that started during Close.
func TestClosedEngineIsGarbage(t *testing.T) {
	for name, use := range map[string]func(e *engine.Engine){
		"run before": func(e *engine.Engine) {
			runWith(t, e, someRequest(), 1, created("paid"))
			_ = e.Close()
		},
		"run beside": func(e *engine.Engine) {
			_ = e.Close()
			runWith(t, e, someRequest(), 1, created("paid"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			gone := make(chan struct{})
			func() {
				e := engine.New(nothing{}, someOptions())
				runtime.AddCleanup(e, func(done chan struct{}) { close(done) }, gone)
				use(e)
			}()
			for deadline := time.Now().Add(someLease / 6); ; {
				runtime.GC()
				select {
				case <-gone:
					return
				case <-time.After(10 * time.Millisecond):
				}
				if time.Now().After(deadline) {
					t.Fatal("something holds the closed engine")
				}
			}
		})
	}
}

// A process that exits waits for a limited time: it may close the engine while requests
// are still being decided on.
func TestCloseBesideRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		var requests sync.WaitGroup
		for i := range 50 {
			requests.Go(func() {
				req := someRequest()
				req.Key = idempotency.Identity{ID: string(rune('a' + i))}.Key()
				d, err := a.Claim(context.Background(), req)
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

// A request that is claiming its key may run in a moment: Drain and Finish wait
// for it.
func TestDrainWaitsForClaims(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		resume := a.link.pauseReply("claim")
		w := a.claimLater(context.Background(), req)
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := a.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("drained while a request claims its key: %v", err)
		}
		if a.Idle() {
			t.Error("idle while a request claims its key")
		}
		resume()
		wantEnd(t, as[*engine.Run](t, w.decision()), created("one"), resultKept)
		a.drain()
		if !a.Idle() {
			t.Error("not idle when all is done")
		}
	})
}

// Abandon settles the runs in flight as unknown, so that no request waits for their leases.
func TestAbandonSettlesRunsAsUnknown(t *testing.T) {
	lastAttempt := someRequest()
	lastAttempt.Policy.MaxAttempts = 1
	for name, c := range map[string]struct {
		req    engine.Request
		state  idempotency.State
		here   engine.Reason // why a request that has waited in the same process is refused
		beside engine.Reason // why one on another replica is; "" if it runs
	}{
		"released":     {someRequest(), idempotency.Released, engine.ReasonOverloaded, ""},
		"held":         {holding(), idempotency.Held, engine.ReasonHeld, engine.ReasonHeld},
		"last attempt": {lastAttempt, idempotency.Released, engine.ReasonExhausted, engine.ReasonExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newShared(t)
				a, b := newReplica(t, store), newReplica(t, store)
				run := a.run(c.req)
				waiting := a.claimLater(context.Background(), c.req)
				synctest.Wait()
				if err := a.Abandon(); err != nil {
					t.Error(err)
				}
				a.wantState(c.req, c.state, 1)
				if got := as[engine.Refusal](t, waiting.decision()); got.Reason != c.here {
					t.Errorf("the request that had waited is refused with %q, want %q", got.Reason, c.here)
				}
				if c.beside != "" {
					wantRefusal(t, b.claim(c.req), c.beside, run.ExecutionID())
					wantEnd(t, run, created("late"), resultFenced)
					a.wantState(c.req, c.state, 1)
					return
				}
				next := b.run(c.req)
				wantEnd(t, run, created("late"), resultFenced)
				wantEnd(t, next, created("two"), resultKept)
				a.wantState(c.req, idempotency.Complete, 2)
			})
		})
	}
}

// Abandon also settles a claim that is under way.
func TestAbandonBesideAClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), someRequest()
		resume := a.link.pauseReply("claim")
		claiming := a.claimLater(context.Background(), req)
		synctest.Wait()
		abandoned := make(chan error)
		go func() { abandoned <- a.Abandon() }()
		synctest.Wait()
		resume()
		if err := <-abandoned; err != nil {
			t.Error(err)
		}
		wantEnd(t, as[*engine.Run](t, claiming.decision()), created("late"), resultFenced)
		a.wantState(req, idempotency.Released, 1)
	})
}

func TestAbandonLeavesAnEndThatIsBeingStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, req := newReplica(t, newShared(t)), holding()
		run := a.run(req)
		resume := a.link.pauseReply("settle")
		ended := make(chan result)
		go func() { ended <- end(run, created("one")) }()
		synctest.Wait()
		abandoned := make(chan error)
		go func() { abandoned <- a.Abandon() }()
		synctest.Wait()
		resume()
		if got := <-ended; got != resultKept {
			t.Errorf("the run ended %q", got)
		}
		if err := <-abandoned; err != nil {
			t.Error(err)
		}
		a.wantState(req, idempotency.Complete, 1)
	})
}

func TestAbandonWaitsForOneOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		run := a.run(someRequest())
		a.link.fail(hung)
		start := time.Now()
		if err := a.Abandon(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("abandoned a run that cannot be settled: %v", err)
		}
		if took := time.Since(start); took != storeTimeout {
			t.Errorf("it took %v, want %v", took, storeTimeout)
		}
		if !a.Idle() || a.observer.counts["run lost"] != 1 {
			t.Errorf("it is not given up: %v", a.observer.counts)
		}
		wantEnd(t, run, created("late"), resultFenced)
	})
}
