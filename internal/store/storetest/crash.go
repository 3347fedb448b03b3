package storetest

import (
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// crash simulates the end of the store's process, and opens the store as the next process does.
func (f *fixture) crash() {
	f.Helper()
	if f.options.Crash == nil {
		f.Skip("the store outlives its processes, or is lost with its process")
	}
	f.store = f.options.Crash(f.T, f.store)
	f.peer = f.store
	f.closeAtEnd(f.store)
}

func crashReleases(f *fixture) {
	c := f.newClaim(key("new"))
	lost := f.claim(c, idempotency.Proceed)
	Must(f, f.store.Renew(f.ctx, c))
	busy := key("released before")
	f.run(busy, release(true, "busy"))
	before := f.lookup(busy)
	f.claim(f.newClaim(busy), idempotency.Proceed)
	f.crash()
	f.absent(c.Key)
	f.sameRecord("a key that was released before", f.lookup(busy), before)
	WantErr(f, f.store.Settle(f.ctx, c.Key, lost.Record, complete("late")), idempotency.ErrGone)
	for k, attempt := range map[idempotency.Key]int{c.Key: 1, busy: 2} {
		if again := f.claim(f.newClaim(k), idempotency.Proceed); again.Record.Attempt != attempt {
			f.Errorf("it is claimed as attempt %d, want %d", again.Record.Attempt, attempt)
		}
	}
}

func crashHolds(f *fixture) {
	c := f.newClaim(key("a"))
	c.Hold = true
	claimed := f.claim(c, idempotency.Proceed)
	c.Retention *= 2
	Must(f, f.store.Renew(f.ctx, c))
	renewed := f.lookup(c.Key)
	f.crash()
	for range 2 {
		refused := f.claim(f.newClaim(c.Key), idempotency.RefuseHeld)
		if refused.Record.ExecutionID != claimed.Record.ExecutionID || !refused.Record.Expires.Equal(renewed.Expires) {
			f.Errorf("held by %+v, want %+v", refused.Record, renewed)
		}
	}
	Must(f, ErrOf(f.store.Change(f.ctx, c.Key, idempotency.Change{State: idempotency.Released, Token: "operator", Precondition: idempotency.Precondition{State: idempotency.Held}})))
	f.claim(f.newClaim(c.Key), idempotency.Proceed)
}

func crashCounts(f *fixture) {
	k := key("a")
	for attempt := 1; attempt <= 2; attempt++ {
		c := f.newClaim(k)
		c.MaxAttempts = 2
		if claimed := f.claim(c, idempotency.Proceed); claimed.Record.Attempt != attempt {
			f.Fatalf("attempt %d, want %d", claimed.Record.Attempt, attempt)
		}
		f.crash()
	}
	c := f.newClaim(k)
	c.MaxAttempts = 2
	f.claim(c, idempotency.RefuseExhausted)
	c.MaxAttempts = 0
	f.claim(c, idempotency.Proceed)
}

func crashLeavesKept(f *fixture) {
	for name, terms := range map[string]idempotency.Terms{
		"release": {}, "hold": {Hold: true}, "attempts": {MaxAttempts: 5},
	} {
		k := key(name)
		f.run(k, complete("kept"))
		c := f.newForced(k)
		c.Hold, c.MaxAttempts = terms.Hold, terms.MaxAttempts
		f.claim(c, idempotency.Proceed)
	}
	f.crash()
	for name, attempts := range map[string]int{"release": 1, "hold": 2, "attempts": 2} {
		f.replays(name, "kept")
		if got := f.lookup(key(name)).Attempt; got != attempts {
			f.Errorf("%s: %d attempts, want %d", name, got, attempts)
		}
	}
}

func crashKeeps(f *fixture) {
	large := strings.Repeat("large ", 50_000)
	records := make(map[string]*idempotency.Record)
	for name, s := range map[string]idempotency.Settlement{
		"small": complete("small"), "large": complete(large), "released": release(true, large), "held": hold(),
	} {
		k := key(name)
		f.run(k, s)
		records[name] = f.lookup(k)
	}
	k := key("completed")
	f.run(k, hold())
	Must(f, ErrOf(f.store.Change(f.ctx, k, completing(large))))
	records["completed"] = f.lookup(k)
	f.crash()
	for name, record := range records {
		f.sameRecord(name, f.lookup(key(name)), record)
	}
	f.replays("small", "small")
	f.replays("large", large)
	f.replays("completed", large)
	f.sameResponse("released", f.response(key("released"), records["released"].Token), answer(503, large))
}
