package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Run is a request that holds its key's claim. Its owner carries the request
// out and then calls End, exactly once.
type Run struct {
	engine  *Engine
	flight  *flight
	claim   idempotency.Claim
	policy  idempotency.Policy
	timeout time.Duration
	record  *idempotency.Record
	// stopRenewing ends the renewal of the lease.
	stopRenewing context.CancelFunc
	// responseDone is called when the run's response is held no more.
	responseDone func()
	// reclaimed says that the renewal may have written the claim anew.
	reclaimed atomic.Bool
}

func (e *Engine) newRun(f *flight, c idempotency.Claim, req Request, got idempotency.Claimed) *Run {
	ctx, stop := context.WithCancel(e.ctx)
	r := &Run{
		engine: e, flight: f, claim: c, policy: req.Policy, timeout: req.Timeout, record: got.Record,
		stopRenewing: stop, responseDone: func() {},
	}
	if got.Previous != nil && got.Previous.State == idempotency.InFlight && got.Previous.Token != c.Token {
		r.logger().Warn("took over a claim whose lease had lapsed",
			zap.String("lapsed_execution_id", got.Previous.ExecutionID),
			zap.Time("lease_until", got.Previous.LeaseUntil))
	}
	e.addUnsettled(1)
	e.goBackground(func() { r.renew(ctx) })
	return r
}

// Record returns a copy of the run's record, as it was claimed.
func (r *Run) Record() *idempotency.Record {
	record := *r.record
	return &record
}

// ExecutionID names the run to the upstream and to clients.
func (r *Run) ExecutionID() string { return r.record.ExecutionID }

// Attempt is 1 for the first run of a record that may reach the upstream.
func (r *Run) Attempt() int { return r.record.Attempt }

// replaces returns the record that a forced run is to replace; nil for others, and
// where the store has lost it, with the run's own claim.
func (r *Run) replaces() *idempotency.Record {
	if r.reclaimed.Load() {
		return nil
	}
	return r.record.Replaces
}

// current returns the run's record as the store has it, or had it last.
func (r *Run) current() *idempotency.Record {
	record := r.Record()
	record.Replaces = r.replaces()
	return record
}

// OnResponseDone has a function called, once, when the response given to End need
// no longer be held: when End returns, or, where the store failed, when the end is
// stored or given up. It is to be called before End.
func (r *Run) OnResponseDone(f func()) { r.responseDone = f }

// End settles the run's claim by how the run ended; of the end, the attempt and
// what it replaces are the run's own to say. Without an error the settlement is
// stored. With [idempotency.ErrFenced] another owner took the key over, and
// nothing was stored; with [idempotency.ErrGone] the store has lost the claim, and
// there was nothing to store. With any other error the engine goes on trying, and
// answers its own duplicates.
func (r *Run) End(end idempotency.End) (idempotency.Settlement, error) {
	r.stopRenewing()
	told, trying := false, false
	defer func() {
		if !trying {
			r.responseDone()
		}
		if !told { // a panic in the store: those who wait here are to ask it
			r.engine.end(r.flight, over, idempotency.Claimed{}, nil)
			r.engine.addUnsettled(-1)
		}
	}()
	end.Attempt = r.record.Attempt - r.record.FreedAttempts
	end.Replaces = r.replaces() != nil
	s := idempotency.Conclude(end, r.policy)
	err := r.engine.settle(r, s)
	told = true
	switch {
	case err == nil, errors.Is(err, idempotency.ErrGone):
		r.engine.end(r.flight, over, r.ended(s, time.Now()), nil)
	case errors.Is(err, idempotency.ErrFenced):
		// Those who waited here are to get the answer that all others get.
		r.engine.end(r.flight, over, idempotency.Claimed{}, nil)
	default:
		r.logger().Error("the run's end could not be stored; trying on",
			zap.String("state", string(s.State)), zap.Error(err))
		trying = true
		r.settleLater(s, r.ended(s, time.Now()))
		return s, err
	}
	r.engine.addUnsettled(-1)
	r.report(s, err)
	return s, err
}

// ended is what those find who wait here, or come before the settlement is stored.
// A forced run that keeps nothing has still an answer for them, though the record
// is another's again.
func (r *Run) ended(s idempotency.Settlement, now time.Time) idempotency.Claimed {
	record := r.current().Settled(s, now)
	if s.State == idempotency.Released && r.replaces() != nil {
		record = r.record
	}
	return idempotency.Claimed{Record: record, Response: s.Response, Now: now}
}

// report logs what became of the run.
func (r *Run) report(s idempotency.Settlement, err error) {
	log := r.logger()
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
	case s.State == idempotency.Released:
		status := 0
		if s.Response != nil {
			status = s.Response.Status
		}
		log.Info("released: the key is free for a retry", zap.Int("status", status))
	}
}

func (r *Run) logger() *zap.Logger {
	return r.engine.log.With(
		zap.Stringer("key", r.claim.Key),
		zap.String("execution_id", r.record.ExecutionID),
		zap.Int("attempt", r.record.Attempt),
		zap.String("provider", r.claim.Provider))
}
