package engine

import (
	"errors"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Run is a request that has claimed its key, and may now be carried out. The caller of
// [Engine.Claim] carries it out, and then calls Settle, exactly once.
type Run struct {
	engine  *Engine
	flight  *flight
	claim   idempotency.Claim
	label   string
	policy  idempotency.Policy
	timeout time.Duration
	// observed is [Request.Observed].
	observed bool
	record   *idempotency.Record
	lease    lease
	// lapsed names the run whose claim this one has taken over, "" for none.
	lapsed string
	// facts are what the caller knows of the run's end, for the log.
	facts []zap.Field
	// onStored is called when the engine no longer needs the response; nil afterwards.
	onStored func()
	// wasLost reports whether the store has lost the claim once, and with it what the run
	// was to replace. The claim may have been written again.
	wasLost atomic.Bool
	// endedAt is when the run ended, and its end was first to be stored. Its retention counts
	// from then, to the second.
	endedAt time.Time
}

// newRun returns the run of a claim. Its lease is not renewed yet.
func (e *Engine) newRun(f *flight, c idempotency.Claim, req Request, got idempotency.Claimed) *Run {
	c.PrevToken = got.Record.PrevToken
	r := &Run{
		engine: e, flight: f, claim: c, label: req.Label, policy: req.Policy, timeout: req.Timeout, observed: req.Observed, record: got.Record,
	}
	if got.Previous != nil && got.Previous.State == idempotency.InFlight && got.Previous.Token != c.Token {
		r.lapsed = got.Previous.ExecutionID
		e.observer(req.Observed).TookOver()
		r.logger().Warn("lapsed: took over a claim whose lease was not renewed",
			zap.String("lapsed_execution_id", got.Previous.ExecutionID),
			zap.Time("lease_until", got.Previous.LeaseUntil))
	}
	if r.timeout > 0 {
		r.lease.until = time.Now().Add(r.timeout + c.Lease)
	}
	return r
}

// Record returns a copy of the record that the claim has written.
func (r *Run) Record() *idempotency.Record {
	record := *r.record
	return &record
}

// ExecutionID names the run to the upstream and to clients.
func (r *Run) ExecutionID() string { return r.record.ExecutionID }

// ParentID names the run that a forced run repeats; "" for other runs.
func (r *Run) ParentID() string { return r.record.ParentID }

// Lapsed names the run whose claim this one has taken over, because its lease was not
// renewed; "" for none.
func (r *Run) Lapsed() string { return r.lapsed }

// Attempt is the number of this run of the key, counted from 1. Runs that certainly did
// not reach the upstream are not counted.
func (r *Run) Attempt() int { return r.record.Attempt }

// replaces returns the record that a forced run is meant to replace. It returns nil
// for other runs. It also returns nil if the store has lost the claim: then the
// store has lost that record too.
func (r *Run) replaces() *idempotency.Record {
	if r.wasLost.Load() {
		return nil
	}
	return r.record.Previous
}

// current returns the record of the run as the store has it, or had it last. It must not be
// changed.
func (r *Run) current() *idempotency.Record {
	replaces := r.replaces()
	if replaces == r.record.Previous {
		return r.record
	}
	record := r.Record()
	record.Previous = replaces
	return record
}

// Stream sets the response that the run is giving: duplicates in this process get a [Follow]
// with live. Nil is nothing to follow.
func (r *Run) Stream(live any) { r.flight.stream(live) }

// OnStored sets a function that is called once, when the engine no longer needs the response
// that Settle was given. That is when Settle returns or, if the store fails, when the end is stored
// or given up. A local copy may keep the response for longer, under a limit of its own, so its
// bytes must never be reused. OnStored must be called before Settle.
func (r *Run) OnStored(f func()) { r.onStored = f }

func (r *Run) responseDone() {
	if r.onStored != nil {
		r.onStored()
		r.onStored = nil
	}
}

// Explain sets what the caller knows of the run and its end, for the log line about what has
// become of the claim. It must be called before Settle.
func (r *Run) Explain(facts ...zap.Field) { r.facts = facts }

// Settle settles the claim of the run. The caller says how the run ended, except for
// Attempt and Previous, which Settle sets itself. Without an error the settlement is
// stored. Errors:
//   - [idempotency.ErrFenced]: another request has taken the key over, or
//     [Engine.Abandon] has ended the run. Nothing was stored.
//   - [idempotency.ErrGone]: the store has lost the claim. The key was to be
//     released, which needs no record, so nothing was stored.
//   - Any other error: the engine keeps trying to store the settlement. Until then
//     it answers the duplicates that this process gets.
func (r *Run) Settle(end idempotency.End) (idempotency.Settlement, error) {
	if !r.lease.end() {
		r.responseDone()
		return idempotency.Settlement{}, idempotency.ErrFenced
	}
	return r.end(end)
}

func (r *Run) end(end idempotency.End) (idempotency.Settlement, error) {
	r.flight.beginStoring()
	ended, trying := false, false
	defer func() {
		if !trying {
			r.responseDone()
		}
		if !ended { // the store has panicked
			r.flight.askAgain()
			r.engine.tally(r.observed).add(-1)
			r.count(ResultLost)
		}
	}()
	read := r.engine.copies.begin()
	r.endedAt = read.asked
	s, err := r.settle(&end)
	ended = true
	switch {
	case err == nil, errors.Is(err, idempotency.ErrGone):
		outcome := r.outcome(s, time.Now())
		if err == nil {
			r.copyResponse(read, s, outcome)
		}
		r.flight.end(runOver, outcome, nil)
	case errors.Is(err, idempotency.ErrFenced):
		// The requests that waited get the answer of the run that has taken the key
		// over, as all other requests do.
		r.flight.askAgain()
	default:
		r.logger().Error("the run's end could not be stored; the process keeps trying",
			zap.String("state", string(s.State)), zap.Error(err))
		trying = true
		r.settleLater(end, s)
		return s, err
	}
	r.engine.tally(r.observed).add(-1)
	r.report(s, err)
	return s, err
}

// count counts the run by what has become of its claim.
func (r *Run) count(result Result) {
	r.engine.observer(r.observed).RunEnded(r.label, result)
}

// WasLast reports whether no attempt is left after this one.
func (r *Run) WasLast() bool {
	limit := r.policy.MaxAttempts
	return limit > 0 && r.record.Attempt-r.record.ReleasedAttempts >= limit
}

func (r *Run) logger() *zap.Logger {
	observed := zap.Skip()
	if r.observed {
		observed = zap.Bool("observed", true)
	}
	return r.engine.log.With(observed,
		r.engine.keyFields(r.claim.Key, r.claim.Origin, r.claim.SealedBy),
		zap.String("execution_id", r.record.ExecutionID),
		zap.Int("attempt", r.record.Attempt))
}

// keyFields returns a key and its delivery as fields of a log line. A delivery ID that the store
// encrypts is not logged.
func (e *Engine) keyFields(key idempotency.Key, o idempotency.Origin, sealedBy string) zap.Field {
	return zap.Inline(zapcore.ObjectMarshalerFunc(func(to zapcore.ObjectEncoder) error {
		to.AddString("key", key.String())
		if o.Provider != "" {
			to.AddString("provider", o.Provider)
		}
		if o.DeliveryID != "" && sealedBy == "" && e.store.Sealer() == nil {
			to.AddString("delivery_id", o.DeliveryID)
		}
		return nil
	}))
}
