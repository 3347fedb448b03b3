package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// inMemory is a link to a store in this process.
type inMemory struct{ *link }

func (inMemory) InProcess() {}

// newInMemory returns the only replica of a memory store with this limit.
func newInMemory(t *testing.T, limit int64) (*replica, *observer.ObservedLogs) {
	store := memory.New(limit)
	t.Cleanup(func() { _ = store.Close() })
	r := &replica{t: t, link: newLink(store)}
	core, logged := observer.New(zap.WarnLevel)
	options := someOptions()
	options.Observer, options.Logger = &r.observer, zap.New(core)
	r.Engine = engine.New(inMemory{r.link}, options)
	t.Cleanup(func() { _ = r.Engine.Close() })
	return r, logged
}

// nth returns someRequest with the nth key.
func nth(n int) engine.Request { return withKey(someRequest(), fmt.Sprint("key ", n)) }

// startRuns starts n runs, all in flight at the same time.
func (r *replica) startRuns(n int) []*engine.Run {
	runs := make([]*engine.Run, n)
	for i := range runs {
		runs[i] = r.run(nth(i))
	}
	return runs
}

// wantFull checks that a request is refused because the store is full.
func wantFull(t *testing.T, d engine.Decision) {
	t.Helper()
	if got := as[engine.Refusal](t, d); got.Reason != engine.ReasonOverloaded || !errors.Is(got.Err, idempotency.ErrFull) {
		t.Errorf("refused with %q (%v), want %v", got.Reason, got.Err, idempotency.ErrFull)
	}
}

// While responses wait for room in the store, no new key runs, so that there are no more of them than
// runs that were in flight together. A refusal names the store's limit. Known keys are answered.
func TestNoRunBeginsWhileResponsesWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newInMemory(t, 1<<20)
		answer := created(strings.Repeat("x", 20_000))
		kept, trying := 0, 0
		for n, run := range a.startRuns(60) {
			switch got := end(run, answer); got {
			case resultKept:
				kept++
			case resultTrying:
				trying++
			default:
				t.Fatalf("run %d ended %q", n, got)
			}
		}
		if kept < 40 || trying < 5 {
			t.Fatalf("%d responses of 20 kB are in a store of 1 MiB, and %d wait", kept, trying)
		}
		for n := range 20 {
			wantFull(t, a.claim(nth(100+n)))
			time.Sleep(7 * time.Second)
		}
		if n := a.observer.overloads()["limit "+string(engine.LimitMemoryStore)]; n != 20 {
			t.Errorf("memory_store has refused %d times, want 20", n)
		}
		for n := range 60 {
			if got := as[engine.Replay](t, a.claim(nth(n))); string(got.Response.Body) != string(answer.Body) {
				t.Errorf("key %d is answered with %+v", n, got.Response)
			}
		}
		for n := range trying {
			wantFull(t, a.claim(nth(200+n)))
			if err := a.Forget(context.Background(), nth(n).Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(4 * time.Second)
		}
		for n := range 10 { // new keys leave room for responses of runs in flight
			if err := a.Forget(context.Background(), nth(trying+n).Key, idempotency.Precondition{}); err != nil {
				t.Fatal(err)
			}
		}
		a.run(nth(300))
		if unsettled, _ := a.InProgress(); unsettled != 1 {
			t.Errorf("%d are unsettled, want the new run only", unsettled-1)
		}
	})
}

// A response that the store could never keep does not wait: it is kept like one that is larger than
// the limit of a response.
func TestResponseThatTheStoreCanNeverKeep(t *testing.T) {
	large := strings.Repeat("x", 2<<20)
	for name, c := range map[string]struct{ answer, want *idempotency.Response }{
		"its body": {
			&idempotency.Response{Status: 201, Header: map[string][]string{"Etag": {"1"}}, Body: []byte(large)},
			&idempotency.Response{Status: 201, Header: map[string][]string{"Etag": {"1"}}, Omitted: true},
		},
		"its header": {
			&idempotency.Response{Status: 201, Header: map[string][]string{"Etag": {large}}, Body: []byte("one")},
			&idempotency.Response{Status: 201, Omitted: true},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, logged := newInMemory(t, 1<<20)
				calls := 0
				run := a.run(someRequest())
				waiting := a.claimLater(context.Background(), someRequest())
				synctest.Wait()
				wantStored(t, run, c.answer, resultKept, func() { calls++ })
				for _, d := range []engine.Decision{waiting.decision(), a.claim(someRequest())} {
					got := as[engine.Replay](t, d)
					if fmt.Sprint(got.Response) != fmt.Sprint(c.want) || got.Record.ExecutionID != run.ExecutionID() {
						t.Errorf("replayed %v of %s, want %v", got.Response, got.Record.ExecutionID, c.want)
					}
				}
				if calls != 1 || !a.Idle() {
					t.Errorf("onStored was called %d times; idle is %v", calls, a.Idle())
				}
				wantEnd(t, a.run(nth(1)), created("one"), resultKept) // new keys go on
				wantCounts(t, a.observer.runs(), map[string]int{"run kept": 2})
				if logged.FilterMessageSnippet("too large").Len() == 0 {
					t.Errorf("logged is %v", logged.All())
				}
			})
		})
	}
}

// Such a response of a forced run replaces nothing: the previous one stays.
func TestForcedResponseThatTheStoreCanNeverKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newInMemory(t, 1<<20)
		first := a.run(someRequest())
		wantEnd(t, first, created("first"), resultKept)
		run := a.run(forcing(someRequest()))
		waiting := a.claimLater(context.Background(), someRequest())
		synctest.Wait()
		wantEnd(t, run, created(strings.Repeat("x", 2<<20)), resultReleased)
		if got := as[engine.Replay](t, waiting.decision()); !got.Response.Omitted || got.Record.ExecutionID != run.ExecutionID() {
			t.Errorf("the request that waited gets %+v of %s", got.Response, got.Record.ExecutionID)
		}
		wantReplay(t, a.claim(someRequest()), first.ExecutionID(), created("first"), false)
	})
}

// A local copy has what the store has.
func TestCopyOfAResponseThatTheStoreCanNeverKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory.New(1 << 20)
		defer store.Close()
		a := newReplicaWithCopies(t, store, engine.NewCopies(16<<20))
		wantEnd(t, a.run(someRequest()), created(strings.Repeat("x", 2<<20)), resultKept)
		a.link.fail(refused)
		if got := as[engine.Replay](t, a.claim(someRequest())); !got.Response.Omitted || len(got.Response.Body) != 0 {
			t.Errorf("the copy has a body of %d bytes, omitted %v", len(got.Response.Body), got.Response.Omitted)
		}
	})
}

// If the store has no room for the rest either, the rest waits, and the memory of the body is released
// at once.
func TestRestOfALargeResponseIsStoredLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newInMemory(t, 1<<20)
		calls := 0
		run := a.run(someRequest())
		a.link.failWith(idempotency.ErrTooLarge, "settle")
		answer := created("one")
		answer.Header = map[string][]string{"Etag": {"1"}}
		wantStored(t, run, answer, resultTrying, func() { calls++ })
		if n := a.link.count("settle"); n != 3 {
			t.Errorf("tried %d times at once, want whole, without the body, and without the header", n)
		}
		if calls != 1 {
			t.Errorf("onStored was called %d times, want 1", calls)
		}
		time.Sleep(time.Minute)
		a.link.recover()
		time.Sleep(4 * time.Second)
		a.wantState(someRequest(), idempotency.Complete, 1)
		if reason := a.stored(someRequest()).Reason; !strings.Contains(reason, "the store has no room for it") {
			t.Errorf("the record says %q", reason)
		}
		if calls != 1 {
			t.Errorf("onStored was called %d times in the end, want 1", calls)
		}
	})
}

// A process that exits waits for its runs, but not for room in a store that it loses.
func TestDrainWaitsForNoRoomInThisProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, logged := newInMemory(t, 1<<20)
		one, two := a.run(nth(1)), a.run(nth(2))
		a.link.failWith(idempotency.ErrFull, "settle")
		wantEnd(t, one, created("one"), resultTrying)
		wantReplay(t, a.claim(nth(1)), one.ExecutionID(), created("one"), false)
		drained := make(chan error)
		go func() { drained <- a.Drain(context.Background()) }()
		time.Sleep(time.Minute)
		select {
		case err := <-drained:
			t.Fatalf("drained with a run in flight: %v", err)
		default:
		}
		start := time.Now()
		wantEnd(t, two, created("two"), resultTrying)
		if err := <-drained; err != nil || time.Since(start) > 0 {
			t.Errorf("drained %v after the last run: %v", time.Since(start), err)
		}
		if n := logged.FilterMessage("the run's end was never stored: the process stops").Len(); n != 2 {
			t.Errorf("%d lines say that an end was never stored, want 2", n)
		}
		wantCounts(t, a.observer.runs(), map[string]int{"run lost": 2})
	})
}
