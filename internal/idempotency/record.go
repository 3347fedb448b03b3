package idempotency

import (
	"strings"
	"time"
)

// State is the state of a key's last run.
type State string

const (
	// InFlight: a run owns the claim. Its lease may have lapsed ([Record.Lapsed]).
	InFlight State = "in_flight"
	// Complete: a response is kept and replayed to duplicates: that of the run, or an operator's.
	Complete State = "complete"
	// Released: the run ended without a response to keep, or an operator released the
	// key. The next request runs.
	Released State = "released"
	// Held: it is unknown how the run ended. No request runs until an operator releases or
	// completes the key, or the retention ends.
	Held State = "held"
)

// Origin tells operators which request claimed a key.
type Origin struct {
	_ struct{} `cbor:",toarray"` // the stored form: codec.go
	// Provider is the prefix of the key's source: the name of the sender in the catalogue, or a
	// configured prefix. Empty for other keys.
	Provider string
	// DeliveryID is the ID as the sender wrote it. If a key has several parts, it is the first,
	// and Parts are the others that were present.
	DeliveryID string
	Parts      []string
	Method     string
	Host       string
	// Path is the path of the request without its query, cut to [MaxPath] bytes.
	Path string
	// Scope are the members of the body that a scope of the configuration names, each as pointer=value, cut
	// to [MaxScope] bytes. They tell the keys of one ID apart.
	Scope []string
	// ScopeHash is the hash of the scope of a call, which a client that asks for the rest of its answer has to have.
	ScopeHash *Key
}

// Joined returns delivery ID and parts, joined by colons, as operators may write them.
func (o Origin) Joined() string {
	return strings.Join(append([]string{o.DeliveryID}, o.Parts...), ":")
}

// MaxPath, MaxScope, MaxReason and MaxLocation are the maximum sizes of [Origin.Path], of one text of [Origin.Scope], [Record.Reason] and
// [Record.Location], in bytes. LongLocation stands for a longer Location: RFC 9110, section 4.1, recommends support for 8,000 bytes.
const (
	MaxPath     = 255
	MaxScope    = 255
	MaxReason   = 255
	MaxLocation = 8000
)

// CutReason returns a text as a [Record.Reason].
func CutReason(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), MaxReason)], "")
}

// Record is what a store knows about a key. The zero time means no time.
type Record struct {
	_     struct{} `cbor:",toarray"` // the stored form: codec.go
	State State
	// Token is the secret of the last claim. Only a process that knows it may renew or settle
	// the claim.
	Token string
	// ExecutionID names the last run to the upstream and to clients.
	ExecutionID string
	// Attempt counts the runs that may have reached the upstream, including the one
	// in flight.
	Attempt int
	// ReleasedAttempts is how many of these runs were before an operator released the key.
	// They do not count against [Terms.MaxAttempts].
	ReleasedAttempts int
	// Fingerprint is the first of [Claim.Fingerprints]; empty if none was taken.
	Fingerprint string
	// Hold is [Terms.Hold] of the claim. It applies even if the setting has changed since.
	Hold   bool
	Origin `cbor:"Origin"`
	// Sealed is the encrypted Origin, SealedBy the ID of the encryption key. Both are empty if
	// the Origin is readable.
	SealedBy string
	Sealed   []byte
	// Status is the HTTP status of the run's response, 0 if there was none.
	Status int
	// LargeBody is the stored length of the response's body if that is large, else 0. A claim does
	// not return a large body: the process reads it with [Store.Response] once it has memory
	// for it.
	LargeBody int
	// Location is the Location of a response whose body is large, else "". A duplicate that gets no
	// body of the response needs nothing else of it.
	Location string
	// Reason is why the last run ended without a response to keep, or which operator has released or
	// completed the key since. It is cut to [MaxReason] bytes, and empty for neither.
	Reason string
	// ParentID is set for a forced run only: the execution ID of the run whose response it is to
	// replace.
	ParentID string
	// Previous is set while a forced run is in flight: the complete record that the run is to
	// replace. If the run keeps no response, this record counts again.
	Previous *Record `cbor:"-"`
	// PrevToken is set while a run is in flight whose claim replaced a released or lapsed record:
	// the token of that record. If the store has that record again, it has lost this one
	// ([Record.Owned]).
	PrevToken string
	// Claimed and Ended are by the clock of the process that ran, to the millisecond.
	// They are for operators; no rule reads them.
	Claimed time.Time `cbor:"-"`
	Ended   time.Time `cbor:"-"`
	// LeaseUntil is when the lease of a claim in flight lapses; Expires is when the
	// store forgets the record. Both are by the clock of the store, to the
	// millisecond.
	LeaseUntil time.Time `cbor:"-"`
	Expires    time.Time `cbor:"-"`
}

// maxClaimedBody is the size up to which the reply to a claim includes the body, in bytes.
const maxClaimedBody = 16 << 10

// Lapsed reports whether the lease of a claim in flight is over. Its owner has crashed, hangs, or
// cannot reach the store.
func (r *Record) Lapsed(now time.Time) bool {
	return r.State == InFlight && !now.Before(r.LeaseUntil)
}

// Effective returns the record that counts at the given time, nil for none. It is the record
// itself, with one exception: if the claim of a forced run has lapsed, the record that the run
// was to replace counts again. Its attempts include that run, which may have reached the
// upstream.
func (r *Record) Effective(now time.Time) *Record {
	if r == nil || r.Previous == nil || !r.Lapsed(now) {
		return r
	}
	if !now.Before(r.Previous.Expires) {
		return nil
	}
	kept := *r.Previous
	kept.Attempt = r.Attempt
	return &kept
}

// WithAttempts returns the record with the attempts of the owner's record, if those are more. They
// are after the store has lost the claim: when the owner writes it again, the store counts
// from 1.
func (r *Record) WithAttempts(claimed *Record) *Record {
	if r.Attempt >= claimed.Attempt {
		return r
	}
	next := *r
	next.Attempt = claimed.Attempt
	return &next
}

// Owned reports whether the claim with this token may be renewed and settled, given the record
// that the store has for the key (nil: none). follows is the claim's [Record.PrevToken]. open is
// false without an error if the claim is settled already. The settlement of a forced run may have
// left the record that the run was to replace; left is the token of that record
// ([Record.LeftToken]).
//
// Errors: [ErrGone] if the store has lost the claim. Then it has no record, or again the record
// that the claim replaced, for example because a server has restarted with older data. No run
// has the token of that record, so no request has claimed the key since. [ErrFenced] if the
// record has another token.
func (r *Record) Owned(token, follows, left string) (open bool, err error) {
	switch {
	case r == nil:
		return false, ErrGone
	case r.Token == token:
		return r.State == InFlight, nil
	case left != "" && r.Token == left:
		return false, nil
	case follows != "" && r.Token == follows:
		return false, ErrGone
	default:
		return false, ErrFenced
	}
}

// LeftToken returns the token of the record that counts again after this settlement of a forced run,
// "" if none does.
func (r *Record) LeftToken(s Settlement) string {
	if r.Previous == nil || s.State == Complete {
		return ""
	}
	return r.Previous.Token
}

// Renewed returns the record with a lease that starts at the given time.
func (r *Record) Renewed(t Terms, now time.Time) *Record {
	next := *r
	next.LeaseUntil = now.Add(t.Lease)
	next.Expires = latest(r.Expires, now.Add(t.Life()))
	return &next
}

// Changed returns the record after an operator's change. Execution ID, attempts, fingerprint and times
// stay. A released key runs with its next request, and [Terms.MaxAttempts] counts from 1 again. The
// response of a completed key answers its duplicates, for minCompleted at least. The token is a new
// one, so that a late owner can change nothing.
//
// Errors: [ErrGone] if there is no record (nil), [ErrInFlight] if a run is in flight and its lease has
// not lapsed, a [ChangedError] if the record does not meet the precondition, [ErrComplete] for the
// completion of a complete record.
func (r *Record) Changed(c Change, now time.Time) (*Record, error) {
	found := r.Effective(now)
	if err := found.CheckChange(c.Precondition, now); err != nil {
		return nil, err
	}
	next := *found
	next.State, next.Token, next.PrevToken, next.LeaseUntil, next.Reason = c.State, c.Token, "", time.Time{}, c.Reason
	switch {
	case c.State == Released:
		next.ReleasedAttempts = found.Attempt
	case found.State == Complete:
		return nil, ErrComplete
	default:
		next.keep(c.Response)
		next.Expires = latest(found.Expires, now.Add(minCompleted))
	}
	return &next, nil
}

// minCompleted is how long the response of a completed key is kept at least: senders repeat deliveries
// for hours.
const minCompleted = 24 * time.Hour

// keep sets what the record has of its run's response.
func (r *Record) keep(response *Response) {
	r.Status, r.LargeBody, r.Location = 0, 0, ""
	if response == nil {
		return
	}
	r.Status = response.Status
	if response.IsLarge() {
		r.LargeBody, r.Location = len(response.Body), response.Location()
	}
}

// CheckChange returns an error if an operator may not change or forget the effective record (nil:
// none). Its errors are those of the release of a key, by [Record.Changed].
func (r *Record) CheckChange(pre Precondition, now time.Time) error {
	switch {
	case r == nil:
		return ErrGone
	case r.State == InFlight && !r.Lapsed(now):
		return ErrInFlight
	default:
		return pre.check(PreconditionOf(r, now))
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Response is the response of one run. Stores keep it under the key and the token of the run, so
// that a run that has lost its claim cannot overwrite the response of another.
type Response struct {
	_      struct{} `cbor:",toarray"` // the stored form: codec.go
	Status int
	// Header are the header fields to replay, by canonical name. A field without values was set
	// before the run, and the run removed it.
	Header map[string][]string
	// Omitted reports whether the body is not kept: it was larger than the limit, or than the
	// store has room for.
	Omitted bool
	// Failed reports whether the upstream sent no response. Status is then that of the error that
	// the client of the run got.
	Failed bool
	// SealedBy is the ID of the encryption key if Body is a whole encrypted response, else
	// empty.
	SealedBy string
	// Body and its spare capacity must not be written to: a store, local copies and several
	// requests may share the bytes.
	Body []byte `cbor:"-"`
}

// IsLarge reports whether the body is so large that a claim does not return it.
func (r *Response) IsLarge() bool { return len(r.Body) > maxClaimedBody }

// LongLocation is the [Record.Location] of a response whose own is too long for a record.
const LongLocation = "\x01"

// Location returns the first Location of the response as a record has it, "" if there is none.
func (r *Response) Location() string {
	switch lines := r.Header["Location"]; {
	case len(lines) == 0:
		return ""
	case len(lines[0]) > MaxLocation:
		return LongLocation
	default:
		return lines[0]
	}
}

// Reduced returns a smaller form of a response that is too large for the store ([ErrTooLarge]): status
// and header, then the status alone, and then nil. It may be called on a nil response.
func (r *Response) Reduced() *Response {
	switch {
	case r == nil || r.Omitted && len(r.Header) == 0:
		return nil
	case r.Omitted:
		return &Response{Status: r.Status, Omitted: true, Failed: r.Failed}
	default:
		return &Response{Status: r.Status, Header: r.Header, Omitted: true, Failed: r.Failed}
	}
}

// Settled returns the record after the settlement, at the given time. If a forced run keeps no
// response, that is the record that the run was to replace, with the attempt of the run
// counted.
func (r *Record) Settled(s Settlement, now time.Time) *Record {
	settled := r.settled(&s, now) // on the heap only where the caller keeps it
	return &settled
}

func (r *Record) settled(s *Settlement, now time.Time) Record {
	if r.Previous != nil && s.State != Complete {
		kept := *r.Previous
		if s.Counted {
			kept.Attempt = r.Attempt
		}
		return kept
	}
	next := *r
	next.Previous, next.PrevToken = nil, ""
	next.State = s.State
	next.Ended = now.Add(-s.Ago)
	next.LeaseUntil = time.Time{}
	next.Expires = now.Add(s.Retention)
	next.Reason = s.Reason
	next.keep(s.Response)
	if !s.Counted {
		next.Attempt--
	}
	return next
}
