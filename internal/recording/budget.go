package recording

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Budget counts the bytes that are held for requests, against a limit: bodies as they
// arrive, responses and replays until their clients have them. The last tenth is for
// the responses of runs in flight: while it is reached, no new request is admitted, and
// replays wait.
type Budget struct {
	mu    sync.Mutex
	limit int64
	used  int64
	// changed is closed when room was given back, and changedForReplays when there may be
	// some for replays; nil while nobody waits.
	changed, changedForReplays chan struct{}
	// overdrawing is the run that may go over the limit. Without it, those in flight
	// could wait for each other's room for ever. While it is passed, and what clients have
	// comes back soon, nobody else may.
	overdrawing *Allowance
	// replays counts the replays that hold room. One alone may go beyond nine tenths: else
	// one that is larger than that would wait for ever.
	replays int
	// shared are the responses that several requests are answered with.
	shared map[*idempotency.Response]*sharedResponse
	// lent is what is whole, and in the hands of clients that take it at their own pace, by its
	// identity.
	lent map[any]*loan
	// wanted and wantedForReplays are how much those want that wait for room. calledIn is when
	// somebody last looked which clients could be let go for it.
	wanted, wantedForReplays int64
	calledIn                 time.Time
}

// sharedResponse is a response that is held once for all who waited for its run.
type sharedResponse struct {
	holders int
	taken   Allowance
}

// NewBudget returns a budget with this limit, in bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// SetLimit changes the limit, in bytes. What is held already stays.
func (b *Budget) SetLimit(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = bytes
	b.changedLocked()
}

func (b *Budget) changedLocked() {
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

// awaitLocked gives the lock back until [wakeAll] is called for those who wait, or until
// there is something to receive from stop. It reports whether it was that.
func awaitLocked[T any](mu *sync.Mutex, waiting *chan struct{}, stop <-chan T) (stopped bool) {
	changed := awaited(waiting)
	mu.Unlock()
	defer mu.Lock()
	select {
	case <-changed:
		return false
	case <-stop:
		return true
	}
}

// SpentError says that what is held takes all the room there is.
type SpentError struct{ limit int64 }

// Error implements error.
func (e SpentError) Error() string {
	return fmt.Sprintf("the limit of %d buffered bytes is reached", e.limit)
}

// Allowance is what one holder has taken of a budget.
type Allowance struct {
	// Budget is what the room is taken of.
	Budget *Budget
	bytes  int64 // under the budget's lock, like what follows
	// impatient says that the holder has waited for long enough, and waited for how long.
	impatient bool
	waited    time.Duration
	// replays says that the holder counts as a replay.
	replays bool
}

// Busy returns a [SpentError] while there is no room for new runs.
func (b *Budget) Busy() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used <= b.mostForNewLocked() {
		return nil
	}
	return SpentError{b.limit}
}

// mostForNewLocked is how much of the limit all requests that begin can have together: the
// rest is for those in flight.
func (b *Budget) mostForNewLocked() int64 { return b.limit - b.limit/10 }

// SmallBody is the size up to which a request is admitted always, in bytes: its
// connection alone takes as much, and it may be a duplicate. If it would run, the engine
// refuses it.
const SmallBody = 4 << 10

// Admit takes room for a request that is not in flight yet, in bytes. The error is a
// [SpentError] where there is none.
func (a *Allowance) Admit(n int) error {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+int64(n) > b.mostForNewLocked() && a.bytes+int64(n) > SmallBody {
		return SpentError{b.limit}
	}
	a.addLocked(int64(n))
	return nil
}

func (a *Allowance) addLocked(n int64) {
	a.Budget.used += n
	a.bytes += n
}

// Count takes room for what is held already, whether there is some or not.
func (a *Allowance) Count(n int) {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.addLocked(int64(n))
}

// RoomPatience is how long a run waits for room in all. Longer, and its upstream might
// give up on a client that reads nothing: then a request that was executed would run
// again.
const RoomPatience = 30 * time.Second

// TryTake takes room for the response of a run, and reports whether there was some.
func (a *Allowance) TryTake(n int) bool {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	return a.takeLocked(int64(n))
}

func (a *Allowance) takeLocked(n int64) bool {
	b := a.Budget
	switch {
	case n == 0, a.impatient, b.used+n <= b.limit:
	case b.overdrawing == a, b.overdrawing == nil && (b.used <= b.limit || !b.comesBackLocked()):
		b.overdrawing = a
	default:
		return false
	}
	a.addLocked(n)
	return true
}

// Take is [Allowance.TryTake] that waits for room, but not for ever: nothing that others hold makes
// a response one that is not kept.
func (a *Allowance) Take(n int) {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted += int64(n)
	begun := time.Now()
	defer func() { // before the lock is given back
		b.wanted -= int64(n)
		a.waited += time.Since(begun)
	}()
	for !a.takeLocked(int64(n)) {
		waited := a.waited + time.Since(begun)
		left := RoomPatience - waited
		if a.impatient = left <= 0; a.impatient {
			continue
		}
		if b.callInLocked(waited) {
			continue
		}
		again := time.NewTimer(min(left, callInEvery))
		awaitLocked(&b.mu, &b.changed, again.C)
		again.Stop()
	}
}

// smallReplay is the size up to which a replay never waits for room, in bytes: its
// connection alone takes as much.
const smallReplay = 16 << 10

// TryTakeReplay takes room for a replay, and reports whether there was some.
func (a *Allowance) TryTakeReplay(n int) bool {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	return a.takeReplayLocked(int64(n))
}

func (a *Allowance) takeReplayLocked(n int64) bool {
	b := a.Budget
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

// TakeReplay is [Allowance.TryTakeReplay] that waits for room, until the context ends. The
// error is why it has ended.
func (a *Allowance) TakeReplay(ctx context.Context, n int) error {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wantedForReplays += int64(n)
	defer func() { b.wantedForReplays -= int64(n) }()
	for !a.takeReplayLocked(int64(n)) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if b.callInLocked(0) {
			continue
		}
		again, stop := context.WithTimeout(ctx, callInEvery)
		awaitLocked(&b.mu, &b.changedForReplays, again.Done())
		stop()
	}
	return nil
}

// complete says that the holder takes no more. How long it keeps what it has is up to a
// client, and another may have to go over the limit meanwhile.
func (a *Allowance) complete() {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.overdrawing == a {
		b.overdrawing = nil
		b.changedLocked()
	}
}

// GiveBack gives some of the room back, at most what was taken.
func (a *Allowance) GiveBack(n int64) {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.giveBackLocked(n)
}

func (a *Allowance) giveBackLocked(n int64) {
	b := a.Budget
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

// GiveAllBack ends the allowance.
func (a *Allowance) GiveAllBack() { a.GiveBack(math.MaxInt64) }

// Share counts a response that a request is answered with, once for all requests that
// hold the same one. They have it already: there is nothing to wait for.
func (b *Budget) Share(response *idempotency.Response) (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shared[response]
	if s == nil {
		s = &sharedResponse{taken: Allowance{Budget: b}}
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
