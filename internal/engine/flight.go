package engine

import (
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// flight is what one process knows of a key while any of its requests has to do
// with it. It goes through: unknown (the first request asks the store), a run in
// flight (here, or on another replica and watched), ended.
type flight struct {
	key idempotency.Key
	// known is closed when run or outcome is set.
	known chan struct{}
	// ended is closed when outcome is set.
	ended chan struct{}
	// woken says that the store hinted at the end of a watched run.
	woken chan struct{}
	// deserted is closed when nobody waits for a watched run any more.
	deserted chan struct{}
	// gone is closed when the flight is no longer known: the store can be asked.
	gone chan struct{}

	// sealer opens what is stored of a watched run.
	sealer *idempotency.Sealer
	// run is the record of the run in flight; nil if there was none to wait for.
	run     *idempotency.Record
	outcome outcome

	// Under the engine's lock:
	members int
	watched bool
	over    bool
}

// outcome is what a flight ended with: a record, or an error of the store. The
// zero outcome says that the key may be free.
type outcome struct {
	record   *idempotency.Record
	response *idempotency.Response
	now      time.Time
	err      error
	// elsewhere is another name of the operation, under which its requests go on.
	elsewhere *idempotency.Name
}

func (f *flight) inFlight(run *idempotency.Record) {
	f.run = run
	close(f.known)
}

func (f *flight) hasEnded() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// join adds a request to the key's flight; the first one has to ask the store.
// A request that is late came when the flight's run had ended.
// The error says that a limit is reached, and that it did not join.
func (e *Engine) join(key idempotency.Key, limits Limits) (f *flight, first, late bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f, ok := e.flights[key]
	if !ok {
		f = &flight{
			key:      key,
			known:    make(chan struct{}),
			ended:    make(chan struct{}),
			woken:    make(chan struct{}, 1),
			deserted: make(chan struct{}),
			gone:     make(chan struct{}),
		}
		e.flights[key] = f
	} else if err := e.admitLocked(f, limits); err != nil {
		return nil, false, false, err
	} else {
		e.waiting++
	}
	f.members++
	return f, !ok, f.over, nil
}

// leave takes a request out of its flight. With the last one a watched flight
// ends: nobody is left to be told.
func (e *Engine) leave(f *flight, first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !first {
		e.waiting--
	}
	f.members--
	if f.members == 0 && f.watched && !f.over {
		f.over = true
		e.removeLocked(f)
		close(f.deserted)
	}
}

// finish ends a flight and forgets it: whoever comes later asks the store.
func (e *Engine) finish(f *flight, o outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked(f, o)
	e.removeLocked(f)
}

// linger ends a flight that stays known: its outcome is in no store yet, and
// those who come later are told by the flight.
func (e *Engine) linger(f *flight, o outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endLocked(f, o)
}

func (e *Engine) endLocked(f *flight, o outcome) {
	if f.over {
		return
	}
	f.over = true
	f.outcome = o
	if f.run == nil {
		close(f.known)
	}
	close(f.ended)
}

// remove forgets a flight that lingered.
func (e *Engine) remove(f *flight) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removeLocked(f)
}

func (e *Engine) removeLocked(f *flight) {
	if e.flights[f.key] == f {
		delete(e.flights, f.key)
		close(f.gone)
	}
}
