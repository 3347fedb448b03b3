package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// flight is what one process knows of a key while any of its requests has to do
// with it. All of it is under the engine's lock.
type flight struct {
	key   idempotency.Key
	state flightState
	// run is the record of the run in flight, here or on another replica; nil if
	// there was none to wait for.
	run *idempotency.Record
	// found is what the flight ended with, as if the store had been asked, and err
	// why it could not be. A found without a record says that the key may be free.
	found idempotency.Claimed
	err   error

	// members are the requests that have joined and not left.
	members int
	// changed is closed when the state changes; nil while nobody waits for that.
	changed chan struct{}
	// watched says that the run is on another replica, and woken takes the store's
	// hints at its end. They may come before the store's reply to our claim.
	watched bool
	woken   chan struct{}
}

// flightState is where a flight stands.
type flightState int

const (
	// asking: the first request asks the store.
	asking flightState = iota
	// flying: a run is in flight.
	flying
	// unstored: the run has ended, and the store does not know it yet. Who comes
	// now is told by the flight.
	unstored
	// gone: whoever comes later asks the store.
	gone
)

// flightEvent is what happens to a flight.
type flightEvent int

const (
	// runFound: the store says that a run is in flight, or that ours may begin.
	runFound flightEvent = iota
	// runUnstored: our run has ended, and its end could not be stored yet.
	runUnstored
	// over: what there is to tell is known, and the store knows it too; or it is
	// not known any more who holds the key.
	over
	// deserted: nobody waits for a run on another replica any more.
	deserted
)

// after returns the state after an event, and whether that is another one. An
// event that comes too late, such as a renewal that finds its claim lost when the
// run has ended, changes nothing.
func (s flightState) after(event flightEvent) (next flightState, changed bool) {
	switch {
	case s == asking && event == runFound:
		next = flying
	case s == flying && event == runUnstored:
		next = unstored
	case s != gone && event == over, s == flying && event == deserted:
		next = gone
	default:
		next = s
	}
	return next, next != s
}

// String returns the state's name for test failures.
func (s flightState) String() string {
	return [...]string{"asking", "flying", "unstored", "gone"}[s]
}

// membership is how a request came to its flight.
type membership int

const (
	// first: it asks the store for all.
	first membership = iota
	// waiter: it joined before the end. It waited, even where the end is there
	// when its goroutine gets to see it.
	waiter
	// afterwards: it joined after the end of a run that is not stored yet.
	afterwards
)

// join adds a request to the key's flight. The error says that a limit is
// reached, and that it did not join.
func (e *Engine) join(key idempotency.Key) (*flight, membership, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, ok := e.flights[key]
	if !ok {
		f = &flight{key: key, members: 1}
		e.flights[key] = f
		return f, first, nil
	}
	if err := e.admitLocked(f); err != nil {
		return nil, 0, err
	}
	e.waiting++
	f.members++
	if f.state == unstored {
		return f, afterwards, nil
	}
	return f, waiter, nil
}

// leave takes a request out of its flight.
func (e *Engine) leave(f *flight, part membership) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if part != first {
		e.waiting--
	}
	f.members--
	if f.members == 0 && f.watched {
		e.moveLocked(f, deserted)
	}
}

// fly notes the run that is in flight. One of another replica is watched.
func (e *Engine) fly(f *flight, run *idempotency.Record, watched bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f.run, f.watched = run, watched
	if watched && f.woken == nil {
		f.woken = make(chan struct{}, 1)
	}
	e.moveLocked(f, runFound)
}

// end tells a flight's members what it ended with, by one of the events over and
// runUnstored. The first end counts.
func (e *Engine) end(f *flight, event flightEvent, found idempotency.Claimed, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.state == asking || f.state == flying {
		f.found, f.err = found, err
	}
	e.moveLocked(f, event)
}

// moveLocked lets an event happen, and tells those who wait for one.
func (e *Engine) moveLocked(f *flight, event flightEvent) {
	next, changed := f.state.after(event)
	if !changed {
		return
	}
	f.state = next
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
	if next == gone && e.flights[f.key] == f {
		delete(e.flights, f.key)
	}
}

// view is what a member sees of its flight at one moment.
type view struct {
	state flightState
	run   *idempotency.Record
	found idempotency.Claimed
	err   error
}

// look returns what there is to see of a flight, and what is closed when that has
// changed.
func (e *Engine) look(f *flight) (view, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.changed == nil && f.state != gone {
		f.changed = make(chan struct{})
	}
	return view{f.state, f.run, f.found, f.err}, f.changed
}

// follow waits until a flight tells what a request does. No decision and no error
// means that the key may be free by now: ask the store again.
func (e *Engine) follow(ctx context.Context, f *flight, part membership, c idempotency.Claim, limit <-chan time.Time) (Decision, error) {
	for {
		seen, changed := e.look(f)
		decision, patience := seen.decide(part, c), limit
		switch {
		case decision != nil || seen.state == gone:
			return decision, nil
		case seen.state == asking:
			patience = nil // the store's own time limit ends that
		}
		select {
		case <-changed:
		case <-patience:
			return Refusal{Reason: ReasonInFlight, ExecutionID: seen.executionID()}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// decide says what a request does by what it sees; nil means to wait, or, where
// the flight is gone, to ask the store.
func (v view) decide(part membership, c idempotency.Claim) Decision {
	switch v.state {
	case asking:
		return nil
	case flying:
		return decideInFlight(v.run, c)
	case unstored, gone:
		return v.decideEnded(v.run != nil && part != afterwards, c)
	default:
		panic(fmt.Sprintf("engine: a flight in the state %d", v.state))
	}
}

// executionID names the run that is in the way.
func (v view) executionID() string {
	if v.state == flying {
		return v.run.ExecutionID
	}
	return v.found.Record.ExecutionID
}
