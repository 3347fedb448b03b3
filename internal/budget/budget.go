// Package budget counts the bytes that all requests together may hold, and holds them in chunks.
package budget

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// Budget limits the bytes that are held for requests: bodies as they arrive, recorded responses,
// and replays until their clients have read them. Room is reserved before anything is allocated
// or read.
//
// New requests and replays get nine tenths of the limit, runs in flight all of it. Small responses
// always get room. Others wait for it: first the runs, oldest first, then the replays, in the order in
// which they came.
//
// Runs could wait for each other's room without end, also because one is the other's client. So when nothing
// was granted or released for [stallTimeout], the oldest run that waits may exceed the limit until it ends,
// and after another stallTimeout the next.
type Budget struct {
	mu          sync.Mutex
	limit, used int64
	begun       uint64    // counts the runs
	runs        []*waiter // by age
	replays     []*waiter
	progressed  time.Time   // when something was granted or released
	stall       *time.Timer // calls stalled; nil until something waits
	shared      map[*byte]*sharedBody
	unstored    map[*byte]Holder // of bodies that are not stored yet

	unverified int64        // bytes of bodies whose signature is not verified yet
	unread     []*Allowance // that read such a body; the first has read for the longest
	changed    *sync.Cond   // unverified or unread

	clients clients
}

// waiter is a holder that waits for room. granted is closed when it gets the room.
type waiter struct {
	of      *Allowance
	bytes   int64
	granted chan struct{}
}

// sharedBody is a body that several requests are answered with.
type sharedBody struct {
	users     int
	allowance Allowance
}

// Holder holds a body, and counts its users.
type Holder interface {
	Held
	// Use counts a user of the body, and reports whether it is still held.
	Use() bool
	// Unuse ends one Use.
	Unuse()
}

// New returns a budget with this limit, in bytes.
func New(limit int64) *Budget {
	b := &Budget{limit: limit, shared: make(map[*byte]*sharedBody), unstored: make(map[*byte]Holder)}
	b.clients = clients{of: b, readers: make(map[Held][]Client)}
	b.changed = sync.NewCond(&b.mu)
	return b
}

// Used returns how many bytes are taken.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}

// Half returns half of the limit, in bytes.
func (b *Budget) Half() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.limit / 2
}

// SetLimit changes the limit, in bytes. What is held already stays.
func (b *Budget) SetLimit(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = bytes
	b.grantLocked()
}

// SpentError is the error when the limit is reached.
type SpentError struct{ limit, missing int64 }

// Error implements error.
func (e SpentError) Error() string {
	return fmt.Sprintf("the limit of %d buffered bytes is reached", e.limit)
}

// LargeError is the error of a request that needs more than its share, which all like it get together.
type LargeError struct {
	bytes, limit int64
	share        string // of the limit, in words
}

// Error implements error.
func (e *LargeError) Error() string {
	return fmt.Sprintf("the body would take %d bytes with what it is parsed into, more than %s of limits { buffered }, %d bytes", e.bytes, e.share, e.limit)
}

// Busy returns a [SpentError] while no new run may start.
func (b *Budget) Busy() error {
	b.mu.Lock()
	over := b.used - b.newRequestLimit()
	limit := b.limit
	b.mu.Unlock()
	if over <= 0 {
		return nil
	}
	b.clients.disconnectIdle(over)
	return SpentError{limit, over}
}

// newRequestLimit is the limit for new requests and replays. It leaves a tenth to the runs in flight.
func (b *Budget) newRequestLimit() int64 { return b.limit - b.limit/10 }

// Allowance is the room that one holder has taken from a budget.
type Allowance struct {
	// Budget is the budget that the room is taken from.
	Budget     *Budget
	bytes      int64       // under the budget's lock
	run        *run        // nil for a request, and until a run takes room
	unverified *unverified // nil for anything else
}

// run is what all allowances of one run share: they wait, and exceed the limit, as one. Else a run would wait
// for its own room.
type run struct {
	id      string        // its execution ID, "" if it is unknown
	age     uint64        // its number
	waited  time.Duration // how long it has waited
	exceeds bool          // it may exceed the limit
}

const (
	// SmallBody is the size in bytes up to which a request is always admitted, and a run's response
	// never waits: a connection alone takes as much memory. A small request that is not a duplicate
	// is refused by the engine if there is no room.
	SmallBody = 4 << 10
	// SmallReplay is the size in bytes up to which a replay never waits: a connection alone takes as
	// much memory.
	SmallReplay = 16 << 10
	// RoomTimeout is how long one run waits for room in all. If it waited longer, its upstream might
	// give up, and the executed request would run again.
	RoomTimeout = 30 * time.Second
)

// Admit takes room for n bytes of a request that is not in flight yet. If there is none, it returns a
// [SpentError] or a [*LargeError].
func (a *Allowance) Admit(n int) error {
	err := a.admit(n)
	if full, is := errors.AsType[SpentError](err); is {
		a.Budget.clients.disconnectIdle(full.missing)
	}
	return err
}

func (a *Allowance) admit(n int) error {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if a.unverified != nil {
		if err := a.awaitShareLocked(int64(n)); err != nil {
			return err
		}
	}
	missing := b.used + int64(n) - b.newRequestLimit()
	switch all := a.bytes + int64(n); {
	case all <= SmallBody:
	case all > b.newRequestLimit():
		return &LargeError{all, b.limit, "nine tenths"}
	case missing > 0:
		return SpentError{b.limit, missing}
	}
	a.addLocked(int64(n))
	return nil
}

// Count takes room for n bytes that are held already, even beyond the limit.
func (a *Allowance) Count(n int) {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.addLocked(int64(n))
}

// Taken returns how many bytes it has taken.
func (a *Allowance) Taken() int64 {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	return a.bytes
}

// Part returns another allowance of the same run.
func (a *Allowance) Part() Allowance {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	return Allowance{Budget: a.Budget, run: a.runLocked()}
}

// SetRun names the run that the room is for.
func (a *Allowance) SetRun(executionID string) {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.runLocked().id = executionID
}

func (a *Allowance) runLocked() *run {
	if a.run == nil {
		a.Budget.begun++
		a.run = &run{age: a.Budget.begun}
	}
	return a.run
}

func (a *Allowance) addLocked(n int64) {
	a.Budget.used += n
	a.bytes += n
	if a.unverified != nil {
		a.Budget.unverified += n
	}
}

// TryTake takes room for n bytes of a run's response, and reports whether there was room.
func (a *Allowance) TryTake(n int) bool {
	b := a.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.runLocked()
	if a.bytes+int64(n) <= SmallBody {
		a.addLocked(int64(n))
		return true
	}
	return a.takeLocked(int64(n))
}

func (a *Allowance) takeLocked(n int64) bool {
	b := a.Budget
	if n > 0 && b.used+n > b.limit && !a.run.exceeds {
		return false
	}
	a.addLocked(n)
	return true
}

// Take is like [Allowance.TryTake], but waits for room. It reports false if there was none within
// [RoomTimeout].
func (a *Allowance) Take(n int) bool {
	if a.TryTake(n) {
		return true
	}
	start := time.Now()
	a.Budget.mu.Lock()
	left := RoomTimeout - a.run.waited
	a.Budget.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), left)
	defer cancel()
	took := a.wait(ctx, &a.Budget.runs, n)
	a.Budget.mu.Lock()
	a.run.waited += time.Since(start)
	a.Budget.mu.Unlock()
	return took
}

// TakeReplay takes room for n bytes of a replay. It waits for room until the context ends, and then
// returns the cause of that.
func (a *Allowance) TakeReplay(ctx context.Context, n int) error {
	if !a.wait(ctx, &a.Budget.replays, n) {
		return context.Cause(ctx)
	}
	return nil
}

// wait waits in a queue for room, and reports whether it got room before the context ended.
func (a *Allowance) wait(ctx context.Context, queue *[]*waiter, n int) bool {
	b, w := a.Budget, &waiter{a, int64(n), make(chan struct{})}
	b.mu.Lock()
	at := len(*queue)
	if a.run != nil { // else it is a replay, and stays in its order
		at, _ = slices.BinarySearchFunc(*queue, a.run.age, func(w *waiter, age uint64) int {
			if w.of.run.age <= age {
				return -1
			}
			return 1
		})
	}
	if len(b.runs)+len(b.replays) == 0 {
		b.progressed = time.Now() // nothing has waited for it
	}
	*queue = slices.Insert(*queue, at, w)
	b.grantLocked()
	b.awaitStallLocked()
	b.mu.Unlock()
	b.clients.disconnectIdle(b.missing())
	select {
	case <-w.granted:
		return true
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at = slices.Index(*queue, w)
	if at < 0 {
		return true // it was granted meanwhile
	}
	*queue = slices.Delete(*queue, at, at+1)
	b.grantLocked()
	return false
}

// grantLocked gives room to the waiters while there is some.
func (b *Budget) grantLocked() {
	for len(b.runs) > 0 && b.runs[0].of.takeLocked(b.runs[0].bytes) {
		b.runs = b.grantedLocked(b.runs)
	}
	for len(b.replays) > 0 && b.used+b.replays[0].bytes <= b.newRequestLimit() {
		b.replays[0].of.addLocked(b.replays[0].bytes)
		b.replays = b.grantedLocked(b.replays)
	}
}

// stallTimeout is how long nothing is granted or released before a run may exceed the limit.
const stallTimeout = 250 * time.Millisecond

// awaitStallLocked starts the timer if something waits.
func (b *Budget) awaitStallLocked() {
	switch {
	case len(b.runs) == 0 && len(b.replays) == 0:
	case b.stall == nil:
		b.stall = time.AfterFunc(stallTimeout, b.stalled)
	default:
		b.stall.Reset(max(0, time.Until(b.progressed.Add(stallTimeout))))
	}
}

// stalled lets the oldest run that waits exceed the limit if there was no progress. A replay that can never
// fit may do so if no run waits and nothing exceeds it.
func (b *Budget) stalled() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if time.Since(b.progressed) >= stallTimeout {
		b.progressed = time.Now()
		if len(b.runs) > 0 {
			b.runs[0].of.run.exceeds = true
			b.grantLocked()
		} else if len(b.replays) > 0 && b.replays[0].bytes > b.newRequestLimit() && b.used <= b.limit {
			b.replays[0].of.addLocked(b.replays[0].bytes)
			b.replays = b.grantedLocked(b.replays)
		}
	}
	b.awaitStallLocked()
}

// grantedLocked notifies the first waiter of a queue, and removes it.
func (b *Budget) grantedLocked(queue []*waiter) []*waiter {
	b.progressed = time.Now()
	close(queue[0].granted)
	return slices.Delete(queue, 0, 1)
}

// waits reports whether the run with this execution ID waits for room.
func (b *Budget) waits(executionID string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	is := func(w *waiter) bool { return w.of.run.id == executionID }
	return executionID != "" && slices.ContainsFunc(b.runs, is)
}

// missing returns how many bytes those lack that wait.
func (b *Budget) missing() (n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, w := range b.runs {
		n += w.bytes
	}
	limit := b.limit
	if len(b.replays) > 0 {
		limit = b.newRequestLimit()
	}
	for _, w := range b.replays {
		n += w.bytes
	}
	if n == 0 {
		return 0
	}
	return max(0, b.used+n-limit)
}

// Release releases n bytes of the room, at most what was taken.
func (a *Allowance) Release(n int64) {
	a.Budget.mu.Lock()
	defer a.Budget.mu.Unlock()
	a.releaseLocked(n)
}

func (a *Allowance) releaseLocked(n int64) {
	n = min(n, a.bytes)
	a.bytes -= n
	a.Budget.used -= n
	if n > 0 {
		a.Budget.progressed = time.Now()
	}
	if a.unverified != nil {
		a.Budget.unverified -= n
		a.Budget.changed.Broadcast()
	}
	a.Budget.grantLocked()
}

// ReleaseAll releases all of the room.
func (a *Allowance) ReleaseAll() { a.Release(math.MaxInt64) }

// AddUnstored lets the requests that are answered with a body share it with its recording, which is kept
// until [Budget.RemoveUnstored] is called.
func (b *Budget) AddUnstored(body []byte, of Holder) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unstored[&body[0]] = of
}

// RemoveUnstored ends that sharing. Requests that have the body keep it.
func (b *Budget) RemoveUnstored(body []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.unstored, &body[0])
}

// shareUnstored uses the recording of a body that is not stored yet. It returns nil if there is none.
func (b *Budget) shareUnstored(body []byte) (of Held, release func()) {
	b.mu.Lock()
	unstored := b.unstored[&body[0]]
	b.mu.Unlock()
	if unstored == nil || !unstored.Use() {
		return nil, nil
	}
	return unstored, sync.OnceFunc(unstored.Unuse)
}

// Share takes room for a body that a request is answered with, once for all requests that are answered
// with the same body. It returns what holds the body, and nil if there is no room, unless the body is held
// anyway, or another request has taken room for it. A body that is not stored yet has its room already.
func (a *Allowance) Share(body []byte, held bool) (of Held, release func()) {
	b := a.Budget
	if len(body) == 0 {
		return a, func() {}
	}
	if of, release := b.shareUnstored(body); release != nil {
		return of, release
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.shared[&body[0]]
	if s == nil {
		size := int64(len(body))
		if !held && (len(b.replays) > 0 || b.used+size > b.newRequestLimit()) {
			return nil, nil
		}
		s = &sharedBody{allowance: Allowance{Budget: b}}
		s.allowance.addLocked(size)
		b.shared[&body[0]] = s
	}
	s.users++
	return s, sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if s.users--; s.users == 0 {
			delete(b.shared, &body[0])
			s.allowance.releaseLocked(math.MaxInt64)
		}
	})
}

// Freeable implements [Held].
func (s *sharedBody) Freeable(clients int) int64 {
	b := s.allowance.Budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if s.users > clients {
		return 0
	}
	return s.allowance.bytes
}

// Freeable implements [Held].
func (a *Allowance) Freeable(int) int64 { return a.Taken() }
