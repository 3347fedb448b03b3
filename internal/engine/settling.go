package engine

import (
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// A response that could not be stored is tried again after settleFirst, then at
// twice the distance each time, up to settleAtMost, and to a third of the lease,
// because its claim is renewed at each try.
const (
	settleFirst  = 100 * time.Millisecond
	settleAtMost = 3 * time.Second
)

// settle stores a run's end once. A kept or held end whose claim the store has
// lost (a restart without persistence) is stored all the same, unless somebody
// else has claimed: without it the next duplicate would run again.
func (e *Engine) settle(r *Run, s idempotency.Settlement) error {
	err := e.settleOnce(r.claim, r.standing(), s)
	if !errors.Is(err, idempotency.ErrGone) {
		return err
	}
	if s.State == idempotency.Released {
		// What the renewal wrote anew, or is writing at this moment, must not
		// stay without a run.
		if r.reclaimed.Load() {
			e.withdraw(r.claim, r.standing())
		}
		return err
	}
	if err := e.reclaim(r.claim); err != nil {
		return err
	}
	return e.settleOnce(r.claim, r.standing(), s)
}

func (e *Engine) settleOnce(c idempotency.Claim, claimed *idempotency.Record, s idempotency.Settlement) error {
	ctx, cancel := e.operation()
	defer cancel()
	return idempotency.Sealed(e.store, c.Sealer).Settle(ctx, c.Key, claimed, s)
}

// settleLater goes on storing a run's end in the background, until it is stored,
// the claim is lost, or the retention is over. Meanwhile this process tells its
// own duplicates, but for a released key: that one is free, as far as we know,
// and the store will say so when it is back.
func (r *Run) settleLater(s idempotency.Settlement, o outcome) {
	e := r.engine
	if s.State == idempotency.Released {
		e.finish(r.flight, o)
	} else {
		e.linger(r.flight, o)
	}
	e.goBackground(func() {
		defer e.addUnsettled(-1)
		defer r.settled()
		defer e.remove(r.flight)
		over := time.Now().Add(s.Retention)
		for delay := settleFirst; time.Now().Before(over); delay = min(2*delay, settleAtMost, r.claim.Lease/3) {
			if !e.pause(delay) {
				r.logger().Error("the run's end was never stored: the process stops")
				return
			}
			err := e.settle(r, s)
			if err == nil || errors.Is(err, idempotency.ErrFenced) || errors.Is(err, idempotency.ErrGone) {
				r.report(s, err)
				if err == nil {
					r.logger().Info("the run's end is stored now", zap.String("state", string(s.State)))
				}
				return
			}
			// The store may be full for a response and yet take a renewal.
			_ = e.renewOnce(r.claim)
		}
		r.logger().Error("the run's end was never stored: its retention is over")
	})
}

// pause waits, and reports false when the engine is closed.
func (e *Engine) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}
