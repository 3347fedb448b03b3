package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
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

// beginClaim counts a claim as unsettled. If the claim becomes a run, it stays so until
// the run is settled: what waits for all to be settled misses nothing in between. With
// an error the claim is not made, and not counted; found is then what the store has,
// as far as it was asked.
//
// The limit of runs refuses nothing but runs. When it is reached, the store is asked
// first whether this request would run. Between that and the claim the answer may
// change, so for a moment there may be a run more than the limit allows.
func (e *Engine) beginClaim(ctx context.Context, c idempotency.Claim) (found idempotency.Claimed, err error) {
	full, err := e.countClaim(false)
	if !full {
		return idempotency.Claimed{}, err
	}
	found.Record, found.Now, err = e.store.Lookup(ctx, c.Key)
	if err != nil {
		return idempotency.Claimed{}, err
	}
	if idempotency.Decide(found.Record, c, found.Now) == idempotency.Proceed {
		e.mu.Lock()
		defer e.mu.Unlock()
		return found, overloaded("runs in flight", e.limits.InFlight, &e.overloads.InFlight)
	}
	_, err = e.countClaim(true)
	return idempotency.Claimed{}, err
}

// countClaim counts a claim as unsettled, unless it returns an error, or full, which
// says that the limit of runs is reached. Beyond that limit it counts those that are
// known not to run.
func (e *Engine) countClaim(beyond bool) (full bool, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case len(e.withdrawals) >= maxWithdrawals:
		return false, fmt.Errorf("%d claims in doubt wait for the store to answer", maxWithdrawals)
	case !beyond && e.limits.InFlight > 0 && e.unsettled.n >= e.limits.InFlight:
		return true, nil
	}
	e.unsettled.add(1)
	return false, nil
}
