package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"go.uber.org/zap"
)

// Run is a request that holds its key's claim. Its owner carries the request
// out and then calls End, exactly once.
type Run struct {
	engine *Engine
	flight *flight
	claim  idempotency.Claim
	policy Policy
	record *idempotency.Record
	// stop ends the renewal of the lease.
	stop context.CancelFunc
	// settled is called when the run's response is held no more.
	settled func()
	// reclaimed says that the renewal may have written the claim anew.
	reclaimed atomic.Bool
}

// Result is what became of a run's claim.
type Result string

// The results of runs.
const (
	ResultKept     Result = "kept"
	ResultReleased Result = "released"
	ResultHeld     Result = "held"
	ResultNotSent  Result = "not_sent"
	// ResultFenced: another owner took the key over; nothing of ours was stored.
	ResultFenced Result = "fenced"
	// ResultLost: the store lost the claim, and there was nothing to store.
	ResultLost Result = "lost"
	// ResultPending: the store could not be asked; it goes on being tried.
	ResultPending Result = "pending"
)

func (e *Engine) newRun(f *flight, c idempotency.Claim, p Policy, got idempotency.Claimed) *Run {
	ctx, stop := context.WithCancel(e.ctx)
	r := &Run{engine: e, flight: f, claim: c, policy: p, record: got.Record, stop: stop, settled: func() {}}
	if got.Previous != nil && got.Previous.State == idempotency.InFlight && got.Previous.Token != c.Token {
		r.logger().Warn("took over a claim whose lease had lapsed",
			zap.String("lapsed_execution_id", got.Previous.ExecutionID),
			zap.Time("lease_until", got.Previous.LeaseUntil))
	}
	e.addUnsettled(1)
	e.goBackground(func() { r.renew(ctx) })
	return r
}

// About implements [Decision].
func (r *Run) About() idempotency.Key { return r.claim.Key }

// ExecutionID names the run to the upstream and to clients.
func (r *Run) ExecutionID() string { return r.record.ExecutionID }

// Record returns a copy of the run's record, as it was claimed.
func (r *Run) Record() *idempotency.Record {
	record := *r.record
	return &record
}

// replaces returns the record that a forced run is to replace; nil for others, and
// where the store has lost it, with the run's own claim.
func (r *Run) replaces() *idempotency.Record {
	if r.reclaimed.Load() {
		return nil
	}
	return r.record.Replaces
}

// standing returns the run's record as the store has it, or had it last.
func (r *Run) standing() *idempotency.Record {
	record := r.Record()
	record.Replaces = r.replaces()
	return record
}

// Attempt is 1 for the first run of a record that may reach the upstream.
func (r *Run) Attempt() int { return r.record.Attempt }

// renew prolongs the lease until the run ends or has lost its claim. With the
// claim it gives up those who wait here: the key is another's, or will be.
func (r *Run) renew(ctx context.Context) {
	ticker := time.NewTicker(r.claim.Lease / 3)
	defer ticker.Stop()
	var limit <-chan time.Time
	if r.policy.Timeout > 0 {
		limit = time.After(r.policy.Timeout + r.claim.Lease)
	}
	for {
		select {
		case <-ticker.C:
		case <-limit:
			r.logger().Warn("the run has not ended at its time limit; its lease is renewed no more",
				zap.Duration("timeout", r.policy.Timeout))
			r.engine.finish(r.flight, outcome{})
			return
		case <-ctx.Done():
			return
		}
		err := r.engine.renewOnce(r.claim)
		if errors.Is(err, idempotency.ErrGone) {
			r.reclaimed.Store(true) // before looking whether the run has ended: settle looks the other way round
			if ctx.Err() != nil {
				return
			}
			err = r.engine.reclaim(r.claim)
		}
		switch {
		case errors.Is(err, idempotency.ErrFenced):
			r.logger().Warn("the claim was lost while its run is in flight: another owner took the key over")
			r.engine.finish(r.flight, outcome{})
			return
		case err != nil && ctx.Err() == nil:
			r.logger().Warn("the lease could not be renewed", zap.Error(err))
		}
	}
}

func (e *Engine) renewOnce(c idempotency.Claim) error {
	ctx, cancel := e.operation()
	defer cancel()
	return idempotency.Sealed(e.store, c.Sealer).Renew(ctx, c)
}

// reclaim writes a claim again that the store has lost. If somebody else has
// claimed meanwhile, it is ErrFenced.
func (e *Engine) reclaim(c idempotency.Claim) error {
	ctx, cancel := e.operation()
	defer cancel()
	c.Waits = false
	got, err := idempotency.Sealed(e.store, c.Sealer).Claim(ctx, c)
	if err == nil && got.Verdict != idempotency.Proceed {
		return idempotency.ErrFenced
	}
	return err
}

// OnSettled has a function called, once, when the response given to End need no
// longer be held: when End returns, or, with [ResultPending], when the end is
// stored or given up. It is to be called before End.
func (r *Run) OnSettled(f func()) { r.settled = f }

// End settles the run's claim by how the run ended. The response is what the
// run was answered, or, with Failed, the error that its client gets. When End
// returns, the response is stored, or the result says why it is not; with
// [ResultPending] the engine goes on trying, and answers its own duplicates.
func (r *Run) End(end idempotency.End, response *idempotency.Response) Result {
	r.stop()
	ended, pending := false, false
	defer func() {
		if !pending {
			r.settled()
		}
		if !ended { // a panic in the store: those who wait here are to ask it
			r.engine.finish(r.flight, outcome{})
			r.engine.addUnsettled(-1)
		}
	}()
	s := r.settlement(end, response)
	err := r.engine.settle(r, s)
	o := r.outcome(s, time.Now())
	ended = true
	switch {
	case err == nil:
		r.engine.finish(r.flight, o)
	case errors.Is(err, idempotency.ErrGone):
		r.engine.finish(r.flight, o)
	case errors.Is(err, idempotency.ErrFenced):
		// Those who waited here are to get the answer that all others get.
		r.engine.finish(r.flight, outcome{})
	default:
		r.logger().Error("the run's end could not be stored; trying on",
			zap.String("state", string(s.State)), zap.Error(err))
		pending = true
		r.settleLater(s, o)
		return ResultPending
	}
	r.engine.addUnsettled(-1)
	return r.report(s, err)
}

// outcome is what those are told who wait here, or come before the settlement is
// stored. A forced run that keeps nothing has still an answer for them, though
// the record is another's again.
func (r *Run) outcome(s idempotency.Settlement, now time.Time) outcome {
	o := outcome{record: r.standing().Settled(s, now), response: s.Response, now: now}
	if s.State == idempotency.Released && r.replaces() != nil {
		o.record = r.record
	}
	return o
}

func (r *Run) settlement(end idempotency.End, response *idempotency.Response) idempotency.Settlement {
	end.Attempt = r.record.Attempt - r.record.FreedAttempts
	policy := r.policy.Settle
	if r.replaces() != nil {
		policy.MaxAttempts = 0 // a forced run's failure need not be kept: there is a response
	}
	conclusion := idempotency.Conclude(end, policy)
	s := idempotency.Settlement{
		State:     conclusion.State,
		Counted:   conclusion.Counted,
		Retention: r.policy.Retention,
		AnswerFor: r.policy.Lease,
	}
	omitted := response != nil && response.Omitted
	if r.replaces() != nil && (s.State == idempotency.Held || omitted) {
		s.State = idempotency.Released // nothing is held, and no whole response is lost: the one before stays
	}
	if s.State != idempotency.Held {
		s.Response = response
	}
	if s.State == idempotency.Complete && end.Retention != nil && *end.Retention > 0 {
		s.Retention = *end.Retention
	}
	return s
}

// report logs what became of the run, and names it.
func (r *Run) report(s idempotency.Settlement, err error) Result {
	log := r.logger()
	switch {
	case errors.Is(err, idempotency.ErrFenced):
		log.Warn("the run ended after another owner had taken its key over; its response is not stored")
		return ResultFenced
	case errors.Is(err, idempotency.ErrGone):
		log.Warn("the run ended after the store had lost its claim")
		return ResultLost
	case s.State == idempotency.Held:
		log.Warn("held: whether the run was executed is unknown; an operator has to release the key")
		return ResultHeld
	case s.State == idempotency.Released && r.replaces() != nil:
		log.Info("the forced run kept nothing; the response before it stays", zap.Bool("sent", s.Counted))
		if !s.Counted {
			return ResultNotSent
		}
		return ResultReleased
	case s.State == idempotency.Released && !s.Counted:
		log.Info("released: the request was not sent")
		return ResultNotSent
	case s.State == idempotency.Released:
		status := 0
		if s.Response != nil {
			status = s.Response.Status
		}
		log.Info("released: the key is free for a retry", zap.Int("status", status))
		return ResultReleased
	default:
		return ResultKept
	}
}

func (r *Run) logger() *zap.Logger {
	return r.engine.log.With(
		zap.Stringer("key", r.claim.Key),
		zap.String("execution_id", r.record.ExecutionID),
		zap.Int("attempt", r.record.Attempt),
		zap.String("provider", r.claim.Provider))
}
