package engine

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A settlement that could not be stored is tried again after firstRetry. The pause
// doubles each time, up to longestRetry. It is never longer than a third of the
// lease, because each try also renews the claim.
const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = 3 * time.Second
)

// settle tries once to store the settlement of a run. If the store has lost the claim,
// for example in a restart without persistence, it first writes the claim again,
// unless another request has claimed the key since: without a record the next
// duplicate would run again. A settlement that releases the key needs no record.
func (e *Engine) settle(r *Run, s idempotency.Settlement) error {
	err := e.settleOnce(r.claim.Key, r.current(), s)
	if !errors.Is(err, idempotency.ErrGone) {
		return err
	}
	if s.State == idempotency.Released {
		// The renewal may have written the claim again, or be about to. Nobody would
		// ever settle that claim, so it is withdrawn.
		if r.wasLost.Load() {
			e.withdraw(r.claim, r.current())
		}
		return err
	}
	if err := e.reclaim(r.claim); err != nil {
		return err
	}
	return e.settleOnce(r.claim.Key, r.current(), s)
}

// settleOnce stores a settlement, with no second try.
func (e *Engine) settleOnce(key idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) error {
	ctx, cancel := e.operation()
	defer cancel()
	return e.store.Settle(ctx, key, claimed, s)
}

// settleLater goes on trying, in the background, to store the settlement of a run: until
// it is stored, the claim is lost, the claim's record could be gone, or there is nowhere left
// to store it ([Engine.Drain]). The retention of the
// settlement may be shorter, and is no reason to stop: each try renews the claim, and without
// a settlement nobody would know how its run has ended. Meanwhile the flight
// answers the duplicates that this process gets. After a release it does not: the
// key is free, but the store does not know it yet, and only the store can decide
// which request runs next.
func (r *Run) settleLater(end idempotency.End, s idempotency.Settlement) {
	e, ended := r.engine, r.ended(s, time.Now())
	event := runUnstored
	if s.State == idempotency.Released {
		event = over
	}
	e.end(r.flight, event, ended, nil)
	e.goBackground(func() {
		defer e.addUnsettled(-1)
		defer r.responseDone()
		defer e.end(r.flight, over, ended, nil)
		deadline := time.Now().Add(max(s.Retention, r.claim.Life()))
		for delay := firstRetry; time.Now().Before(deadline); delay = min(2*delay, longestRetry, r.claim.Lease/3) {
			if !pause(e.storing, delay) {
				e.options.Observer.RunEnded(ResultLost)
				r.logger().Error("the run's end was never stored: the process stops")
				return
			}
			// The store may have no room for the response and still renew the lease. This
			// comes first: a settlement that hangs again may outlast what is left of it.
			_ = e.renewOnce(r.claim)
			read := e.beginReading()
			s, err := r.settle(&end)
			if err == nil {
				r.copyRun(read, s, r.ended(s, time.Now()))
			}
			if err == nil || errors.Is(err, idempotency.ErrFenced) || errors.Is(err, idempotency.ErrGone) {
				r.report(s, err)
				if err == nil {
					r.logger().Info("the run's end is stored now", zap.String("state", string(s.State)))
				}
				return
			}
		}
		e.options.Observer.RunEnded(ResultLost)
		r.logger().Error("the run's end was never stored: its retention is over")
	})
}
