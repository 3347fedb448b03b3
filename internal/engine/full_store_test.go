package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// inMemory is a link to a store in this process.
type inMemory struct{ *link }

func (inMemory) InProcess() {}

// newInMemory returns the only replica of a memory store with this limit.
func newInMemory(t *testing.T, limit int64) *replica {
	store := memory.New(limit)
	t.Cleanup(func() { _ = store.Close() })
	r := &replica{t: t, link: newLink(store)}
	options := someOptions()
	options.Observer = &r.observer
	options.Logger, r.logged = observed()
	r.Engine = engine.New(inMemory{r.link}, options)
	t.Cleanup(func() { _ = r.Engine.Close() })
	return r
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
func TestNoRunStartsWhileResponsesWaitForMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newInMemory(t, 1<<20)
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
		storetest.Equal(t, a.observer.overloads()["limit "+string(engine.LimitMemoryStore)], 20, "refusals by memory_store")
		for n := range 60 {
			if got := as[engine.Replay](t, a.claim(nth(n))); string(got.Response.Body) != string(answer.Body) {
				t.Errorf("key %d is answered with %+v", n, got.Response)
			}
		}
		for n := range trying {
			wantFull(t, a.claim(nth(200+n)))
			must(t, a.Forget(context.Background(), nth(n).Key, idempotency.Precondition{}))
			time.Sleep(4 * time.Second)
		}
		for n := range 10 { // new keys leave room for responses of runs in flight
			must(t, a.Forget(context.Background(), nth(trying+n).Key, idempotency.Precondition{}))
		}
		a.run(nth(300))
		if unsettled, _ := a.InProgress(); unsettled != 1 {
			t.Errorf("%d are unsettled, want the new run only", unsettled-1)
		}
	})
}

// A response that the store could never keep does not wait: it is kept like one that is larger than
// the limit of a response.
func TestResponseTooLargeForTheStore(t *testing.T) {
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
				a := newInMemory(t, 1<<20)
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
				if a.logged.FilterMessageSnippet("too large").Len() == 0 {
					t.Errorf("logged is %v", a.logged.All())
				}
			})
		})
	}
}

// A local copy has what the store has.
func TestCopyOfResponseTooLargeForTheStore(t *testing.T) {
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

func TestFullStore(t *testing.T) {
	play(t, []scene{
		{"a response of a forced run that can never be kept replaces nothing", "memory", `
			a runs first; first ends 201 kept; a runs run force; a asks w; run ends 201x2000000 released; run loses; w shares run; a replays first`},
		// It is tried whole, without the body, and without the header. The memory of the body is released at once.
		{"the rest of a large response is stored later, if the store has no room for that either", "memory", `
			a runs run; a store large settle; run ends 201x3 trying; a asked settle 3; run stored 1; sleep 1m; a store works; sleep 4s
			a has complete 1; a reason the store has no room for it; run stored 1`},
		{"a process that exits waits for its runs, but not for room in a store that it loses", "memory", `
			a runs one key=1; a runs two key=2; a store full settle; one ends 201 trying; a replays one key=1; a draining; sleep 1m; a undone
			two ends 201 trying; a done; a logs 2 the run's end was never stored: the process stops; a counts lost=2`},
	})
}
