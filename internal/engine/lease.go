package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lease is when the lease of a run is renewed next.
type lease struct {
	// until is when the renewals end although the run has not ended; zero for no limit.
	until time.Time
	// warned is when the latest failure was logged.
	warned time.Time

	mu    sync.Mutex
	timer *time.Timer // nil before the first time
	ended bool        // the run has ended, or is being ended
}

// maxRenewalPause is that between a renewal that has failed and the next one.
const maxRenewalPause = time.Second

// renewFrom has the lease renewed until the run ends or has lost its claim.
//
// Each third of the lease counts from when the claim, or the renewal before, was asked
// for: the store has begun the lease at some time between that and its reply, and the
// reply may take long.
func (r *Run) renewFrom(asked time.Time) { r.renewAt(asked.Add(r.claim.Lease / 3)) }

// renewAgain has the lease renewed after a renewal that failed: soon, since two thirds of the
// lease can be over, and at the end of the third at the latest.
func (r *Run) renewAgain(asked time.Time) {
	due := asked.Add(r.claim.Lease / 3)
	if soon := time.Now().Add(min(maxRenewalPause, r.claim.Lease/12)); soon.Before(due) {
		due = soon
	}
	r.renewAt(due)
}

// renewAt has the lease renewed at a time, unless the run ends before.
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

// end ends the renewals. It reports false if they have ended before.
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

// leaseDone reports whether the run has ended, or the engine is closed.
func (r *Run) leaseDone() bool {
	r.lease.mu.Lock()
	defer r.lease.mu.Unlock()
	return r.lease.ended || r.engine.ctx.Err() != nil
}

// renew renews the lease once. If the claim is lost, another request owns the key, or
// soon will. So renew ends the flight, and the requests that wait here ask the store
// again.
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
		// This order matters: first set wasLost, then look whether the run has
		// ended. Settle does it the other way round: it first stops the renewal,
		// and then looks at wasLost. So at least one of them sees what the
		// other has done, and no claim stays that was written again after the
		// end.
		r.wasLost.Store(true)
		if r.leaseDone() {
			return
		}
		err = r.reclaim()
	}
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		r.logger().Warn("the claim was lost while its run is in flight: another owner took the key over")
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

// renewOnce renews the lease in the store. It takes no longer than a third of the lease, so
// that one renewal that hangs does not delay the next one.
func (r *Run) renewOnce() error {
	call := r.engine.startCall(context.Background(), OperationRenew, min(r.engine.Timeout(), r.claim.Lease/3))
	return call.done(r.engine.store.Renew(call.ctx, r.claim))
}

// reclaim writes the claim again after the store has lost it. It returns
// [idempotency.ErrFenced] if another request has claimed the key since.
func (r *Run) reclaim() error {
	// A response that is kept by now is another run's, or this run's own: it must not be
	// replaced.
	c := r.claim
	c.Waits, c.Force = false, false
	got, err := r.engine.storeClaim(c, r.observed)
	if err == nil && got.Verdict != idempotency.Proceed {
		return idempotency.ErrFenced
	}
	return err
}
