package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Limits limit what may be in progress at a time, in one process and for one store. 0 means
// no limit.
type Limits struct {
	// Waiters limits the requests that wait for a run, of this process or of another replica.
	// WaitersPerKey limits those of each key.
	Waiters       int
	WaitersPerKey int
	// InFlight limits the runs that are in flight or not settled yet. It applies separately to
	// requests that are [Request.Observed].
	InFlight int
}

// ErrOverloaded is the error when one of the [Limits] is reached.
var ErrOverloaded = errors.New("too much is in progress")

func overloaded(limit string, n int) error {
	return fmt.Errorf("%w: the limit of %d %s is reached", ErrOverloaded, n, limit)
}

// InProgress returns how many runs of this process are in flight or not settled yet, and how many
// requests wait for a run. It does not count requests that are [Request.Observed].
func (e *Engine) InProgress() (runs, waiting int) {
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	return e.unsettled.count(), e.flights.waiting
}

// wait counts a request as a waiter of its flight, or returns an error because a limit is reached. A
// request that only waits for the store's reply is no waiter: it may be a replay. seen is
// the state of the flight when the request decided to wait; if it has changed since, there may
// be nothing to wait for.
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
	if f.watched() && f.pollSeq == m.pollSeq {
		f.hintLocked() // only a poll that starts now shows whether the request came before the run's end
	}
	return "", nil
}

// admitClaim counts a claim as unsettled. If the claim becomes a run, it stays counted until the run
// is settled, so that Drain misses none. With an error the claim is not counted and must not be
// made; found is what the store has, as far as admitClaim has asked it.
//
// A limit refuses only runs. When one is reached, admitClaim asks the store whether this request
// would run. The answer may change before the claim, so the limit may be exceeded briefly.
func (e *Engine) admitClaim(c idempotency.Claim, req Request) (found idempotency.Claimed, err error) {
	reached, full := e.reserveClaim(req)
	if full == nil {
		return idempotency.Claimed{}, nil
	}
	found.Record, found.Now, err = e.lookup(context.Background(), c.Key)
	if err != nil {
		return e.copies.stale(c.Key, err), err
	}
	if idempotency.Decide(found.Record, c, found.Now) == idempotency.Proceed {
		if reached != "" {
			e.observer(req.Observed).Overloaded(reached)
		}
		return found, full
	}
	e.tally(req.Observed, req.Inner).add(1)
	return idempotency.Claimed{}, nil
}

// reserveClaim counts a claim as unsettled, unless no more runs may start. full says why, and
// reached is the limit that was reached, "" for other reasons.
func (e *Engine) reserveClaim(req Request) (reached Limit, full error) {
	var noRoom error
	unsettled := e.tally(req.Observed, req.Inner)
	if e.options.Room != nil && !req.Inner {
		noRoom = e.options.Room()
	}
	e.flights.mu.Lock()
	defer e.flights.mu.Unlock()
	switch limit := e.flights.limits.InFlight; {
	case e.flights.exiting:
		return "", fmt.Errorf("%w: the process exits", ErrOverloaded)
	case noRoom != nil:
		return LimitBuffered, fmt.Errorf("%w: %w", ErrOverloaded, noRoom)
	case e.withdrawals.inDoubt.count() >= maxWithdrawals: // not a limit: the store does not answer
		return "", fmt.Errorf("%d claims in doubt wait for the store to answer", maxWithdrawals)
	case limit > 0 && !req.Inner && unsettled.count() >= limit:
		return LimitInFlight, overloaded("runs in flight", limit)
	}
	unsettled.add(1)
	return "", nil
}
