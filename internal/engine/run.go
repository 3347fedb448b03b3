package engine

import (
	"context"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Run is a request that has claimed its key. The caller of [Engine.Claim] sends it to the upstream,
// and then calls Settle, exactly once.
type Run struct {
	engine  *Engine
	flight  *flight
	claim   idempotency.Claim
	label   string
	policy  idempotency.Policy
	timeout time.Duration
	// observed is [Request.Observed], and inner [Request.Inner].
	observed, inner bool
	record          *idempotency.Record
	lease           lease
	// lapsed is what Lapsed returns.
	lapsed string
	// wasLost reports whether the store has ever lost the claim, and with it the response that
	// a forced run is to replace. The claim may have been written again since.
	wasLost atomic.Bool

	// The caller of Settle sets these, once the run has ended. endedAt is when: the retention
	// counts from then, to the second.
	end       idempotency.End
	endedAt   time.Time
	onStored  func() // nil once it was called
	logFields []zap.Field
	// bodies ends when the body is dropped.
	bodies context.Context
}

// newRun returns the run of a claim. The caller starts the renewal of its lease.
func (e *Engine) newRun(f *flight, c idempotency.Claim, req Request, got idempotency.Claimed) *Run {
	c.PrevToken = got.Record.PrevToken
	r := &Run{
		engine: e, flight: f, claim: c, label: req.Label, policy: req.Policy, timeout: req.Timeout, observed: req.Observed, inner: req.Inner, record: got.Record,
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

// Record returns the record that the claim has written. The caller must not change it.
func (r *Run) Record() *idempotency.Record { return r.record }

// ExecutionID names the run to the upstream and to clients.
func (r *Run) ExecutionID() string { return r.record.ExecutionID }

// ParentID names the run that a forced run repeats; "" for other runs.
func (r *Run) ParentID() string { return r.record.ParentID }

// Lapsed names the run whose claim this one has taken over, because its lease was not
// renewed; "" for none.
func (r *Run) Lapsed() string { return r.lapsed }

// Attempt is the number of this run of the key, from 1. It does not count runs that certainly
// did not reach the upstream.
func (r *Run) Attempt() int { return r.record.Attempt }

// replaces returns the record that a forced run is to replace. It returns nil for other runs, and
// if the store has lost the claim: then it has lost that record, too.
func (r *Run) replaces() *idempotency.Record {
	if r.wasLost.Load() {
		return nil
	}
	return r.record.Previous
}

// current returns the record of the run as the store has it, or last had it. The caller must not
// change it.
func (r *Run) current() *idempotency.Record {
	replaces := r.replaces()
	if replaces == r.record.Previous {
		return r.record
	}
	record := *r.record
	record.Previous = replaces
	return &record
}

// Stream sets the response that the run is streaming: duplicates in this process get a [Follow]
// with live. With nil they get none.
func (r *Run) Stream(live any) { r.flight.stream(live) }

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

// keyFields returns a key, its delivery and the request's route as fields of a log line. What the
// store encrypts is not logged, except the provider.
func (e *Engine) keyFields(key idempotency.Key, o idempotency.Origin, sealedBy string) zap.Field {
	return zap.Inline(zapcore.ObjectMarshalerFunc(func(to zapcore.ObjectEncoder) error {
		to.AddString("key", key.String())
		addText(to, "provider", o.Provider)
		if sealedBy != "" || e.store.Sealer() != nil {
			return nil
		}
		addText(to, "delivery_id", o.DeliveryID)
		if len(o.Parts) > 0 {
			zap.Strings("parts", o.Parts).AddTo(to)
		}
		addText(to, "method", o.Method)
		addText(to, "host", o.Host)
		addText(to, "path", o.Path)
		return nil
	}))
}

// addText adds a field of a log line, unless it is empty.
func addText(to zapcore.ObjectEncoder, name, text string) {
	if text != "" {
		to.AddString(name, text)
	}
}
