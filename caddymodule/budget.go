package caddymodule

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
)

// budget counts the bytes that are held for requests, against a limit: bodies as they
// arrive, responses and replays until their clients have them. The last tenth is for
// what is in flight: while it is reached, no new request is admitted.
type budget struct {
	// refused counts the requests for which there was no room.
	refused atomic.Int64

	mu    sync.Mutex
	limit int64
	used  int64
	// changed is closed when room was given back; nil while nobody waits for some.
	changed chan struct{}
	// overdrawing is the one that may go over the limit. Without it, those in flight
	// could wait for each other's room for ever.
	overdrawing *allowance
}

// buffered is the budget of this process. A configuration sets its limit.
var buffered = budget{limit: math.MaxInt64}

// setLimit changes the limit, in bytes. What is held already stays.
func (b *budget) setLimit(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = bytes
	b.changedLocked()
}

func (b *budget) changedLocked() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
}

// budgeted are the configurations that run, the oldest first. The limit of that one
// counts, as with the settings of a store.
var budgeted configurations

type configurations struct {
	mu   sync.Mutex
	apps []*App
}

func (c *configurations) add(app *App) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = append(c.apps, app)
	buffered.setLimit(c.apps[0].Limits.Buffered)
}

func (c *configurations) remove(app *App) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apps = slices.DeleteFunc(c.apps, func(other *App) bool { return other == app })
	if len(c.apps) > 0 {
		buffered.setLimit(c.apps[0].Limits.Buffered)
	}
}

// mostBuffered is the largest limit that is chosen by itself.
const mostBuffered = 256 << 20

// defaultBuffered is a quarter of the memory limit (GOMEMLIMIT, which Caddy sets by the
// container's), at most mostBuffered.
func defaultBuffered() int64 {
	limit := debug.SetMemoryLimit(-1)
	if limit == math.MaxInt64 {
		return mostBuffered
	}
	return min(limit/4, mostBuffered)
}

// errBudgetSpent says that what is held takes all the room there is.
type errBudgetSpent struct{ limit int64 }

// Error implements error.
func (e errBudgetSpent) Error() string {
	return fmt.Sprintf("the limit of %d buffered bytes is reached", e.limit)
}

// allowance is what one holder has taken of a budget.
type allowance struct {
	budget *budget
	bytes  int64 // under the budget's lock
}

// admit takes room for a request that is not in flight yet, or reports that there is
// none.
func (a *allowance) admit(n int) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+int64(n) > b.limit-b.limit/10 {
		b.refused.Add(1)
		return errBudgetSpent{b.limit}
	}
	b.used += int64(n)
	a.bytes += int64(n)
	return nil
}

// tryTake takes room for what is in flight, and reports whether there was some.
func (a *allowance) tryTake(n int) bool {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.takeLocked(n)
}

func (a *allowance) takeLocked(n int) bool {
	b := a.budget
	switch {
	case n == 0 || b.used+int64(n) <= b.limit:
	case b.overdrawing == nil, b.overdrawing == a:
		b.overdrawing = a
	default:
		return false
	}
	b.used += int64(n)
	a.bytes += int64(n)
	return true
}

// take is tryTake that waits for room, until the context ends.
func (a *allowance) take(ctx context.Context, n int) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	for !a.takeLocked(n) {
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		select {
		case <-changed:
			b.mu.Lock()
		case <-ctx.Done():
			b.mu.Lock()
			return context.Cause(ctx)
		}
	}
	return nil
}

// complete says that the holder takes no more. How long it keeps what it has is up to a
// client, and another may have to go over the limit meanwhile.
func (a *allowance) complete() {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.overdrawing == a {
		b.overdrawing = nil
		b.changedLocked()
	}
}

// giveBack gives some of the room back, at most what was taken.
func (a *allowance) giveBack(n int64) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	n = min(n, a.bytes)
	a.bytes -= n
	b.used -= n
	if a.bytes == 0 && b.overdrawing == a {
		b.overdrawing = nil
	}
	b.changedLocked()
}

// giveAllBack ends the allowance.
func (a *allowance) giveAllBack() { a.giveBack(math.MaxInt64) }
