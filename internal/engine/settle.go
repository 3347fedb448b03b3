package engine

import (
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A settlement that could not be stored is tried again after minRetryPause. The pause
// doubles each time, up to maxRetryPause. It is never longer than a third of the lease,
// because each try also renews the claim.
const (
	minRetryPause = 100 * time.Millisecond
	maxRetryPause = 3 * time.Second
)

// settle stores what becomes of the claim, with no second try. Of a response that
// is too large for the store, less is kept, now and later.
func (r *Run) settle(end *idempotency.End) (idempotency.Settlement, error) {
	for {
		s, err := r.storeEnd(*end)
		if !errors.Is(err, idempotency.ErrTooLarge) {
			return s, err
		}
		reduced := end.Response.Reduced()
		if reduced == nil {
			return s, err
		}
		r.logger().Warn("too large: the store has no room for the response; its body is not kept",
			zap.Int("status", reduced.Status), zap.Int("bytes", len(end.Response.Body)))
		end.Response, end.Reason = reduced, "the response was not kept: the store has no room for it"
		r.responseDone()
	}
}

// storeEnd is settle for a response that may be too large for the store.
//
// If the store has lost the claim, for example in a restart without persistence, it first
// writes the claim again, unless another request has claimed the key since: without a record
// the next duplicate would run again. A settlement that releases the key needs no record.
func (r *Run) storeEnd(end idempotency.End) (idempotency.Settlement, error) {
	s := r.settlement(end)
	err := r.engine.storeSettlement(r.claim.Key, r.current(), s)
	if errors.Is(err, idempotency.ErrGone) && r.replaces() != nil && s.State == idempotency.Released {
		// With the claim the store has lost the response that stood behind this run:
		// what is to be held, or kept as the last attempt, has to be stored now.
		r.wasLost.Store(true)
		s = r.settlement(end)
	}
	switch {
	case !errors.Is(err, idempotency.ErrGone):
		return s, err
	case s.State == idempotency.Released:
		// The renewal may have written the claim again, or be about to. No run would
		// ever settle that claim, so it is withdrawn.
		if r.wasLost.Load() {
			r.engine.withdrawals.add(r.claim, r.current())
		}
		return s, err
	}
	if err := r.reclaim(); err != nil {
		return s, err
	}
	return s, r.engine.storeSettlement(r.claim.Key, r.current(), s)
}

// minStoreRate is how many bytes a second a store takes at least. A large response has more time
// than other operations: with less than it takes, no attempt would ever store it.
const minStoreRate = 1 << 20

// storeSettlement stores a settlement, with no second try.
func (e *Engine) storeSettlement(key idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) error {
	size := 0
	if s.Response != nil {
		size = len(s.Response.Body)
	}
	ctx, cancel := e.operation(time.Duration(size) * time.Second / minStoreRate)
	defer cancel()
	return e.store.Settle(ctx, key, claimed, s)
}

// settlement returns what becomes of the claim, by the rules and by when the run ended.
func (r *Run) settlement(end idempotency.End) idempotency.Settlement {
	end.Attempt = r.record.Attempt - r.record.ReleasedAttempts
	end.HasPrevious = r.replaces() != nil
	s := idempotency.Conclude(end, r.policy)
	if ago := time.Since(r.endedAt).Truncate(time.Second); ago > 0 {
		s.Ago, s.Retention = ago, max(s.Retention-ago, min(s.Retention, minLateRetention))
	}
	return s
}

// minLateRetention is for an end that could not be stored before its retention was over. It is
// stored all the same: without it, operators could not see how the run has ended.
const minLateRetention = time.Second

// outcome returns how the flight has ended: what requests get that waited for the run,
// or that come before the settlement is stored. A forced run that keeps no response
// still has an answer for the requests that waited. So it is returned under the
// record of the run, although the record before applies again in the store.
func (r *Run) outcome(s idempotency.Settlement, now time.Time) idempotency.Claimed {
	record := r.current().Settled(s, now)
	if s.State == idempotency.Released && r.replaces() != nil {
		record = r.record
	}
	return idempotency.Claimed{Record: record, Response: s.Response, Now: now}
}

// settleLater continues, in the background, to try to store the settlement of a run: until
// it is stored, the claim is lost, the claim's record could be gone, or there is nowhere left
// to store it ([Engine.Drain]). The settlement's retention may be shorter, and is no reason to
// stop: each try renews the claim, and without a settlement operators could not see how its run
// has ended. Meanwhile the flight answers the duplicates that this process gets. After a
// release it does not: the key is released, but the store does not know it yet, and only the store
// can decide which request runs next.
func (r *Run) settleLater(end idempotency.End, s idempotency.Settlement) {
	outcome := r.outcome(s, time.Now())
	event := runUnstored
	if s.State == idempotency.Released {
		event = runOver
	}
	r.flight.end(event, outcome, nil)
	r.engine.goBackground(func() {
		defer r.engine.tally(r.observed).add(-1)
		defer r.responseDone()
		defer r.flight.end(runOver, outcome, nil)
		r.retry(end, time.Now().Add(max(s.Retention, r.claim.Life())))
	})
}

// retry tries to settle the run until the deadline.
func (r *Run) retry(end idempotency.End, deadline time.Time) {
	for delay := minRetryPause; time.Now().Before(deadline); delay = min(2*delay, maxRetryPause, r.claim.Lease/3) {
		if !pause(r.engine.storing, delay) {
			r.neverStored("the process stops")
			return
		}
		// The store may have no room for the response and still renew the lease. This
		// comes first: a settlement that hangs again may outlast what is left of it.
		_ = r.renewOnce()
		read := r.engine.copies.begin()
		s, err := r.settle(&end)
		switch {
		case err == nil:
			r.copyResponse(read, s, r.outcome(s, time.Now()))
			r.report(s, nil)
			r.logger().Info("the run's end is stored now", zap.String("state", string(s.State)))
			return
		case errors.Is(err, idempotency.ErrFenced), errors.Is(err, idempotency.ErrGone):
			r.report(s, err)
			return
		}
	}
	r.neverStored("its retention is over")
}

func (r *Run) neverStored(why string) {
	r.count(ResultLost)
	r.logger().Error("the run's end was never stored: " + why)
}

// report counts and logs what has become of the claim of the run.
func (r *Run) report(s idempotency.Settlement, err error) {
	r.count(resultOf(s, err))
	if err == nil && s.State == idempotency.Complete {
		return
	}
	log := r.logger().With(r.facts...)
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		log.Warn("the run ended after another owner had taken its key over; its response is not stored")
	case errors.Is(err, idempotency.ErrGone):
		log.Warn("the run ended after the store had lost its claim")
	case s.State == idempotency.Held:
		log.Warn("held: whether the run was executed is unknown; an operator has to release the key")
	case s.State == idempotency.Released && r.replaces() != nil:
		log.Info("the forced run kept nothing; the response before it stays", zap.Bool("sent", s.Counted))
	case s.State == idempotency.Released && !s.Counted:
		log.Info("released: the request was not sent")
	case s.State == idempotency.Released && r.WasLast():
		log.Warn("exhausted: whether the last attempt that is allowed was executed is unknown; an operator has to release the key")
	case s.State == idempotency.Released:
		status := 0
		if s.Response != nil {
			status = s.Response.Status
		}
		log.Info("released: the next request with the key runs", zap.Int("status", status))
	}
}
