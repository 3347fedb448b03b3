package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// flights has the flights of an engine, and what is limited for all of them. Its lock guards
// the fields of each flight, too.
type flights struct {
	mu     sync.Mutex
	limits Limits
	byKey  map[idempotency.Key]*flight
	// waiting counts the requests that wait for a run, here or on another replica.
	waiting int
	// exiting reports whether the process exits: no run begins ([Engine.Abandon]).
	exiting bool
}

// flight is what one process knows of a key while it has requests with that key.
type flight struct {
	all   *flights
	key   idempotency.Key
	state flightState
	// record is that of the run in flight, here or on another replica; nil if the flight
	// has found none to wait for.
	record *idempotency.Record
	// run is the run in flight if it is one of this process, else nil.
	run *Run
	// live is the response that the run is giving, if duplicates can follow it as it
	// comes; nil if not.
	live any
	// storing reports whether the run of this process has ended, and its end is being
	// stored for the first time. The state is still running.
	storing bool
	// found and err are how the flight has ended: found is what the store would
	// answer, or err is why the store could not answer. If found has no record, the
	// requests must ask the store again. With both, err is for those that would run: no
	// more runs may begin.
	found idempotency.Claimed
	err   error

	// members counts the requests that have joined and not left; waiting counts those of
	// them that are waiters.
	members, waiting int
	// changed is closed when the state changes; nil while no request waits for that.
	changed chan struct{}
	// watched reports whether the run is on another replica. woken gets hints to look at
	// the store: the run has ended, or requests have begun to wait since the latest look. A
	// hint may come before the reply to our claim.
	watched bool
	woken   chan struct{}
	// looks counts the looks at the store that have begun, including the first request's
	// claim. lastPollInFlight is the number of the latest one that saw the watched run in flight.
	pollSeq, lastPollInFlight int
}

// flightState is the state of a flight.
type flightState int

const (
	// asking: the first request is asking the store.
	asking flightState = iota
	// running: a run is in flight.
	running
	// unstored: the run has ended, but the store does not know it yet. The flight
	// answers requests that come now.
	unstored
	// closed: the flight has ended. The next request begins a new one, and asks the
	// store.
	closed
)

// flightEvent is what happens to a flight.
type flightEvent int

const (
	// runFound: the store says that another run is in flight, or that this request
	// may run.
	runFound flightEvent = iota
	// runUnstored: our run has ended, and its end could not be stored yet.
	runUnstored
	// runOver: the end is known, and the store knows it too; or this process no longer
	// knows who owns the key.
	runOver
	// deserted: the run is on another replica, and no request waits for it any more.
	deserted
)

// after returns the state after an event, and whether it differs from the state
// before. An event that has no meaning in a state changes nothing: for example, a
// renewal may find that its claim is lost just after the run has ended.
func (s flightState) after(event flightEvent) (next flightState, changed bool) {
	switch {
	case s == asking && event == runFound:
		next = running
	case s == running && event == runUnstored:
		next = unstored
	case s != closed && event == runOver, s == running && event == deserted:
		next = closed
	default:
		next = s
	}
	return next, next != s
}

// String returns the name of the state, for test failures.
func (s flightState) String() string {
	return [...]string{"asking", "running", "unstored", "closed"}[s]
}

// membership is when a request has joined its flight.
type membership int

const (
	// first: it has begun the flight, and asks the store for all its members.
	first membership = iota
	// waiter: it joined before the run had ended. It counts as a request that waited
	// for the run, even if the run ends before its goroutine first looks.
	waiter
	// joinedWhileStoring: it joined after the run had ended, while its end was being stored.
	// For the store the run was perhaps in flight, so it counts as one that waited, too.
	// But it may be a retry that follows the answer: a waiter on another replica may have
	// the answer before this process has the store's reply.
	joinedWhileStoring
	// joinedAfterEnd: it joined after the run had ended, and before the end was stored.
	joinedAfterEnd
)

// member is a request that has joined a flight.
type member struct {
	flight *flight
	part   membership
	// looks is how many looks at the store had begun when it joined.
	pollSeq int
	// counted reports whether it counts as a waiter. Only its own goroutine sets this.
	counted bool
}

// join adds a request to the flight of the key.
func (t *flights) join(key idempotency.Key) member {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, part := t.byKey[key], waiter
	switch {
	case f == nil:
		f, part = &flight{all: t, key: key}, first
		t.byKey[key] = f
	case f.state == unstored:
		part = joinedAfterEnd
	case f.storing:
		part = joinedWhileStoring
	}
	f.members++
	return member{flight: f, part: part, pollSeq: f.pollSeq}
}

// leave removes a request from its flight.
func (m *member) leave() {
	f := m.flight
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if m.counted {
		f.all.waiting--
		f.waiting--
	}
	f.members--
	if f.members == 0 && f.watched {
		f.moveLocked(deserted)
	}
}

// setRun notes which run is in flight: one of this process, or, if run is nil, one on another
// replica. It reports whether the process exits.
func (f *flight) setRun(record *idempotency.Record, run *Run) (exiting bool) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.record, f.run, f.watched = record, run, run == nil
	if f.watched {
		f.lastPollInFlight = f.pollSeq
		if f.woken == nil {
			f.woken = make(chan struct{}, 1)
		}
	}
	f.moveLocked(runFound)
	return f.all.exiting
}

// setStoring notes that the run of this process has ended.
func (f *flight) setStoring() {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.storing = true
}

// stream notes the response that the run is giving.
func (f *flight) stream(live any) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.live = live
	f.notifyLocked()
}

// end notifies the members of a flight how it has ended. The event is runOver or
// runUnstored. If a flight ends twice, the first end counts.
func (f *flight) end(event flightEvent, found idempotency.Claimed, err error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.state == asking || f.state == running {
		f.found, f.err = found, err
	}
	f.moveLocked(event)
}

// askAgain ends the flight, and has its members ask the store again.
func (f *flight) askAgain() { f.end(runOver, idempotency.Claimed{}, nil) }

// moveLocked applies an event, and notifies the requests that wait for a change.
func (f *flight) moveLocked(event flightEvent) {
	next, changed := f.state.after(event)
	if !changed {
		return
	}
	f.state = next
	f.notifyLocked()
	if next == closed && f.all.byKey[f.key] == f {
		delete(f.all.byKey, f.key)
	}
}

// notifyLocked notifies the requests that wait that there is something new to see.
func (f *flight) notifyLocked() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// view is a copy of what a member needs to know of its flight, at one moment.
type view struct {
	state            flightState
	record           *idempotency.Record
	live             any
	found            idempotency.Claimed
	err              error
	watched          bool
	lastPollInFlight int
}

// view returns a view of a flight, and a channel that is closed when the state
// changes.
func (f *flight) view() (view, <-chan struct{}) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.changed == nil && f.state != closed {
		f.changed = make(chan struct{})
	}
	return view{f.state, f.record, f.live, f.found, f.err, f.watched, f.lastPollInFlight}, f.changed
}

// waitLimit is how long a request waits for runs. Most requests wait for none, and need no
// timer.
type waitLimit struct {
	until time.Time
	// onWait is called when the request begins to wait for a run; nil if nothing is.
	onWait func()
	timer  *time.Timer
}

func (l *waitLimit) startTimer() <-chan time.Time {
	if l.timer == nil {
		l.timer = time.NewTimer(time.Until(l.until))
		if l.onWait != nil {
			l.onWait()
		}
	}
	return l.timer.C
}

func (l *waitLimit) stop() {
	if l.timer != nil {
		l.timer.Stop()
	}
}

// follow waits until a flight shows what a request does. If it returns neither a
// decision nor an error, the request must ask the store again: the key may be released
// by now.
func (e *Engine) follow(ctx context.Context, m *member, c idempotency.Claim, limit *waitLimit) (Decision, error) {
	for {
		seen, changed := m.flight.view()
		decision := seen.decide(m, c)
		switch {
		case decision != nil || seen.state == closed:
			return decision, nil
		case seen.state != asking && !c.Waits:
			return newRefusal(ReasonInFlight, seen.runRecord()), nil
		}
		var timeout <-chan time.Time // an operation of the store has a time limit of its own
		if seen.state != asking {
			if reached, err := m.wait(seen.state); err != nil {
				e.options.Observer.Overloaded(reached)
				refused := newRefusal(ReasonOverloaded, seen.runRecord())
				refused.Err = err
				return refused, nil //nolint:nilerr // it is in the refusal
			}
			timeout = limit.startTimer()
		}
		select {
		case <-changed:
		case <-timeout:
			return newRefusal(ReasonInFlight, seen.runRecord()), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// decide returns what a request does, given its view of the flight. Nil means that it
// must wait, or, if the flight is closed, that it must ask the store.
func (v view) decide(m *member, c idempotency.Claim) Decision {
	switch v.state {
	case asking:
		return nil
	case running:
		live := v.live
		if m.part == joinedWhileStoring {
			live = nil // its status may release the key, and then this request has to run
		}
		return decideInFlight(v.record, live, c)
	case unstored, closed:
		return v.decideEnded(m, c)
	default:
		panic(fmt.Sprintf("engine: a flight in the state %d", v.state))
	}
}

// runRecord is that of the run because of which a request has to wait.
func (v view) runRecord() *idempotency.Record {
	if v.state == running {
		return v.record
	}
	return v.found.Record
}
