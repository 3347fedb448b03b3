package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lease schedules the renewals of a run's lease.
type lease struct {
	// until is when the renewals stop even if the run has not ended; zero for no limit.
	until time.Time
	// warned is when the latest failure was logged.
	warned time.Time

	mu    sync.Mutex
	timer *time.Timer // nil before the first schedule
	ended bool        // Settle was called
}

// maxRenewalPause is the longest pause after a renewal that failed.
const maxRenewalPause = time.Second

// renewFrom schedules a renewal a third of the lease after asked, the time at which the claim or the
// last renewal was sent. The store started the lease some time after that and before its
// reply, which may be late.
func (r *Run) renewFrom(asked time.Time) { r.renewAt(asked.Add(r.claim.Lease / 3)) }

// renewAgain schedules a renewal after one that failed: soon, because two thirds of the lease may be
// over.
func (r *Run) renewAgain(asked time.Time) {
	due := asked.Add(r.claim.Lease / 3)
	if soon := time.Now().Add(min(maxRenewalPause, r.claim.Lease/12)); soon.Before(due) {
		due = soon
	}
	r.renewAt(due)
}

// renewAt schedules a renewal, unless the run has ended.
func (r *Run) renewAt(due time.Time) {
	l := &r.lease
	if !l.until.IsZero() && due.After(l.until) {
		due = l.until
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended {
		l.timer = time.AfterFunc(time.Until(due), func() { r.engine.goBackground(r.renew) })
	}
}

// end stops the renewals. It returns false if they were stopped before.
func (l *lease) end() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.ended = true
	if l.timer != nil {
		l.timer.Stop()
	}
	return true
}

// leaseDone reports whether the run needs no renewals: it has ended, or the engine is closed.
func (r *Run) leaseDone() bool {
	r.lease.mu.Lock()
	defer r.lease.mu.Unlock()
	return r.lease.ended || r.engine.ctx.Err() != nil
}

// renew renews the lease, and schedules the next renewal. If another request owns the key, or soon
// may, renew ends the flight, and its waiters ask the store again.
func (r *Run) renew() {
	if r.leaseDone() {
		return
	}
	asked := time.Now()
	if !r.lease.until.IsZero() && !asked.Before(r.lease.until) {
		r.logger().Warn("the run has not ended at its time limit; its lease is no longer renewed",
			zap.Duration("given_up_after", r.timeout))
		r.flight.askAgain()
		return
	}
	err := r.renewOnce()
	if errors.Is(err, idempotency.ErrGone) {
		// The order matters. renew sets wasLost and then checks whether the run has ended;
		// Settle stops the renewals and then checks wasLost. So at least one of them
		// notices the other, and no claim remains that was written again after the end.
		r.wasLost.Store(true)
		if r.leaseDone() {
			return
		}
		err = r.reclaim()
	}
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		r.logger().Warn("the claim was lost while its run is in flight: another request took the key over")
		r.flight.askAgain()
	case err != nil:
		if third := r.claim.Lease / 3; !r.leaseDone() && asked.Sub(r.lease.warned) >= third {
			r.lease.warned = asked
			r.logger().Warn("the lease could not be renewed", zap.Error(err))
		}
		r.renewAgain(asked)
	default:
		r.renewFrom(asked)
	}
}

// renewOnce renews the lease in the store. Its timeout is at most a third of the lease, so that a
// renewal that hangs does not delay the next one.
func (r *Run) renewOnce() error {
	call := r.engine.startCall(context.Background(), OperationRenew, min(r.engine.Timeout(), r.claim.Lease/3))
	return call.done(r.engine.store.Renew(call.ctx, r.claim))
}

// reclaim writes the claim again after the store has lost it. Its error is
// [idempotency.ErrFenced] if another request has claimed the key since.
func (r *Run) reclaim() error {
	// A response that is kept by now is that of another run, or this run's own. Without Force the
	// claim cannot replace it.
	c := r.claim
	c.Waits, c.Force = false, false
	got, err := r.engine.storeClaim(c, r.observed)
	if err == nil && got.Verdict != idempotency.Proceed {
		return idempotency.ErrFenced
	}
	return err
}
