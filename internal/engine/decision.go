package engine

import (
	"context"
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Decision is what a request does: [*Run], [Replay], [Refusal] or [SameRun].
type Decision interface {
	decision()
	// About returns the key that the decision is about: under encryption, while
	// keys are rotated, it may be another than the request's own.
	About() idempotency.Key
}

// Replay answers a request with the response of another's run.
type Replay struct {
	Record   *idempotency.Record
	Response *idempotency.Response
	// Waited says that the run was in flight when the request came.
	Waited bool
	Key    idempotency.Key
}

// SameRun lets a request pass: it belongs to the run in flight under its key,
// which another dedup in front has claimed.
type SameRun struct {
	Record *idempotency.Record
	Key    idempotency.Key
}

// Refusal answers a request with an error of ours.
type Refusal struct {
	Reason Reason
	// ExecutionID is that of the run in the way, empty if none is known.
	ExecutionID string
	// Err says more, where the store is the reason.
	Err error
	Key idempotency.Key
}

func (*Run) decision()    {}
func (Replay) decision()  {}
func (SameRun) decision() {}
func (Refusal) decision() {}

// About implements [Decision].
func (d Replay) About() idempotency.Key { return d.Key }

// About implements [Decision].
func (d SameRun) About() idempotency.Key { return d.Key }

// About implements [Decision].
func (d Refusal) About() idempotency.Key { return d.Key }

// about names the key in a decision.
func about(d Decision, key idempotency.Key) Decision {
	switch d := d.(type) {
	case Replay:
		d.Key = key
		return d
	case SameRun:
		d.Key = key
		return d
	case Refusal:
		d.Key = key
		return d
	default:
		return d
	}
}

// Reason is why a request is refused. It is the `code` of the refusal's problem
// details.
type Reason string

// The reasons for which the engine refuses.
const (
	ReasonReused      Reason = "idempotency_key_reused"
	ReasonInFlight    Reason = "request_in_flight"
	ReasonHeld        Reason = "outcome_unknown"
	ReasonUnavailable Reason = "store_unavailable"
	ReasonUnreadable  Reason = "record_unreadable"
	ReasonOverloaded  Reason = "overloaded"
	ReasonExhausted   Reason = "attempts_exhausted"
)

// follow says what a request does about the run that its flight is, or about
// the record that the flight found. No decision and no error means that the key
// may be free by now: ask again.
func follow(ctx context.Context, f *flight, late bool, req Request, limit <-chan time.Time) (Decision, error) {
	select {
	case <-f.known:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	// Who came before the end waited, even where the end is there already: a
	// goroutine may be slow to get here.
	waited := f.run != nil && !late
	if waited && !f.hasEnded() {
		if d := besideRun(f.run, req); d != nil {
			return d, nil
		}
		select {
		case <-f.ended:
		case <-limit:
			return Refusal{Reason: ReasonInFlight, ExecutionID: f.run.ExecutionID}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return afterwards(f, req, waited), nil
}

// untilGone waits until a flight that lingers is no longer known. It decides if
// that takes too long.
func untilGone(ctx context.Context, f *flight, limit <-chan time.Time) (Decision, error) {
	select {
	case <-f.gone:
		return nil, nil
	case <-limit:
		return Refusal{Reason: ReasonInFlight, ExecutionID: f.outcome.record.ExecutionID}, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// besideRun decides while the run is in flight; nil means to wait for it. The
// zero time makes no lease look lapsed: whether one has lapsed is for the store
// to say.
func besideRun(run *idempotency.Record, req Request) Decision {
	switch idempotency.Decide(run, req.claim("", ""), time.Time{}) {
	case idempotency.RefuseReused:
		return Refusal{Reason: ReasonReused, ExecutionID: run.ExecutionID}
	case idempotency.PassSameRun:
		return SameRun{Record: run}
	}
	if req.Policy.Wait <= 0 {
		return Refusal{Reason: ReasonInFlight, ExecutionID: run.ExecutionID}
	}
	return nil
}

// afterwards decides by what the flight ended with; nil means to ask again.
func afterwards(f *flight, req Request, waited bool) Decision {
	o := f.outcome
	if o.err != nil {
		return refusalFor(o.err)
	}
	if waited && o.response != nil && o.record.Token == f.run.Token && idempotency.SameFingerprint(f.run.Fingerprint, req.Fingerprint) {
		return Replay{Record: o.record, Response: o.response, Waited: true}
	}
	switch idempotency.Decide(o.record, req.claim("", ""), o.now) {
	case idempotency.ReplayKept:
		// The store sends the response only to a claim that may replay it: the
		// flight has none if its first request was refused.
		if o.response != nil || f.run != nil {
			return Replay{Record: o.record, Response: o.response, Waited: waited}
		}
	case idempotency.RefuseReused:
		return Refusal{Reason: ReasonReused, ExecutionID: o.record.ExecutionID}
	case idempotency.RefuseHeld:
		return Refusal{Reason: ReasonHeld, ExecutionID: o.record.ExecutionID}
	case idempotency.RefuseExhausted:
		return Refusal{Reason: ReasonExhausted, ExecutionID: o.record.ExecutionID}
	case idempotency.PassSameRun:
		return SameRun{Record: o.record}
	case idempotency.WaitForRun:
		if req.Policy.Wait <= 0 {
			return Refusal{Reason: ReasonInFlight, ExecutionID: o.record.ExecutionID}
		}
	}
	return nil
}

func refusalFor(err error) Refusal {
	var unreadable *idempotency.UnreadableError
	switch {
	case errors.As(err, &unreadable):
		return Refusal{Reason: ReasonUnreadable, Err: err}
	case errors.Is(err, idempotency.ErrFull), errors.Is(err, ErrOverloaded):
		return Refusal{Reason: ReasonOverloaded, Err: err}
	default:
		return Refusal{Reason: ReasonUnavailable, Err: err}
	}
}
