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
func newInMemory(t *testing.T, limit int64, copies *engine.Copies) *replica {
	store := memory.New(limit)
	t.Cleanup(func() { _ = store.Close() })
	r := &replica{t: t, link: newLink(store), copies: copies}
	return r.open(inMemory{r.link}, func(*engine.Options) {})
}

// nth returns someRequest with the nth key.
func nth(n int) engine.Request { return withKey(someRequest(), fmt.Sprint("key ", n)) }

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
		a := newInMemory(t, 1<<20, nil)
		answer := created(strings.Repeat("x", 20_000))
		var runs []*engine.Run
		for n := range 60 {
			runs = append(runs, a.run(nth(n)))
		}
		kept, trying := 0, 0
		for n, run := range runs {
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

func TestFullStore(t *testing.T) {
	play(t, []scene{
		// It does not wait: it is kept like one that is larger than the limit of a response.
		{"a response that can never be kept is kept without its body, and a header that cannot either without both", "memory", `
			a runs run; a asks w; run ends {201x2000000|headed} kept; run stored 1; run loses {body|all}; w shares run; a replays run
			a idle; a runs next key=next; next ends 201 kept; a counts kept=2; a logs 1.. too large`},
		{"a local copy has of it what the store has", "memory copies", `
			a runs run; run ends 201x2000000 kept; run loses body; a replays run; a store refused; a replays run`},
		{"a response of a forced run that can never be kept replaces nothing", "memory", `
			a runs first; first ends 201 kept; a runs run force; a asks w; run ends 201x2000000 released; run loses body; w shares run; a replays first`},
		// It is tried whole, without the body, and without the header. The memory of the body is released at once.
		{"the rest of a large response is stored later, if the store has no room for that either", "memory", `
			a runs run; a store large settle; run ends 201x3 trying; a asked settle 3; run stored 1; sleep 1m; a store works; sleep 4s
			a has complete 1; a reason the store has no room for it; run stored 1`},
		{"a process that exits waits for its runs, but not for room in a store that it loses", "memory", `
			a runs one key=1; a runs two key=2; a store full settle; one ends 201 trying; a replays one key=1; a draining; sleep 1m; a undone
			two ends 201 trying; a done; a logs 2 the run's end was never stored: the process stops; a counts lost=2`},
	})
}
