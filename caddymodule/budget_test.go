package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// budgetOf returns a budget and a function that makes allowances of it.
func budgetOf(limit int64) (*budget, func() *allowance) {
	b := &budget{limit: limit}
	return b, func() *allowance { return &allowance{budget: b} }
}

func wantUsed(t *testing.T, b *budget, want int64) {
	t.Helper()
	if b.used != want {
		t.Errorf("%d bytes are in use, want %d", b.used, want)
	}
}

// New requests get nine tenths, replays too, and runs all there is.
func TestBudgetKeepsATenthForRuns(t *testing.T) {
	const limit = 1 << 20
	takes := map[string]struct {
		most int64
		take func(a *allowance, n int) bool
	}{
		"request": {limit - limit/10, func(a *allowance, n int) bool { return a.admit(n) == nil }},
		"replay":  {limit - limit/10, (*allowance).tryTakeReplay},
		"run":     {limit, (*allowance).tryTake},
	}
	for name, c := range takes {
		t.Run(name, func(t *testing.T) {
			b, next := budgetOf(limit)
			b.overdrawing, b.replays = next(), 1 // somebody else's
			if !c.take(next(), int(c.most)) {
				t.Fatalf("no room for %d of %d bytes", c.most, limit)
			}
			if c.take(next(), smallReplay+1) {
				t.Errorf("there is room beyond %d of %d bytes", c.most, limit)
			}
			wantUsed(t, b, c.most)
		})
	}
}

func TestBudgetRefusesNewRunsAtNineTenths(t *testing.T) {
	b, next := budgetOf(1000)
	next().count(900)
	if err := b.busy(); err != nil {
		t.Errorf("at nine tenths: %v", err)
	}
	over := next()
	over.count(1)
	if err := b.busy(); err == nil {
		t.Error("beyond nine tenths a new run has room")
	}
	over.giveAllBack()
	if err := b.busy(); err != nil {
		t.Errorf("back at nine tenths: %v", err)
	}
}

// What may be a duplicate is admitted while it is small.
func TestSmallRequestsAreAdmitted(t *testing.T) {
	b, next := budgetOf(1000)
	next().count(1000)
	request := next()
	for range 2 {
		if err := request.admit(smallBody / 2); err != nil {
			t.Fatalf("a small request: %v", err)
		}
	}
	if request.admit(1) == nil {
		t.Error("a request that is not small is admitted")
	}
	wantUsed(t, b, 1000+smallBody)
}

// One run goes over the limit at a time, until it has all of its response.
func TestOneRunOverdraws(t *testing.T) {
	b, next := budgetOf(1000)
	one, two := next(), next()
	for range 3 {
		if !one.tryTake(600) {
			t.Fatal("the one that overdraws has no room")
		}
	}
	if two.tryTake(1) {
		t.Fatal("two overdraw at once")
	}
	one.complete() // its client may take for ever
	if !two.tryTake(1) {
		t.Error("when the first is complete, the second has no room")
	}
	wantUsed(t, b, 1801)
}

// A run waits for room, but it never waits so long that its upstream gives up.
func TestRunWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1000)
		b.overdrawing = next()
		others, run := next(), next()
		others.count(1000)
		begun := time.Now()
		run.take(10)
		if waited := time.Since(begun); waited != roomPatience {
			t.Errorf("it waited for %v, want %v", waited, roomPatience)
		}
		run.take(10) // it has waited enough
		if waited := time.Since(begun); waited != roomPatience {
			t.Errorf("it waited again, %v in all", waited)
		}

		second := next()
		time.AfterFunc(time.Second, others.giveAllBack)
		begun = time.Now()
		second.take(10)
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("it waited for %v, want until there was room", waited)
		}
		wantUsed(t, b, 30)
	})
}

// A run waits for roomPatience in all, not for each piece of its response.
func TestRunWaitsForRoomOnceInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(100)
		b.overdrawing = next()
		holder, run := next(), next()
		holder.count(100)
		go func() {
			for range 3 { // replays that end, one after the other
				time.Sleep(roomPatience / 3)
				holder.giveBack(11)
			}
		}()
		begun := time.Now()
		for range 9 {
			run.take(11)
		}
		if waited := time.Since(begun); waited != roomPatience {
			t.Errorf("it waited for %v in all, want %v", waited, roomPatience)
		}
	})
}

// Replays wait until there is room or their client is gone. A small one never waits, and
// one that is larger than nine tenths is sent alone.
func TestReplayWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1 << 20)
		large, waiting, small := next(), next(), next()
		if err := large.takeReplay(t.Context(), 2<<20); err != nil {
			t.Fatalf("a replay alone: %v", err)
		}
		if err := small.takeReplay(t.Context(), smallReplay); err != nil {
			t.Fatalf("a small replay: %v", err)
		}
		done := make(chan error)
		go func() { done <- waiting.takeReplay(t.Context(), 1<<19) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("there is room beside it: %v", err)
		default:
		}
		gone, leave := context.WithCancelCause(t.Context())
		leave(errNoReaders)
		if err := next().takeReplay(gone, 1<<19); !errors.Is(err, errNoReaders) {
			t.Errorf("without its client: %v", err)
		}
		large.giveAllBack()
		if err := <-done; err != nil {
			t.Errorf("when there is room: %v", err)
		}
		wantUsed(t, b, 1<<19+smallReplay)
	})
}

// A response that several are answered with counts once, until the last of them has it.
func TestSharedResponseCountsOnce(t *testing.T) {
	b, _ := budgetOf(1000)
	response := &idempotency.Response{Body: make([]byte, 300)}
	one, two := b.share(response), b.share(response)
	other := b.share(&idempotency.Response{Body: make([]byte, 20)})
	wantUsed(t, b, 320)
	one()
	one()
	wantUsed(t, b, 320)
	other()
	two()
	wantUsed(t, b, 0)
	if len(b.shared) != 0 {
		t.Errorf("%d responses are remembered", len(b.shared))
	}
}

// While a run waits for room its own time stands still: what others hold does not cut an
// answer that the upstream has given.
func TestWaitingForRoomCostsNoTimeout(t *testing.T) {
	others := &allowance{budget: &buffered}
	address, runs := upstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		buffered.mu.Lock() // from here on there is no room, and somebody else goes over the limit
		buffered.overdrawing = others
		others.addLocked(buffered.limit - buffered.used)
		buffered.mu.Unlock()
		time.AfterFunc(2*time.Second, others.giveAllBack)
		answers(201, strings.Repeat("x", 50_000))(w, r, n)
	})
	s := serveWith(t, "limits {\nbuffered 400KiB\n}", "dedup {\ntimeout 1s\n}", "reverse_proxy "+address)
	if got := s.mustPost("k", ""); got.status != 201 || len(got.body) != 50_000 || runs.Load() != 1 {
		t.Errorf("got %d with %d bytes after %d runs", got.status, len(got.body), runs.Load())
	}
}
