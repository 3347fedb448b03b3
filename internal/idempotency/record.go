package idempotency

import "time"

// State is where a key's latest run stands.
type State string

const (
	// InFlight: a run holds the claim, or held it when its lease lapsed.
	InFlight State = "in_flight"
	// Complete: the response is kept and replayed to duplicates.
	Complete State = "complete"
	// Released: the run ended and freed the key; the next request runs.
	Released State = "released"
	// Held: the run's end is unknown, and only an operator or the end of the
	// retention frees the key.
	Held State = "held"
)

// Origin says to operators where a key came from.
type Origin struct {
	// Provider is the catalogue's name of the sender, empty for other keys.
	Provider string `json:"provider,omitempty"`
	// DeliveryID is the ID as the sender wrote it.
	DeliveryID string `json:"delivery_id,omitempty"`
}

// Record is what a store knows of a key. Its times are the store's own, to the
// millisecond; a zero time means that there is none.
type Record struct {
	State State `json:"state"`
	// Token is the secret of whoever claimed last. Only its owner may renew or
	// settle the claim.
	Token string `json:"token"`
	// ExecutionID names the latest run to the upstream and to clients.
	ExecutionID string `json:"execution_id"`
	// Attempt counts the runs that may have reached the upstream, with the one
	// in flight.
	Attempt int `json:"attempt"`
	// FreedAttempts are those that no longer count against a limit, because an
	// operator has freed the key after them.
	FreedAttempts int `json:"freed_attempts,omitempty"`
	// Fingerprint of the request that claimed, in the form of that claim; empty if
	// none was taken.
	Fingerprint string `json:"fingerprint,omitempty"`
	// Hold is the claim's own choice for an unknown end: hold, not release.
	Hold bool `json:"hold,omitempty"`
	Origin
	// SealedBy is the ID of the encryption key with which DeliveryID is sealed;
	// empty where it is readable.
	SealedBy string `json:"sealed_by,omitempty"`
	// Status is that of the run's answer, 0 if it had none.
	Status int `json:"status,omitempty"`
	// ParentID is, for a forced run, the execution ID of the run whose response
	// it is to replace.
	ParentID string `json:"parent_id,omitempty"`
	// Replaces is the complete record that a forced run in flight is to replace.
	// It stands again if that run keeps nothing.
	Replaces *Record `json:"replaces,omitempty"`
	// Claimed and Ended are by the clock of the process that ran.
	Claimed time.Time `json:"claimed,omitzero"`
	Ended   time.Time `json:"ended,omitzero"`
	// LeaseUntil is when a claim in flight lapses; Expires is when the store
	// forgets the record. Both are by the store's clock.
	LeaseUntil time.Time `json:"lease_until,omitzero"`
	Expires    time.Time `json:"expires,omitzero"`
}

// Lapsed reports whether a claim in flight was not renewed in time: its owner
// crashed, hangs, or lost the store.
func (r *Record) Lapsed(now time.Time) bool {
	return r.State == InFlight && !now.Before(r.LeaseUntil)
}

// Effective returns the record that counts at the given time, nil if there is
// none: where a forced run's claim has lapsed it is the record that the run was
// to replace, with the run's own attempt counted.
func (r *Record) Effective(now time.Time) *Record {
	if r == nil || r.Replaces == nil || !r.Lapsed(now) {
		return r
	}
	if !now.Before(r.Replaces.Expires) {
		return nil
	}
	standing := *r.Replaces
	standing.Attempt = r.Attempt // it may have reached the upstream
	return &standing
}

// CountedAs returns the record with the attempts that its owner knows of, if
// those are more: a claim that was written anew, after the store had lost it,
// counts from 1.
func (r *Record) CountedAs(claimed *Record) *Record {
	next := *r
	next.Attempt = max(r.Attempt, claimed.Attempt)
	return &next
}

// Owned says what the owner of a token may do with the record that is found
// under its key (nil: none). With no error the claim is the owner's, and open says
// whether it is still to be settled: it is not where this token has settled it
// already. Errors: [ErrGone] without a record, [ErrFenced] where another owns it.
func (r *Record) Owned(token string) (open bool, err error) {
	switch {
	case r == nil:
		return false, ErrGone
	case r.Token != token:
		return false, ErrFenced
	default:
		return r.State == InFlight, nil
	}
}

// Renewed returns the record with the lease prolonged from the given time on.
func (r *Record) Renewed(t Terms, now time.Time) *Record {
	next := *r
	next.LeaseUntil = now.Add(t.Lease)
	next.Expires = latest(r.Expires, now.Add(t.Life()))
	return &next
}

// Freed returns the record as an operator's act leaves it: the next request runs,
// and the allowed attempts begin anew. Its history stays: execution ID, attempts,
// status and times. The token is a new one, so that the owner of a lapsed claim
// can change nothing any more. Errors: [ErrGone] without a record (nil),
// [ErrInFlight] beside a run that is alive.
func (r *Record) Freed(token string, now time.Time) (*Record, error) {
	found := r.Effective(now)
	if err := found.MayBeTaken(now); err != nil {
		return nil, err
	}
	next := *found
	next.State, next.Token, next.LeaseUntil = Released, token, time.Time{}
	next.FreedAttempts = found.Attempt
	return &next, nil
}

// MayBeTaken says whether an operator may free or forget the record that is found
// (nil: none). Errors as with [Record.Freed].
func (r *Record) MayBeTaken(now time.Time) error {
	switch {
	case r == nil:
		return ErrGone
	case r.State == InFlight && !r.Lapsed(now):
		return ErrInFlight
	default:
		return nil
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Response is the answer of one run, kept beside its record under the run's
// token, so that a run that lost its claim can never damage another's.
type Response struct {
	Status int `json:"status"`
	// Header are the header fields to replay, by canonical name. A field with
	// no values is one that the run removed.
	Header map[string][]string `json:"header,omitempty"`
	// Omitted says that the body was larger than was to be kept.
	Omitted bool `json:"omitted,omitempty"`
	// Failed says that the run ended without a response of the upstream's:
	// Status is that of the error which the first client got.
	Failed bool `json:"failed,omitempty"`
	// SealedBy is the ID of the encryption key with which a whole response is
	// sealed in Body; empty where it is readable.
	SealedBy string `json:"sealed_by,omitempty"`
	Body     []byte `json:"-"`
}

// Settled returns the record as it stands after the settlement at the given
// time. A forced run that keeps nothing leaves the record that it was to
// replace, with its own attempt counted.
func (r *Record) Settled(s Settlement, now time.Time) *Record {
	if r.Replaces != nil && s.State != Complete {
		kept := *r.Replaces
		if s.Counted {
			kept.Attempt = r.Attempt
		}
		return &kept
	}
	next := *r
	next.Replaces = nil
	next.State = s.State
	next.Ended = now
	next.LeaseUntil = time.Time{}
	next.Expires = now.Add(s.Retention)
	next.Status = 0
	if s.Response != nil {
		next.Status = s.Response.Status
	}
	if !s.Counted {
		next.Attempt--
	}
	return &next
}
