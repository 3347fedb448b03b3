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
	// Waiters is the limit for requests that wait for the run of another request, in
	// this process or on another replica; WaitersPerKey is the same for each key.
	Waiters       int
	WaitersPerKey int
	// InFlight is the limit for runs and for ends of runs that are not stored yet, and as many
	// may be observed beside them.
	InFlight int
}

// ErrOverloaded is the error when one of the [Limits] is reached.
var ErrOverloaded = errors.New("too much is in progress")

func overloaded(limit string, n int) error {
	return fmt.Errorf("%w: the limit of %d %s is reached", ErrOverloaded, n, limit)
}

// InProgress returns how many runs of this process are in flight, or are not stored yet, without
// those that are only observed, and how many requests wait for a run.
func (e *Engine) InProgress() (runs, waiting int) {
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	return e.unsettled.count(), e.flights.waiting
}

// wait counts a request as one that waits for the run of its flight, unless it returns
// an error because a limit is reached. A request that waits only for the store's reply does
// not count: it may be a replay. The state is the one in which the request has seen its
// flight; in another one there may be nothing to wait for any more.
func (m *member) wait(seen flightState) (reached Limit, err error) {
	f, all := m.flight, m.flight.all
	all.mu.Lock()
	defer all.mu.Unlock()
	limits := all.limits
	switch {
	case m.counted || f.state != seen:
		return "", nil
	case limits.WaitersPerKey > 0 && f.waiting >= limits.WaitersPerKey:
		return LimitWaitersPerKey, overloaded("waiters for one key", limits.WaitersPerKey)
	case limits.Waiters > 0 && all.waiting >= limits.Waiters:
		return LimitWaiters, overloaded("waiters", limits.Waiters)
	}
	m.counted = true
	all.waiting++
	f.waiting++
	if f.watched && f.pollSeq == m.pollSeq {
		f.hintLocked() // a look that begins now shows whether it came before the run's end
	}
	return "", nil
}

// admitClaim counts a claim as unsettled. If the claim becomes a run, it stays so until
// the run is settled: what waits for all to be settled misses nothing in between. With
// an error the claim is not made, and not counted; found is then what the store has,
// as far as it was asked.
//
// A limit refuses only runs. When one is reached, the store is asked first whether this
// request would run. Between that and the claim the answer may change, so for a moment there
// may be one run more than the limit allows.
func (e *Engine) admitClaim(c idempotency.Claim, observed bool) (found idempotency.Claimed, err error) {
	reached, full := e.reserveClaim(observed)
	if full == nil {
		return idempotency.Claimed{}, nil
	}
	found.Record, found.Now, err = e.lookup(context.Background(), c.Key)
	if err != nil {
		return e.copies.stale(c.Key, err), err
	}
	if idempotency.Decide(found.Record, c, found.Now) == idempotency.Proceed {
		if reached != "" {
			e.observer(observed).Overloaded(reached)
		}
		return found, full
	}
	e.tally(observed).add(1)
	return idempotency.Claimed{}, nil
}

// reserveClaim counts a claim as unsettled, unless full is why no more runs may begin.
// reached is then the limit that was reached, if it is one of ours.
func (e *Engine) reserveClaim(observed bool) (reached Limit, full error) {
	var noRoom error
	unsettled := e.tally(observed)
	if e.options.Room != nil {
		noRoom = e.options.Room()
	}
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	switch limit := e.flights.limits.InFlight; {
	case e.flights.exiting:
		return "", fmt.Errorf("%w: the process exits", ErrOverloaded)
	case noRoom != nil:
		return LimitBuffered, fmt.Errorf("%w: %w", ErrOverloaded, noRoom)
	case e.withdrawals.inDoubt.count() >= maxWithdrawals: // no limit of ours: the store does not answer
		return "", fmt.Errorf("%d claims in doubt wait for the store to answer", maxWithdrawals)
	case limit > 0 && unsettled.count() >= limit:
		return LimitInFlight, overloaded("runs in flight", limit)
	}
	unsettled.add(1)
	return "", nil
}
