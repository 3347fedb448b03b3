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
	// Response is nil if it is large and not in memory. The caller reserves
	// [idempotency.Record.LargeBody] bytes, and reads it with [Engine.KeptResponse].
	Response *idempotency.Response
	// Waited reports whether the run was still in flight when the request arrived.
	Waited bool
	// Differs is [idempotency.Claim.Differs].
	Differs bool
}

// Follow answers a request with the response that its run is streaming.
type Follow struct {
	Record *idempotency.Record
	// Live is the argument of [Run.Stream].
	Live any
	// Differs is [idempotency.Claim.Differs].
	Differs bool
}

// Refusal answers a request with an error of caddy-dedup.
type Refusal struct {
	Reason Reason
	// Record is that of the run that is the reason, nil if none is known.
	Record *idempotency.Record
	// Differs is [idempotency.Claim.Differs].
	Differs bool
	// Err is the error, if the store or a limit is the reason.
	Err error
}

func (*Run) decision()    {}
func (Replay) decision()  {}
func (Follow) decision()  {}
func (Refusal) decision() {}

// DiffersFrom returns the record of the run whose request had another body than this duplicate, nil if
// the bodies do not differ.
func DiffersFrom(d Decision) *idempotency.Record {
	record, differs := (*idempotency.Record)(nil), false
	switch d := d.(type) {
	case Replay:
		record, differs = d.Record, d.Differs
	case Follow:
		record, differs = d.Record, d.Differs
	case Refusal:
		record, differs = d.Record, d.Differs
	}
	if !differs {
		return nil
	}
	return record
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
	ReasonLoop        Reason = "loop_detected"
)

// decideInFlight returns what a request does while a run is in flight. Nil means that it
// must wait. It calls Decide with the zero time, at which no lease has lapsed: only the store
// knows whether this one has.
func decideInFlight(run *idempotency.Record, live any, c idempotency.Claim) Decision {
	refused := refuse(idempotency.Decide(run, c, time.Time{}), run, c)
	if refused == nil && live != nil {
		return Follow{Record: run, Live: live, Differs: c.Differs(run)}
	}
	return refused
}

// decideEnded returns what a request does when the run has ended. Nil means that it must ask the
// store.
func (s situation) decideEnded(m *member, c idempotency.Claim) Decision {
	found, waited := s.found, s.record != nil && m.joined < unstored
	hasResponse := found.Response != nil || found.Record != nil && found.Record.LargeBody > 0
	verdict := idempotency.Decide(found.Record, c, found.Now)
	switch {
	case s.err != nil && verdict == idempotency.Proceed: // includes no record
		return refusalFor(s.err)
	case s.joinedBeforeEnd(m) && hasResponse && c.SameRequest(s.record):
		return Replay{Record: found.Record, Response: found.Response, Waited: true, Differs: c.Differs(found.Record)}
	case found.Response != nil && found.Record.State == idempotency.InFlight:
		// This record was read before the run ended. For requests that did not wait, the
		// present record of the store decides.
		return nil
	}
	switch verdict {
	case idempotency.ReplayKept:
		// The store returns a response only to a claim that may replay it. If it refused the
		// first request, the flight has no response for the others.
		if hasResponse {
			return Replay{Record: found.Record, Response: found.Response, Waited: waited, Differs: c.Differs(found.Record)}
		}
	case idempotency.RefuseUnreadable:
		// The store decides if it can: the encryption keys may have changed since this
		// request took its fingerprints.
		if s.state == closed && s.err == nil {
			return nil
		}
	}
	return refuse(verdict, found.Record, c)
}

// joinedBeforeEnd reports whether a request has certainly joined its flight before the run ended.
// Only then does it get a response that released the key: a retry after such a response
// has to run. A run on another replica was certainly in flight if a poll found it so that
// started after the request had joined.
func (s situation) joinedBeforeEnd(m *member) bool {
	return s.record != nil && m.joined < storing && (!s.watched() || s.lastPollInFlight > m.pollSeq)
}

// newRefusal returns a refusal because of the run that wrote this record.
func newRefusal(reason Reason, record *idempotency.Record, c idempotency.Claim) Refusal {
	return Refusal{Reason: reason, Record: record, Differs: c.Differs(record)}
}

var reasons = map[idempotency.Verdict]Reason{
	idempotency.WaitForRun:       ReasonInFlight,
	idempotency.RefuseReused:     ReasonReused,
	idempotency.RefuseHeld:       ReasonHeld,
	idempotency.RefuseLoop:       ReasonLoop,
	idempotency.RefuseExhausted:  ReasonExhausted,
	idempotency.RefuseUnreadable: ReasonUnreadable,
}

// refuse returns the refusal for a verdict on this record; nil if it refuses nothing, or the request may
// wait.
func refuse(verdict idempotency.Verdict, record *idempotency.Record, c idempotency.Claim) Decision {
	reason, refuses := reasons[verdict]
	if !refuses || reason == ReasonInFlight && c.Waits {
		return nil
	}
	refusal := newRefusal(reason, record, c)
	if reason == ReasonUnreadable { // the fingerprints do not include one under the encryption key of the record
		refusal.Err = &idempotency.UnreadableError{
			Where: "record " + c.Key.String(), Err: errors.New("it is encrypted with a key that is not configured"),
		}
	}
	return refusal
}

// Run returns execution ID and attempt of the run that is the reason, zero if none is known.
func (r Refusal) Run() (executionID string, attempt int) {
	if r.Record == nil {
		return "", 0
	}
	return r.Record.ExecutionID, r.Record.Attempt
}

// Complete returns the record if its key is complete, else nil.
func (r Refusal) Complete() *idempotency.Record {
	if r.Record != nil && r.Record.State == idempotency.Complete {
		return r.Record
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
