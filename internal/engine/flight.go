package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// flights are the flights of an engine, and the limits for all of them. The lock also guards the
// fields of each flight.
type flights struct {
	mu     sync.Mutex
	limits Limits
	byKey  map[idempotency.Key]*flight
	// waiting counts the requests that wait for a run, of this process or of another replica.
	waiting int
	// exiting reports whether [Engine.Abandon] was called: no more runs may start.
	exiting bool
}

// flight is the requests of one key that a process handles at the same time, and what it knows about
// the key. The name is that of golang.org/x/sync/singleflight.
type flight struct {
	all *flights
	key idempotency.Key
	situation

	// members counts the requests that have joined and not left, waiting those of them that
	// wait for the run.
	members, waiting int
	// changed is closed when the state changes; nil while no request waits for that.
	changed chan struct{}
	// woken gets hints to poll the store: the run may have ended, or requests have started to wait
	// since the last poll. A hint may come before the reply to the claim.
	woken chan struct{}
	// pollSeq counts the polls of the store that have started, including the first request's claim.
	pollSeq int
}

// situation is what decides for the requests of a flight.
type situation struct {
	state flightState
	// record is that of the run in flight, of this process or of another replica; nil if there is
	// none to wait for.
	record *idempotency.Record
	// run is that run if it is of this process, else nil.
	run *Run
	// live is the response that the run is streaming, for duplicates to follow; nil for none.
	live any
	// found and err are the result: found is what the store would reply, or err is why it did
	// not. If found has no record, the requests must ask the store again. With both, err is for
	// the requests that would run: no more runs may start.
	found idempotency.Claimed
	err   error
	// lastPollInFlight is the number of the last poll that found the run of another replica in flight.
	lastPollInFlight int
}

// watched reports whether the run, if there is one, is on another replica.
func (s *situation) watched() bool { return s.run == nil }

// flightState is the state of a flight. A flight may skip states, and never returns to an earlier one.
type flightState int

const (
	// asking: the first request is asking the store.
	asking flightState = iota
	// running: a run is in flight.
	running
	// storing: the run of this process has ended, and the engine tries to store its settlement for the
	// first time. To the store the run may still be in flight. Requests that join now wait for the
	// response too. But one may be a retry after the response: a waiter on another replica may have got
	// it before this process got the store's reply.
	storing
	// unstored: the first attempt has failed, and the engine goes on. The flight answers new requests
	// itself.
	unstored
	// closed: the flight is over. The settlement is stored, this process no longer knows which claim
	// owns the key, or no request waits for a run of another replica. The next request starts a new
	// flight, and asks the store.
	closed
)

// member is a request that has joined a flight.
type member struct {
	flight *flight
	// first reports whether it started the flight, and asks the store for all its members.
	first bool
	// joined is the state of the flight when it joined, and pollSeq is flight.pollSeq. Before unstored,
	// it counts as a request that waited for the run, even if the run ends before its goroutine first
	// views the flight.
	joined  flightState
	pollSeq int
	// counted reports whether it counts in flight.waiting. Only its own goroutine sets this.
	counted bool
}

// join adds a request to the flight of the key.
func (t *flights) join(key idempotency.Key) member {
	t.mu.Lock()
	defer t.mu.Unlock()
	f := t.byKey[key]
	first := f == nil
	if first {
		f = &flight{all: t, key: key}
		t.byKey[key] = f
	}
	f.members++
	return member{flight: f, first: first, joined: f.state, pollSeq: f.pollSeq}
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
	if f.members == 0 && f.watched() {
		f.moveLocked(closed)
	}
}

// setRun sets the run in flight: one of this process or, if run is nil, one of another replica. It
// reports whether [Engine.Abandon] was called.
func (f *flight) setRun(record *idempotency.Record, run *Run) (exiting bool) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.record, f.run = record, run
	if f.watched() {
		f.lastPollInFlight = f.pollSeq
		if f.woken == nil {
			f.woken = make(chan struct{}, 1)
		}
	}
	f.moveLocked(running)
	return f.all.exiting
}

// setStoring marks the run of this process as ended.
func (f *flight) setStoring() {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.moveLocked(storing)
}

// stream sets the response that the run is streaming.
func (f *flight) stream(live any) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	f.live = live
	f.notifyLocked()
}

// end sets the result of a flight and notifies its members. The next state is unstored or closed. If
// end is called twice, the first result counts.
func (f *flight) end(next flightState, found idempotency.Claimed, err error) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.state < unstored {
		f.found, f.err = found, err
	}
	f.moveLocked(next)
}

// replaceResult replaces the result that duplicates get until the settlement is stored.
func (f *flight) replaceResult(found idempotency.Claimed) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.state == unstored {
		f.found = found
	}
}

// askAgain ends the flight, and has its members ask the store again.
func (f *flight) askAgain() { f.end(closed, idempotency.Claimed{}, nil) }

// moveLocked moves the flight to a later state, and notifies the requests that wait for a change. It does
// nothing if the flight is there already: for example, a renewal may find its claim lost just after
// the run has ended.
func (f *flight) moveLocked(next flightState) {
	if next <= f.state {
		return
	}
	f.state = next
	f.notifyLocked()
	if next == closed && f.all.byKey[f.key] == f {
		delete(f.all.byKey, f.key)
	}
}

// notifyLocked wakes the requests that wait, to view the flight again.
func (f *flight) notifyLocked() {
	if f.changed != nil {
		close(f.changed)
		f.changed = nil
	}
}

// view returns the situation of the flight, and a channel that is closed when it changes.
func (f *flight) view() (situation, <-chan struct{}) {
	f.all.mu.Lock()
	defer f.all.mu.Unlock()
	if f.changed == nil && f.state != closed {
		f.changed = make(chan struct{})
	}
	return f.situation, f.changed
}

// waitLimit limits how long a request waits for runs. It starts the timer when it is first needed:
// most requests wait for none.
type waitLimit struct {
	until time.Time
	// onWait is [Request.OnWait].
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

// follow waits until its flight decides for a request. If it returns neither a decision nor an
// error, the request must ask the store again: the key may be released by now.
func (e *Engine) follow(ctx context.Context, m *member, c idempotency.Claim, limit *waitLimit) (Decision, error) {
	for {
		seen, changed := m.flight.view()
		decision := seen.decide(m, c)
		switch {
		case decision != nil || seen.state == closed:
			return decision, nil
		case seen.state != asking && !c.Waits:
			return newRefusal(ReasonInFlight, seen.runRecord(), c), nil
		}
		var timeout <-chan time.Time // an operation of the store has a time limit of its own
		if seen.state != asking {
			if reached, err := m.wait(seen.state); err != nil {
				e.options.Observer.Overloaded(reached)
				refused := newRefusal(ReasonOverloaded, seen.runRecord(), c)
				refused.Err = err
				return refused, nil //nolint:nilerr // it is in the refusal
			}
			timeout = limit.startTimer()
		}
		select {
		case <-changed:
		case <-timeout:
			return newRefusal(ReasonInFlight, seen.runRecord(), c), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// decide returns what a request does. Nil means that it must wait or, if the flight is closed, ask
// the store.
func (s situation) decide(m *member, c idempotency.Claim) Decision {
	switch s.state {
	case asking:
		return nil
	case running, storing:
		live := s.live
		if m.joined == storing {
			live = nil // if its status releases the key, this request must run
		}
		return decideInFlight(s.record, live, c)
	case unstored, closed:
		return s.decideEnded(m, c)
	default:
		panic(fmt.Sprintf("engine: a flight in the state %d", s.state))
	}
}

// runRecord returns the record of the run that a request would wait for.
func (s situation) runRecord() *idempotency.Record {
	if s.state < unstored {
		return s.record
	}
	return s.found.Record
}
