package engine

import (
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Decision is what a request does: [*Run], [Replay], [Refusal] or [SameRun].
type Decision interface{ decision() }

// Replay answers a request with the response of another's run.
type Replay struct {
	Record   *idempotency.Record
	Response *idempotency.Response
	// Waited says that the run was in flight when the request came.
	Waited bool
}

// SameRun lets a request pass: it belongs to the run in flight under its key,
// which another dedup in front has claimed.
type SameRun struct{ Record *idempotency.Record }

// Refusal answers a request with an error of ours.
type Refusal struct {
	Reason Reason
	// ExecutionID is that of the run in the way, empty if none is known.
	ExecutionID string
	// Err says more, where the store is the reason.
	Err error
}

func (*Run) decision()    {}
func (Replay) decision()  {}
func (SameRun) decision() {}
func (Refusal) decision() {}

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

// decideInFlight decides while a run is in flight; nil means to wait for it. The
// zero time makes no lease look lapsed: only the store knows whether one has.
func decideInFlight(run *idempotency.Record, c idempotency.Claim) Decision {
	switch idempotency.Decide(run, c, time.Time{}) {
	case idempotency.RefuseReused:
		return Refusal{Reason: ReasonReused, ExecutionID: run.ExecutionID}
	case idempotency.PassSameRun:
		return SameRun{Record: run}
	}
	if !c.Waits {
		return Refusal{Reason: ReasonInFlight, ExecutionID: run.ExecutionID}
	}
	return nil
}

// decideEnded decides by what a flight ended with; nil means that the store has to
// be asked.
func (v view) decideEnded(waited bool, c idempotency.Claim) Decision {
	found := v.found
	switch {
	case v.err != nil:
		return refusalFor(v.err)
	case waited && found.Response != nil && found.Record.Token == v.run.Token && c.SameRequest(v.run):
		return Replay{Record: found.Record, Response: found.Response, Waited: true}
	}
	switch idempotency.Decide(found.Record, c, found.Now) {
	case idempotency.ReplayKept:
		// The store sends the response only to a claim that may replay it: the
		// flight has none if its first request was refused.
		if found.Response != nil || v.run != nil {
			return Replay{Record: found.Record, Response: found.Response, Waited: waited}
		}
	case idempotency.RefuseReused:
		return Refusal{Reason: ReasonReused, ExecutionID: found.Record.ExecutionID}
	case idempotency.RefuseHeld:
		return Refusal{Reason: ReasonHeld, ExecutionID: found.Record.ExecutionID}
	case idempotency.RefuseExhausted:
		return Refusal{Reason: ReasonExhausted, ExecutionID: found.Record.ExecutionID}
	case idempotency.PassSameRun:
		return SameRun{Record: found.Record}
	case idempotency.WaitForRun:
		if !c.Waits {
			return Refusal{Reason: ReasonInFlight, ExecutionID: found.Record.ExecutionID}
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
