package engine

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A settlement that could not be stored is tried again after firstRetry, then at
// twice the distance each time, up to longestRetry, and to a third of the lease,
// because its claim is renewed at each try.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = 3 * time.Second
)

// settle stores a run's settlement once. One that keeps or holds, and whose claim
// the store has lost (a restart without persistence), is stored all the same,
// unless somebody else has claimed: without it the next duplicate would run again.
func (e *Engine) settle(r *Run, s idempotency.Settlement) error {
	err := e.settleOnce(r.claim.Key, r.current(), s)
	if !errors.Is(err, idempotency.ErrGone) {
		return err
	}
	if s.State == idempotency.Released {
		// What the renewal wrote anew, or is writing at this moment, must not
		// stay without a run.
		if r.reclaimed.Load() {
			e.withdraw(r.claim, r.current())
		}
		return err
	}
	if err := e.reclaim(r.claim); err != nil {
		return err
	}
	return e.settleOnce(r.claim.Key, r.current(), s)
}

func (e *Engine) settleOnce(key idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) error {
	ctx, cancel := e.operation(context.Background())
	defer cancel()
	return e.store.Settle(ctx, key, claimed, s)
}

// settleLater goes on storing a run's settlement in the background, until it is
// stored, the claim is lost, or the retention is over. Meanwhile this process
// tells its own duplicates what it ended with, but for a released key: that one is
// free, as far as we know, and the store will say so when it is back.
func (r *Run) settleLater(s idempotency.Settlement, ended idempotency.Claimed) {
	e := r.engine
	event := runUnstored
	if s.State == idempotency.Released {
		event = over
	}
	e.end(r.flight, event, ended, nil)
	e.goBackground(func() {
		defer e.addUnsettled(-1)
		defer r.responseDone()
		defer e.end(r.flight, over, ended, nil)
		deadline := time.Now().Add(s.Retention)
		for delay := firstRetry; time.Now().Before(deadline); delay = min(2*delay, longestRetry, r.claim.Lease/3) {
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
