package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// flight is what one process knows of a key while requests of this process have to do
// with it. The lock of the engine guards all fields.
type flight struct {
	key   idempotency.Key
	state flightState
	// run is the record of the run in flight, here or on another replica; nil if the
	// flight has found none to wait for.
	run *idempotency.Record
	// own is the run in flight if it is one of this process, else nil.
	own *Run
	// live is the response that the run is giving, if duplicates can follow it as it
	// comes; nil if not.
	live any
	// storing says that the run of this process has ended, and that its end is being
	// stored for the first time. The state is still flying.
	storing bool
	// found and err are how the flight has ended: found is what the store would
	// answer, or err says why the store could not answer. If found has no record, the
	// requests must ask the store again. With both, err is for those that would run: no
	// more runs may begin.
	found idempotency.Claimed
	err   error

	// members is how many requests have joined and not left; waiting is how many of
	// them count as waiters.
	members, waiting int
	// changed is closed when the state changes; nil while nobody waits for that.
	changed chan struct{}
	// watched says that the run is on another replica. woken gets hints to look at the
	// store: it says that the run has ended, or requests have begun to wait since the
	// latest look. A hint may come before the reply to our claim.
	watched bool
	woken   chan struct{}
	// looks is how many looks at the store have begun, the claim of the first request
	// included. sawRun is the number of the latest one that saw the watched run in
	// flight.
	looks, sawRun int
}

// flightState is the state of a flight.
type flightState int

const (
	// asking: the first request is asking the store.
	asking flightState = iota
	// flying: a run is in flight.
	flying
	// unstored: the run has ended, but the store does not know it yet. The flight
	// answers requests that come now.
	unstored
	// gone: the flight has ended. The next request begins a new one, and asks the
	// store.
	gone
)

// flightEvent is what happens to a flight.
type flightEvent int

const (
	// runFound: the store says that another run is in flight, or that this request
	// may run.
	runFound flightEvent = iota
	// runUnstored: our run has ended, and its end could not be stored yet.
	runUnstored
	// over: the end is known, and the store knows it too; or this process no longer
	// knows who owns the key.
	over
	// deserted: the run is on another replica, and nobody waits for it any more.
	deserted
)

// after returns the state after an event, and whether it differs from the state
// before. An event that has no meaning in a state changes nothing: for example, a
// renewal may find that its claim is lost just after the run has ended.
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

// String returns the name of the state, for test failures.
func (s flightState) String() string {
	return [...]string{"asking", "flying", "unstored", "gone"}[s]
}

// membership says when a request has joined its flight.
type membership int

const (
	// first: it has begun the flight, and asks the store for all its members.
	first membership = iota
	// waiter: it joined before the run had ended. It counts as a request that waited
	// for the run, even if the run ends before its goroutine first looks.
	waiter
	// whileStoring: it joined after the run had ended, while its end was being stored.
	// For the store the run was perhaps in flight, so it counts as one that waited, too.
	// But it may be a retry that follows the answer: who waited elsewhere, and was told by
	// the store, may have the answer before this process has the store's reply.
	whileStoring
	// afterwards: it joined after the run had ended, and before the end was stored.
	afterwards
)

// member is a request that has joined a flight.
type member struct {
	flight *flight
	part   membership
	// looks is how many looks at the store had begun when it joined.
	looks int
	// counted says that it counts as a waiter. Only its own goroutine sets this.
	counted bool
}

// join adds a request to the flight of the key.
func (e *Engine) join(key idempotency.Key) member {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, part := e.flights[key], waiter
	switch {
	case f == nil:
		f, part = &flight{key: key}, first
		e.flights[key] = f
	case f.state == unstored:
		part = afterwards
	case f.storing:
		part = whileStoring
	}
	f.members++
	return member{flight: f, part: part, looks: f.looks}
}

// leave takes a request out of its flight.
func (e *Engine) leave(m *member) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f := m.flight
	if m.counted {
		e.waiting--
		f.waiting--
	}
	f.members--
	if f.members == 0 && f.watched {
		e.moveLocked(f, deserted)
	}
}

// fly notes which run is in flight: one of this process, or, if own is nil, one on another
// replica.
func (e *Engine) fly(f *flight, run *idempotency.Record, own *Run) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f.run, f.own, f.watched = run, own, own == nil
	if own != nil && e.abandoned { // its claim was under way
		e.goBackground(own.abandon)
	}
	if f.watched {
		f.sawRun = f.looks
		if f.woken == nil {
			f.woken = make(chan struct{}, 1)
		}
	}
	e.moveLocked(f, runFound)
}

// beginStoring notes that the run of this process has ended.
func (e *Engine) beginStoring(f *flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f.storing = true
}

// end tells the members of a flight how it has ended. The event is over or
// runUnstored. If a flight ends twice, the first end counts.
func (e *Engine) end(f *flight, event flightEvent, found idempotency.Claimed, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.state == asking || f.state == flying {
		f.found, f.err = found, err
	}
	e.moveLocked(f, event)
}

// moveLocked applies an event, and wakes those who wait for a change. The lock must be
// locked.
func (e *Engine) moveLocked(f *flight, event flightEvent) {
	next, changed := f.state.after(event)
	if !changed {
		return
	}
	f.state = next
	f.tellLocked()
	if next == gone && e.flights[f.key] == f {
		delete(e.flights, f.key)
	}
}

// tellLocked tells those who wait that there is something new to see.
func (f *flight) tellLocked() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// view is a copy of what a member needs to know of its flight, at one moment.
type view struct {
	state   flightState
	run     *idempotency.Record
	live    any
	found   idempotency.Claimed
	err     error
	watched bool
	sawRun  int
}

// view returns a view of a flight, and a channel that is closed when the state
// changes.
func (e *Engine) view(f *flight) (view, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if f.changed == nil && f.state != gone {
		f.changed = make(chan struct{})
	}
	return view{f.state, f.run, f.live, f.found, f.err, f.watched, f.sawRun}, f.changed
}

// waitLimit is how long a request waits for runs. Most requests wait for none, and need no
// timer.
type waitLimit struct {
	after time.Duration
	begun time.Time
	// begins is called when the request begins to wait for a run; nil for nobody.
	begins func()
	timer  *time.Timer
}

func (l *waitLimit) over() <-chan time.Time {
	if l.timer == nil {
		l.timer = time.NewTimer(time.Until(l.begun.Add(l.after)))
	}
	return l.timer.C
}

// tell tells, once, that the request waits.
func (l *waitLimit) tell() {
	if l.begins != nil {
		l.begins()
		l.begins = nil
	}
}

func (l *waitLimit) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// follow waits until a flight tells what a request does. If it returns neither a
// decision nor an error, the request must ask the store again: the key may be free
// by now.
func (e *Engine) follow(ctx context.Context, m *member, c idempotency.Claim, limit *waitLimit) (Decision, error) {
	for {
		seen, changed := e.view(m.flight)
		decision := seen.decide(m, c)
		if decision != nil || seen.state == gone {
			return decision, nil
		}
		var patience <-chan time.Time // an operation of the store has a time limit of its own
		if seen.state != asking {
			if err := e.wait(m, seen.state); err != nil {
				refused := refusalBeside(ReasonOverloaded, seen.record())
				refused.Err = err
				return refused, nil //nolint:nilerr // it is in the refusal
			}
			patience = limit.over()
			limit.tell()
		}
		select {
		case <-changed:
		case <-patience:
			return refusalBeside(ReasonInFlight, seen.record()), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// decide says what a request does, given its view of the flight. Nil means that it
// must wait, or, if the flight is gone, that it must ask the store.
func (v view) decide(m *member, c idempotency.Claim) Decision {
	switch v.state {
	case asking:
		return nil
	case flying:
		live := v.live
		if m.part == whileStoring {
			live = nil // its status may free the key, and then this request has to run
		}
		return decideInFlight(v.run, live, c)
	case unstored, gone:
		return v.decideEnded(m, c)
	default:
		panic(fmt.Sprintf("engine: a flight in the state %d", v.state))
	}
}

// record is that of the run because of which a request has to wait.
func (v view) record() *idempotency.Record {
	if v.state == flying {
		return v.run
	}
	return v.found.Record
}
