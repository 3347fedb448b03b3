package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lease schedules the renewals of a run's lease, until its settlement is stored or given up.
type lease struct {
	// until is when the renewals pause if the run has not ended; zero for no limit.
	until time.Time
	// warned is when the latest failure was logged.
	warned time.Time

	mu    sync.Mutex
	timer *time.Timer // nil before the first schedule
	// ended: Settle was called. paused: it was not, at the time limit. stopped: no more renewals.
	ended, paused, stopped bool
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

// renewAt schedules a renewal, unless the settlement is stored or given up.
func (r *Run) renewAt(due time.Time) {
	l := &r.lease
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ended && !l.until.IsZero() && due.After(l.until) {
		due = l.until
	}
	if !l.stopped {
		l.timer = time.AfterFunc(time.Until(due), func() { r.engine.goBackground(r.renew) })
	}
}

// endLease marks the run as ended: from now on its settlement writes a lost claim again, and the time
// limit no longer counts. It returns false if the run had ended before.
func (r *Run) endLease() bool {
	l := &r.lease
	l.mu.Lock()
	wasEnded, wasPaused := l.ended, l.paused
	l.ended, l.paused = true, false
	l.mu.Unlock()
	if wasPaused {
		r.renewAt(time.Now())
	}
	return !wasEnded
}

func (l *lease) hasEnded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// pause reports whether the run has reached its time limit: then the lease is not renewed before the
// run ends.
func (l *lease) pause(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = !l.ended && !l.until.IsZero() && !now.Before(l.until)
	return l.paused
}

func (l *lease) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.timer.Stop()
}

// renew renews the lease, and schedules the next renewal. If another request owns the key of a run in
// flight, or soon may, renew ends the flight, and its waiters ask the store again.
func (r *Run) renew() {
	asked := time.Now()
	switch {
	case r.engine.ctx.Err() != nil:
		return
	case r.lease.pause(asked):
		r.logger().Warn("the run has not ended at its time limit; its lease is no longer renewed",
			zap.Duration("given_up_after", r.timeout))
		r.flight.askAgain()
		return
	}
	timeout := min(r.engine.Timeout(), r.claim.Lease/3) // a renewal that hangs must not delay the next one
	call := r.engine.startCall(context.Background(), OperationRenew, timeout)
	err := call.done(r.engine.store.Renew(call.ctx, r.claim))
	if errors.Is(err, idempotency.ErrGone) {
		// The order matters. renew sets wasLost and then checks whether the run has ended;
		// Settle ends the run and then checks wasLost. So at least one of them
		// notices the other, and no claim remains that was written again after the end.
		r.wasLost.Store(true)
		if !r.lease.hasEnded() {
			err = r.reclaim()
		}
	}
	switch {
	case err == nil:
		r.renewFrom(asked)
		return
	case r.lease.hasEnded(): // the settlement meets the same error, and logs it
	case errors.Is(err, idempotency.ErrFenced):
		r.logger().Warn("the claim was lost while its run is in flight: another request took the key over")
		r.flight.askAgain()
		return
	case asked.Sub(r.lease.warned) >= r.claim.Lease/3:
		r.lease.warned = asked
		r.logger().Warn("the lease could not be renewed", zap.Error(err))
	}
	r.renewAgain(asked)
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
