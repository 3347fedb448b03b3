package recording

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// budgetOf returns a budget and a function that makes allowances of it.
func budgetOf(limit int64) (*Budget, func() *Allowance) {
	b := &Budget{limit: limit}
	return b, func() *Allowance { return &Allowance{Budget: b} }
}

func wantUsed(t *testing.T, b *Budget, want int64) {
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
		take func(a *Allowance, n int) bool
	}{
		"request": {limit - limit/10, func(a *Allowance, n int) bool { return a.Admit(n) == nil }},
		"replay":  {limit - limit/10, (*Allowance).TryTakeReplay},
		"run":     {limit, (*Allowance).TryTake},
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
	next().Count(900)
	if err := b.Busy(); err != nil {
		t.Errorf("at nine tenths: %v", err)
	}
	over := next()
	over.Count(1)
	if err := b.Busy(); err == nil {
		t.Error("beyond nine tenths a new run has room")
	}
	over.GiveAllBack()
	if err := b.Busy(); err != nil {
		t.Errorf("back at nine tenths: %v", err)
	}
}

// What may be a duplicate is admitted while it is small.
func TestSmallRequestsAreAdmitted(t *testing.T) {
	b, next := budgetOf(1000)
	next().Count(1000)
	request := next()
	for range 2 {
		if err := request.Admit(SmallBody / 2); err != nil {
			t.Fatalf("a small request: %v", err)
		}
	}
	if request.Admit(1) == nil {
		t.Error("a request that is not small is admitted")
	}
	wantUsed(t, b, 1000+SmallBody)
}

// One run goes over the limit at a time, until it has all of its response.
func TestOneRunOverdraws(t *testing.T) {
	b, next := budgetOf(1000)
	one, two := next(), next()
	for range 3 {
		if !one.TryTake(600) {
			t.Fatal("the one that overdraws has no room")
		}
	}
	if two.TryTake(1) {
		t.Fatal("two overdraw at once")
	}
	one.complete() // its client may take for ever
	if !two.TryTake(1) {
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
		others.Count(1000)
		begun := time.Now()
		run.Take(10)
		if waited := time.Since(begun); waited != RoomPatience {
			t.Errorf("it waited for %v, want %v", waited, RoomPatience)
		}
		run.Take(10) // it has waited enough
		if waited := time.Since(begun); waited != RoomPatience {
			t.Errorf("it waited again, %v in all", waited)
		}

		second := next()
		time.AfterFunc(time.Second, others.GiveAllBack)
		begun = time.Now()
		second.Take(10)
		if waited := time.Since(begun); waited != time.Second {
			t.Errorf("it waited for %v, want until there was room", waited)
		}
		wantUsed(t, b, 30)
	})
}

// A run waits for RoomPatience in all, not for each piece of its response.
func TestRunWaitsForRoomOnceInAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(100)
		b.overdrawing = next()
		holder, run := next(), next()
		holder.Count(100)
		go func() {
			for range 3 { // replays that end, one after the other
				time.Sleep(RoomPatience / 3)
				holder.GiveBack(11)
			}
		}()
		begun := time.Now()
		for range 9 {
			run.Take(11)
		}
		if waited := time.Since(begun); waited != RoomPatience {
			t.Errorf("it waited for %v in all, want %v", waited, RoomPatience)
		}
	})
}

// Replays wait until there is room or their client is gone. A small one never waits, and
// one that is larger than nine tenths is sent alone.
func TestReplayWaitsForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, next := budgetOf(1 << 20)
		large, waiting, small := next(), next(), next()
		if err := large.TakeReplay(t.Context(), 2<<20); err != nil {
			t.Fatalf("a replay alone: %v", err)
		}
		if err := small.TakeReplay(t.Context(), smallReplay); err != nil {
			t.Fatalf("a small replay: %v", err)
		}
		done := make(chan error)
		go func() { done <- waiting.TakeReplay(t.Context(), 1<<19) }()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("there is room beside it: %v", err)
		default:
		}
		gone, leave := context.WithCancelCause(t.Context())
		leave(errNoReaders)
		if err := next().TakeReplay(gone, 1<<19); !errors.Is(err, errNoReaders) {
			t.Errorf("without its client: %v", err)
		}
		large.GiveAllBack()
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
	one, two := b.Share(response), b.Share(response)
	other := b.Share(&idempotency.Response{Body: make([]byte, 20)})
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

// room is an allowance of a budget that nothing else uses.
func room() *Allowance { return &Allowance{Budget: NewBudget(1 << 30)} }
