package idempotency

import "time"

// Terms are the settings under which a request claims its key.
type Terms struct {
	// Lease is how long the claim lasts without a renewal. The engine renews it after a
	// third of that time.
	Lease time.Duration
	// Retention is how long a record lives from the end of its run.
	Retention time.Duration
	// Hold reports whether the key is held when it is unknown how a run ended. Otherwise it
	// is released.
	Hold bool
	// MaxAttempts is how many runs may reach the upstream; 0 means no limit.
	MaxAttempts int
}

// Life returns how long a record lives after a claim or a renewal. It is at least twice
// the lease, even if the retention is shorter: with Hold, the next request must
// find the record of a run whose process crashed.
func (t Terms) Life() time.Duration {
	return max(t.Retention, 2*t.Lease)
}

// Claim is what a request brings to the store in order to run.
type Claim struct {
	Key Key
	// Token is the secret of this claim. A second claim with the same token is the same
	// claim again, because its reply was lost.
	Token       string
	ExecutionID string
	// PrevToken is the [Record.PrevToken] that this claim has written, for [Store.Renew].
	PrevToken string
	// Within is the execution ID in the request's header: that of a run of another dedup in
	// front, or a forged one. Empty for most requests.
	Within string
	// Fingerprints are the fingerprint of the request, in every form in which an
	// earlier claim may have stored it: plain, and under each encryption key. This
	// claim stores the first one. Empty if no fingerprint is taken.
	Fingerprints []string
	Origin
	// Sealed and SealedBy are as in the [Record].
	SealedBy string
	Sealed   []byte
	Terms
	// Waits asks the store to wake this process when the run in flight ends
	// ([Store.Subscribe]).
	Waits bool
	// Force runs the request again although a response is kept. That response stays until
	// the new run has one to keep.
	Force bool
}

// Verdict is what a claim may do.
type Verdict int

const (
	// Proceed: the request may run, and the store writes the claim.
	Proceed Verdict = iota + 1
	// ReplayKept: the key is complete, and its response answers the request.
	ReplayKept
	// WaitForRun: a run is in flight; the request waits for it or is refused.
	WaitForRun
	// RefuseReused: the key was used with another fingerprint.
	RefuseReused
	// RefuseHeld: it is unknown how the last run ended, and its claim had [Terms.Hold].
	RefuseHeld
	// RefuseLoop: the request is part of the run in flight ([Claim.Within]), and would
	// wait for itself.
	RefuseLoop
	// RefuseExhausted: [Terms.MaxAttempts] runs may have reached the upstream, and it is
	// unknown how the last of them ended.
	RefuseExhausted
	// RefuseUnreadable: the record was sealed with an encryption key that this process
	// does not have, so it is unknown whether this is the same request.
	RefuseUnreadable
)

var verdictNames = [...]string{"none", "proceed", "replay", "wait", "reused", "held", "loop", "exhausted", "unreadable"}

// String returns the verdict's name for logs and test failures.
func (v Verdict) String() string { return verdictNames[v] }

// Decide is the claim table: it returns what a claim may do, given the record that the
// store has for the key (nil: none), at a time by the clock of the store. No other
// code decides this. A store decides and writes [Claim.Record] in one atomic step.
func Decide(found *Record, c Claim, now time.Time) Verdict {
	switch {
	case found == nil:
		return Proceed
	case found.State == Released && found.Token == c.Token:
		return WaitForRun // a delayed copy of a claim that was withdrawn
	case found.State == Released && c.exhausted(found):
		return RefuseExhausted
	case found.State == Released:
		return Proceed
	case found.State == Held:
		return RefuseHeld
	case found.State == InFlight && found.Token == c.Token:
		return Proceed
	case found.State == InFlight && c.Within != "" && c.Within == found.ExecutionID:
		return RefuseLoop
	case found.Lapsed(now) && found.Hold:
		return RefuseHeld
	case found.Lapsed(now) && c.exhausted(found):
		return RefuseExhausted
	case found.Lapsed(now):
		return Proceed
	case found.State == Complete && c.Force && found.Token != c.Token:
		return Proceed // with the same token it is a delayed copy of the claim, whose run has ended
	case c.compare(found) == different:
		return RefuseReused
	case c.compare(found) == unknown:
		return RefuseUnreadable
	case found.State == InFlight:
		return WaitForRun
	default:
		return ReplayKept
	}
}

// SameRequest reports whether this request may be the one that claimed the record: nothing
// distinguishes them.
func (c Claim) SameRequest(r *Record) bool { return c.compare(r) == maybeSame }

func (c Claim) compare(r *Record) sameness {
	if isNoted(r.Fingerprint) {
		return maybeSame
	}
	return compareFingerprints(r.Fingerprint, c.Fingerprints)
}

// Differs reports whether the body of this request differs from that of the request that claimed the
// record. No rule depends on it: it shows operators that different events share a key.
func (c Claim) Differs(r *Record) bool {
	return r != nil && isNoted(r.Fingerprint) && compareFingerprints(r.Fingerprint, c.Fingerprints) == different
}

func (c Claim) exhausted(found *Record) bool {
	return c.MaxAttempts > 0 && found.Attempt-found.ReleasedAttempts >= c.MaxAttempts
}

// Record returns the record that a claim which may proceed writes over the one that it
// found (nil: none).
func (c Claim) Record(found *Record, now time.Time) *Record {
	next := c.newRecord(now)
	switch {
	case found == nil:
	case found.State == InFlight && found.Token == c.Token: // the same claim again
		next.Attempt, next.ParentID, next.Previous = found.Attempt, found.ParentID, found.Previous
		next.ReleasedAttempts, next.PrevToken = found.ReleasedAttempts, found.PrevToken
	case found.State == Complete:
		next.Attempt, next.ParentID, next.Previous = found.Attempt+1, found.ExecutionID, found
	default:
		next.Attempt, next.ReleasedAttempts, next.PrevToken = found.Attempt+1, found.ReleasedAttempts, found.Token
	}
	if next.Previous != nil {
		next.Expires = latest(next.Expires, next.Previous.Expires)
	}
	return next
}

// newRecord returns the record that the claim writes if there was none.
func (c Claim) newRecord(now time.Time) *Record {
	first := &Record{
		State:       InFlight,
		Token:       c.Token,
		ExecutionID: c.ExecutionID,
		Attempt:     1,
		Hold:        c.Hold,
		Origin:      c.Origin,
		SealedBy:    c.SealedBy,
		Sealed:      c.Sealed,
		Claimed:     now,
		LeaseUntil:  now.Add(c.Lease),
		Expires:     now.Add(c.Life()),
	}
	if len(c.Fingerprints) > 0 {
		first.Fingerprint = c.Fingerprints[0]
	}
	return first
}
