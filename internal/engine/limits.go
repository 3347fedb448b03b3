package engine

import (
	"errors"
	"fmt"
)

// Limits bound what one process holds at a time for one store. 0 is no limit.
type Limits struct {
	// Waiters are requests that wait for another's run, in all and for one key.
	Waiters       int
	WaitersPerKey int
	// InFlight are runs, and responses still to be stored.
	InFlight int
}

// Overloads counts what was refused because one of the [Limits] was reached.
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

// admitLocked says whether one more request may follow a flight.
func (e *Engine) admitLocked(f *flight) error {
	limits := e.limits
	switch {
	case f.state == unstored: // it is answered at once
		return nil
	case limits.WaitersPerKey > 0 && f.members > limits.WaitersPerKey:
		return overloaded("waiters for one key", limits.WaitersPerKey, &e.overloads.WaitersPerKey)
	case limits.Waiters > 0 && e.waiting >= limits.Waiters:
		return overloaded("waiters", limits.Waiters, &e.overloads.Waiters)
	default:
		return nil
	}
}

// beginClaim says whether one more claim may be made, and counts it until
// endClaim.
func (e *Engine) beginClaim() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.withdrawals) >= maxWithdrawals:
		return fmt.Errorf("%d claims in doubt wait for the store to answer", maxWithdrawals)
	case e.limits.InFlight > 0 && e.unsettled.n+e.claiming >= e.limits.InFlight:
		return overloaded("runs in flight", e.limits.InFlight, &e.overloads.InFlight)
	}
	e.claiming++
	return nil
}

func (e *Engine) endClaim() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.claiming--
}
