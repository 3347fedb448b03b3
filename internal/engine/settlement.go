package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The engine retries a settlement that it could not store after minRetryPause. The pause doubles
// each time, up to maxRetryPause.
const (
	minRetryPause = 100 * time.Millisecond
	maxRetryPause = 3 * time.Second
)

// Settle settles the claim of the run. end says how the run ended; Settle sets its Attempt and
// HasPrevious. Without an error the settlement is stored. Errors:
//   - [idempotency.ErrFenced]: another request has taken the key over, or
//     [Engine.Abandon] has ended the run. Nothing was stored.
//   - [idempotency.ErrGone]: the store has lost the claim. Nothing was stored, because a
//     release needs no record.
//   - Any other error: the engine keeps trying to store the settlement. Until then
//     it answers the duplicates of this process itself.
//
// Settle calls onStored once, unless it is nil, when the engine no longer needs the response: before
// Settle returns or, if the store fails, when the settlement is stored or given up. A local copy
// may still hold the response, under a limit of its own, so the caller must never reuse its
// bytes. logFields are added to the log line about the claim.
func (r *Run) Settle(end idempotency.End, onStored func(), logFields ...zap.Field) (idempotency.Settlement, error) {
	if !r.endLease() {
		if onStored != nil {
			onStored()
		}
		return idempotency.Settlement{}, idempotency.ErrFenced
	}
	r.end, r.endedAt, r.onStored, r.logFields = end, time.Now(), onStored, logFields
	defer r.startBodies()()
	r.flight.setStoring()
	returned := false
	defer func() {
		if !returned { // the store has panicked
			r.flight.askAgain()
			r.settled(ResultLost)
		}
	}()
	s, err := r.trySettle()
	returned = true
	switch {
	case err == nil, errors.Is(err, idempotency.ErrGone):
		r.flight.end(closed, r.flightResult(s), nil)
	case errors.Is(err, idempotency.ErrFenced):
		// The waiters, like all other requests, get the response of the run that has
		// taken over the key.
		r.flight.askAgain()
	default:
		r.logger().Error("the run's end could not be stored; the process keeps trying",
			zap.String("state", string(s.State)), zap.Error(err))
		r.settleLater(s)
		return s, err
	}
	r.log(s, err)
	r.settled(resultOf(s, err))
	return s, err
}

// trySettle tries once to store the settlement. If the response is too large for the store, it
// stores less of it, now and in later tries.
//
// If the store has lost the claim, for example in a restart without persistence, trySettle first
// writes the claim again, unless another request has claimed the key since: without a record
// the next duplicate would run again. A settlement that releases the key needs no record.
func (r *Run) trySettle() (idempotency.Settlement, error) {
	read := r.engine.copies.snapshot()
	s := r.settlement()
	err := r.engine.settle(r.bodies, r.claim.Key, r.current(), s)
	if errors.Is(err, idempotency.ErrGone) && r.end.HasPrevious && s.State == idempotency.Released {
		// The store has also lost the response that this run was to replace. Without it, the
		// key may have to be held, or this response kept as that of the last attempt.
		r.wasLost.Store(true)
		s = r.settlement()
	}
	switch {
	case !errors.Is(err, idempotency.ErrGone):
	case s.State != idempotency.Released:
		if err = r.reclaim(); err == nil {
			err = r.engine.settle(r.bodies, r.claim.Key, r.current(), s)
		}
	case r.wasLost.Load():
		// A renewal may have written the claim again, or be about to. No run would settle
		// that claim.
		r.engine.withdrawals.add(r.claim, r.current())
	}
	switch {
	case errors.Is(err, idempotency.ErrTooLarge) && r.dropBody(err):
		return r.trySettle()
	case isUnstored(err) && r.bodies.Err() != nil && r.engine.ctx.Err() == nil && r.hasBody() && r.dropBody(context.Cause(r.bodies)):
		return r.trySettle()
	}
	if err == nil {
		r.copyResponse(read, s)
	}
	return s, err
}

// isUnstored reports whether another attempt may succeed after this error.
func isUnstored(err error) bool {
	return err != nil && !errors.Is(err, idempotency.ErrFenced) && !errors.Is(err, idempotency.ErrGone)
}

// movingBody is the size in bytes above which the timeout of a settlement moves with the bytes of its
// body. Smaller bodies have the timeout of other operations, and so share contexts.
const movingBody = 8 << 10

// settle stores a settlement, without retries. When bodies ends, settle stops moving the body.
func (e *Engine) settle(bodies context.Context, key idempotency.Key, claimed *idempotency.Record, s idempotency.Settlement) error {
	var call storeCall
	if movesBody(s) {
		call = e.startMove(bodies, OperationSettle)
	} else {
		call = e.startCall(context.Background(), OperationSettle, e.Timeout())
	}
	return call.done(e.store.Settle(call.ctx, key, claimed, s))
}

// settlement returns the settlement by the rules, with the retention that is left since the run
// ended.
func (r *Run) settlement() idempotency.Settlement {
	r.end.Attempt = r.record.Attempt - r.record.ReleasedAttempts
	r.end.HasPrevious = r.replaces() != nil
	s := idempotency.Conclude(r.end, r.policy)
	if ago := time.Since(r.endedAt).Truncate(time.Second); ago > 0 {
		s.Ago, s.Retention = ago, max(s.Retention-ago, minLateRetention)
	}
	return s
}

// minLateRetention is the retention of a settlement that the engine could not store before its
// retention was over. Without a record, operators could not see how the run ended.
const minLateRetention = time.Second

// flightResult returns the result of the flight, for requests that waited for the run or arrive
// before the settlement is stored. A forced run that keeps no response still has one for its
// waiters, so the result has the record of the run, although in the store the replaced
// record counts again.
func (r *Run) flightResult(s idempotency.Settlement) idempotency.Claimed {
	now := time.Now()
	record := r.current().Settled(s, now)
	if s.State == idempotency.Released && r.replaces() != nil {
		record = r.record
	}
	return idempotency.Claimed{Record: record, Response: s.Response, Now: now}
}

// settleLater retries the settlement in the background. It stops when the settlement is stored,
// when the claim is lost, when the claim's record may have expired, or when the process stops
// ([Engine.Drain]). It does not stop when the settlement's own retention is over: the
// claim is renewed, and without a settlement operators could not see how the run ended.
//
// Until then the flight answers the duplicates of this process. After a release it does not: only
// the store can decide which request runs next, and it does not know of the release yet.
func (r *Run) settleLater(s idempotency.Settlement) {
	next := unstored
	if s.State == idempotency.Released {
		next = closed
	}
	r.flight.end(next, r.flightResult(s), nil)
	deadline := time.Now().Add(max(s.Retention, r.claim.Life()))
	r.engine.goBackground(func() { // it captures no response: the body may be dropped
		settled := r.retry(deadline)
		r.flight.end(closed, idempotency.Claimed{}, nil) // the flight has its result
		r.settled(settled)
	})
}

// retry retries the settlement until the deadline, and returns the result of the run.
func (r *Run) retry(deadline time.Time) Result {
	retries := r.engine.retries.Load()
	r.engine.retrying.Add(1)
	defer r.engine.retrying.Add(-1)
	defer r.startBodies()()
	defer r.engine.options.Unstored.add(r)()
	for delay := minRetryPause; time.Now().Before(deadline); delay = min(2*delay, maxRetryPause) {
		if !r.pauseRetry(retries, spread(delay)) {
			return r.neverStored(context.Cause(retries))
		}
		s, err := r.trySettle()
		if !isUnstored(err) {
			r.log(s, err)
			if err == nil {
				r.logger().Info("the run's end is stored now", zap.String("state", string(s.State)))
			}
			return resultOf(s, err)
		}
	}
	return r.neverStored(errRetentionOver)
}

// pauseRetry waits before the next attempt, or until the body is dropped. It returns false if the retries
// are stopped.
func (r *Run) pauseRetry(ctx context.Context, d time.Duration) bool {
	var dropped <-chan struct{}
	if r.hasBody() {
		dropped = r.bodies.Done()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-dropped:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

var errRetentionOver = errors.New("its retention is over")

func (r *Run) neverStored(why error) Result {
	r.logger().Error(fmt.Sprint("the run's end was never stored: ", why))
	return ResultLost
}

// settled reports the result of the run, and releases what the run holds.
func (r *Run) settled(result Result) {
	r.lease.stop()
	r.engine.observer(r.observed).RunEnded(r.label, result)
	r.responseDone()
	r.engine.tally(r.observed, r.inner).add(-1)
}

// responseDone calls onStored once.
func (r *Run) responseDone() {
	if r.onStored != nil {
		r.onStored()
		r.onStored = nil
	}
}

// log logs how the claim was settled, unless a response is kept.
func (r *Run) log(s idempotency.Settlement, err error) {
	if err == nil && s.State == idempotency.Complete {
		return
	}
	log := r.logger().With(r.logFields...)
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		log.Warn("the run ended after another request had taken its key over; its response is not stored")
	case errors.Is(err, idempotency.ErrGone):
		log.Warn("the run ended after the store had lost its claim")
	case s.State == idempotency.Held:
		log.Warn("held: whether the run was executed is unknown; an operator has to release the key")
	case s.State == idempotency.Released && r.replaces() != nil:
		log.Info("the forced run kept no response; the earlier one stays", zap.Bool("sent", s.Counted))
	case s.State == idempotency.Released && !s.Counted:
		log.Info("released: the run is no attempt: it was not executed, or asked its client for more")
	case s.State == idempotency.Released && r.WasLast():
		log.Warn("exhausted: whether the last allowed attempt was executed is unknown; an operator has to release the key")
	case s.State == idempotency.Released:
		status := 0
		if s.Response != nil {
			status = s.Response.Status
		}
		log.Info("released: the next request with the key runs", zap.Int("status", status))
	}
}
