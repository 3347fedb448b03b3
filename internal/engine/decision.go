package engine

import (
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Decision is what a request does: [*Run], [Replay], [Follow] or [Refusal].
type Decision interface{ decision() }

// Replay answers a request with the response of the run of another request.
type Replay struct {
	Record *idempotency.Record
	// Response is nil if it is large and not in memory. The caller makes room for
	// [idempotency.Record.LargeBody] bytes, and reads it with [Engine.KeptResponse].
	Response *idempotency.Response
	// Waited reports whether the run was still in flight when the request came.
	Waited bool
}

// Follow answers a request with the response that its run is giving at this moment.
type Follow struct {
	Record *idempotency.Record
	// Live is what the run was given with [Run.Stream].
	Live any
}

// Refusal answers a request with an error of this product.
type Refusal struct {
	Reason Reason
	// ExecutionID names the run because of which the request is refused; empty if
	// none is known.
	ExecutionID string
	// Attempt is the number of that run of the key, 0 if none is known.
	Attempt int
	// Status is that of the answer of that run if the key is complete, else 0.
	Status int
	// Err is the error, if the store or a limit is the reason.
	Err error
}

func (*Run) decision()    {}
func (Replay) decision()  {}
func (Follow) decision()  {}
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
	ReasonLoop        Reason = "loop_detected"
)

// decideInFlight returns what a request does while a run is in flight. Nil means that it
// must wait. Decide gets the zero time, at which no lease has lapsed: only the store
// knows whether this one has.
func decideInFlight(run *idempotency.Record, live any, c idempotency.Claim) Decision {
	switch idempotency.Decide(run, c, time.Time{}) {
	case idempotency.RefuseReused:
		return newRefusal(ReasonReused, run)
	case idempotency.RefuseUnreadable:
		return refuseUnreadable(c.Key, run)
	case idempotency.RefuseLoop:
		return newRefusal(ReasonLoop, run)
	}
	switch {
	case !c.Waits:
		return newRefusal(ReasonInFlight, run)
	case live != nil:
		return Follow{Record: run, Live: live}
	default:
		return nil
	}
}

// decideEnded returns what a request does when the flight has ended. Nil means that the
// request must ask the store.
func (v view) decideEnded(m *member, c idempotency.Claim) Decision {
	found, waited := v.found, v.record != nil && m.part != joinedAfterEnd
	hasResponse := found.Response != nil || found.Record != nil && found.Record.LargeBody > 0
	verdict := idempotency.Decide(found.Record, c, found.Now)
	switch {
	case v.err != nil && verdict == idempotency.Proceed: // also when there is no record
		return refusalFor(v.err)
	case v.joinedBeforeEnd(m) && hasResponse && found.Record.Token == v.record.Token && c.SameRequest(v.record):
		return Replay{Record: found.Record, Response: found.Response, Waited: true}
	case found.Response != nil && found.Record.State == idempotency.InFlight:
		// The record is that of the run from when it was in flight. The store has
		// another one by now, which decides what the others do.
		return nil
	}
	switch verdict {
	case idempotency.ReplayKept:
		// The store sends a response only to a claim that may replay it. If the first
		// request was refused, the flight has no response for the others.
		if hasResponse || v.record != nil {
			return Replay{Record: found.Record, Response: found.Response, Waited: waited}
		}
	case idempotency.RefuseReused:
		return newRefusal(ReasonReused, found.Record)
	case idempotency.RefuseUnreadable:
		// If the store can be asked, it has to decide: the encryption keys may have changed
		// since the fingerprints of this request were made.
		if v.state != closed || v.err != nil {
			return refuseUnreadable(c.Key, found.Record)
		}
	case idempotency.RefuseHeld:
		return newRefusal(ReasonHeld, found.Record)
	case idempotency.RefuseExhausted:
		return newRefusal(ReasonExhausted, found.Record)
	case idempotency.RefuseLoop:
		return newRefusal(ReasonLoop, found.Record)
	case idempotency.WaitForRun:
		if !c.Waits {
			return newRefusal(ReasonInFlight, found.Record)
		}
	}
	return nil
}

// joinedBeforeEnd reports whether a request is known to have come before the run of its
// flight had ended. Only then does it get an answer that has released the key: a retry
// that follows such an answer has to run. Of a run on another replica this is known
// where a look at the store that began after the request had come saw it in flight.
func (v view) joinedBeforeEnd(m *member) bool {
	return v.record != nil && m.part != joinedAfterEnd && m.part != joinedWhileStoring && (!v.watched || v.lastPollInFlight > m.pollSeq)
}

// newRefusal is a refusal because of the run that wrote this record.
func newRefusal(reason Reason, record *idempotency.Record) Refusal {
	refusal := Refusal{Reason: reason, ExecutionID: record.ExecutionID, Attempt: record.Attempt}
	if record.State == idempotency.Complete {
		refusal.Status = record.Status
	}
	return refusal
}

// refuseUnreadable refuses a request beside a record whose encryption key is not among those of
// the request's fingerprints.
func refuseUnreadable(key idempotency.Key, record *idempotency.Record) Refusal {
	refusal := newRefusal(ReasonUnreadable, record)
	refusal.Err = &idempotency.UnreadableError{
		Where: "record " + key.String(), Err: errors.New("it is encrypted with a key that is not configured"),
	}
	return refusal
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
