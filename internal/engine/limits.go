package engine

import (
	"errors"
	"fmt"
)

// Limits are how much may be in progress at a time, in one process and for one store.
// 0 means no limit.
type Limits struct {
	// Waiters is the limit for requests that wait for the run of another request,
	// WaitersPerKey the same for each key.
	Waiters       int
	WaitersPerKey int
	// InFlight is the limit for runs and for ends of runs that are not stored yet.
	InFlight int
}

// Overloads counts the requests that were refused because one of the [Limits] was
// reached.
type Overloads struct {
	Waiters, WaitersPerKey, InFlight int64
}

// Overloads returns the counts since the engine was made.
func (e *Engine) Overloads() Overloads {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.overloads
}

// ErrOverloaded says that one of the [Limits] is reached.
var ErrOverloaded = errors.New("too much is in progress")

func overloaded(limit string, n int, count *int64) error {
	*count++
	return fmt.Errorf("%w: the limit of %d %s is reached", ErrOverloaded, n, limit)
}

// admitLocked returns an error if no more requests may follow the flight.
func (e *Engine) admitLocked(f *flight) error {
	limits := e.limits
	switch {
	case f.state == unstored: // the request is answered at once
		return nil
	case limits.WaitersPerKey > 0 && f.members > limits.WaitersPerKey:
		return overloaded("waiters for one key", limits.WaitersPerKey, &e.overloads.WaitersPerKey)
	case limits.Waiters > 0 && e.waiting >= limits.Waiters:
		return overloaded("waiters", limits.Waiters, &e.overloads.Waiters)
	default:
		return nil
	}
}

// beginClaim returns an error if no more claims may be made. Otherwise it counts the
// claim as unsettled. If the claim becomes a run, it stays so until the run is
// settled: what waits for all to be settled misses nothing in between.
func (e *Engine) beginClaim() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.withdrawals) >= maxWithdrawals:
		return fmt.Errorf("%d claims in doubt wait for the store to answer", maxWithdrawals)
	case e.limits.InFlight > 0 && e.unsettled.n >= e.limits.InFlight:
		return overloaded("runs in flight", e.limits.InFlight, &e.overloads.InFlight)
	}
	e.unsettled.add(1)
	return nil
}
