package caddymodule

import (
	"context"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// budget counts the bytes that are held for requests, against a limit: bodies as they
// arrive, responses and replays until their clients have them. The last tenth is for
// the responses of runs in flight: while it is reached, no new request is admitted, and
// replays wait.
type budget struct {
	// refused counts the requests for which there was no room.
	refused atomic.Int64

	mu    sync.Mutex
	limit int64
	used  int64
	// changed is closed when room was given back, and changedForReplays when there may be
	// some for replays; nil while nobody waits.
	changed, changedForReplays chan struct{}
	// overdrawing is the run that may go over the limit. Without it, those in flight
	// could wait for each other's room for ever.
	overdrawing *allowance
	// replays counts the replays that hold room. One alone may go beyond nine tenths: else
	// one that is larger than that would wait for ever.
	replays int
	// shared are the responses that several requests are answered with.
	shared map[*idempotency.Response]*sharedResponse
}

// sharedResponse is a response that is held once for all who waited for its run.
type sharedResponse struct {
	holders int
	taken   allowance
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
	wakeAll(&b.changed)
	if b.used <= b.mostForNewLocked() || b.replays == 0 { // else all that wait would wake for nothing
		wakeAll(&b.changedForReplays)
	}
}

// wakeAll closes a channel on which somebody may wait.
func wakeAll(waiting *chan struct{}) {
	if *waiting != nil {
		close(*waiting)
		*waiting = nil
	}
}

// awaited returns a channel that [wakeAll] closes.
func awaited(waiting *chan struct{}) <-chan struct{} {
	if *waiting == nil {
		*waiting = make(chan struct{})
	}
	return *waiting
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
	bytes  int64 // under the budget's lock, like what follows
	// impatient says that the holder has waited for long enough, and waited for how long.
	impatient bool
	waited    time.Duration
	// replays says that the holder counts as a replay.
	replays bool
}

// busy returns an error while there is no room for new runs.
func (b *budget) busy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used <= b.mostForNewLocked() {
		return nil
	}
	return errBudgetSpent{b.limit}
}

func (b *budget) mostForNewLocked() int64 { return b.limit - b.limit/10 }

// smallBody is the size up to which a request is admitted always, in bytes: its
// connection alone takes as much, and it may be a duplicate. If it would run, the engine
// refuses it.
const smallBody = 4 << 10

// admit takes room for a request that is not in flight yet, or reports that there is
// none.
func (a *allowance) admit(n int) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+int64(n) > b.mostForNewLocked() && a.bytes+int64(n) > smallBody {
		b.refused.Add(1)
		return errBudgetSpent{b.limit}
	}
	a.addLocked(int64(n))
	return nil
}

func (a *allowance) addLocked(n int64) {
	a.budget.used += n
	a.bytes += n
}

// count takes room for what is held already, whether there is some or not.
func (a *allowance) count(n int) {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.addLocked(int64(n))
}

// roomPatience is how long a run waits for room in all. Longer, and its upstream might
// give up on a client that reads nothing: then a request that was executed would run
// again.
const roomPatience = 30 * time.Second

// tryTake takes room for the response of a run, and reports whether there was some.
func (a *allowance) tryTake(n int) bool {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.takeLocked(int64(n))
}

func (a *allowance) takeLocked(n int64) bool {
	b := a.budget
	switch {
	case n == 0, a.impatient, b.used+n <= b.limit:
	case b.overdrawing == nil, b.overdrawing == a:
		b.overdrawing = a
	default:
		return false
	}
	a.addLocked(n)
	return true
}

// take is tryTake that waits for room, but not for ever: nothing that others hold makes
// a response one that is not kept.
func (a *allowance) take(n int) {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	patience := time.NewTimer(roomPatience - a.waited)
	defer patience.Stop()
	begun := time.Now()
	defer func() { a.waited += time.Since(begun) }() // before the lock is given back
	for !a.takeLocked(int64(n)) {
		changed := awaited(&b.changed)
		b.mu.Unlock()
		select {
		case <-changed:
			b.mu.Lock()
		case <-patience.C:
			b.mu.Lock()
			a.impatient = true
		}
	}
}

// smallReplay is the size up to which a replay never waits for room, in bytes: its
// connection alone takes as much.
const smallReplay = 16 << 10

// tryTakeReplay takes room for a replay, and reports whether there was some.
func (a *allowance) tryTakeReplay(n int) bool {
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	return a.takeReplayLocked(int64(n))
}

func (a *allowance) takeReplayLocked(n int64) bool {
	b := a.budget
	switch {
	case n <= smallReplay:
	case b.used+n <= b.mostForNewLocked(), b.replays == 0:
		a.replays = true
		b.replays++
	default:
		return false
	}
	a.addLocked(n)
	return true
}

// takeReplay is tryTakeReplay that waits for room, until the context ends.
func (a *allowance) takeReplay(ctx context.Context, n int) error {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	for !a.takeReplayLocked(int64(n)) {
		changed := awaited(&b.changedForReplays)
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
	a.budget.mu.Lock()
	defer a.budget.mu.Unlock()
	a.giveBackLocked(n)
}

func (a *allowance) giveBackLocked(n int64) {
	b := a.budget
	n = min(n, a.bytes)
	a.bytes -= n
	b.used -= n
	if a.bytes == 0 && b.overdrawing == a {
		b.overdrawing = nil
	}
	if a.bytes == 0 && a.replays {
		a.replays = false
		b.replays--
	}
	b.changedLocked()
}

// giveAllBack ends the allowance.
func (a *allowance) giveAllBack() { a.giveBack(math.MaxInt64) }

// share counts a response that a request is answered with, once for all requests that
// hold the same one. They have it already: there is nothing to wait for.
func (b *budget) share(response *idempotency.Response) (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shared[response]
	if s == nil {
		s = &sharedResponse{taken: allowance{budget: b}}
		s.taken.addLocked(int64(len(response.Body)))
		if b.shared == nil {
			b.shared = make(map[*idempotency.Response]*sharedResponse)
		}
		b.shared[response] = s
	}
	s.holders++
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if s.holders--; s.holders == 0 {
			delete(b.shared, response)
			s.taken.giveBackLocked(math.MaxInt64)
		}
	})
}
