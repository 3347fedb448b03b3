package idempotency

import "time"

// Terms are what a claim holds its key under.
type Terms struct {
	// Lease is how long the claim holds without renewal; it is renewed at a third
	// of it.
	Lease time.Duration
	// Retention is how long a record lives from the end of its run.
	Retention time.Duration
	// Hold holds a key whose run's end is unknown, in place of releasing it.
	Hold bool
	// MaxAttempts is how many runs may reach the upstream; 0 is no limit.
	MaxAttempts int
}

// Life is how long a record lives from a claim or its renewal. A record
// outlives its lease even where the retention is shorter: a crash under hold
// must still be seen.
func (t Terms) Life() time.Duration {
	return max(t.Retention, 2*t.Lease)
}

// Claim is what a request brings before a key's record.
type Claim struct {
	Key Key
	// Token is the secret of this claim; the same token again is a retry of
	// the same claim whose reply was lost.
	Token       string
	ExecutionID string
	// SameRun is the execution ID that the request came in with: another dedup
	// in front has claimed already. Empty for all others.
	SameRun string
	// Fingerprints are the request's fingerprint in all forms in which an earlier
	// claim may have written it, the one that this claim writes first. Empty where
	// none is taken.
	Fingerprints []string
	Origin
	// SealedBy is the ID of the encryption key with which DeliveryID is sealed;
	// empty where it is readable.
	SealedBy string
	Terms
	// Waits says that the request wants to be woken when the run that it finds
	// in flight ends.
	Waits bool
	// Force runs again on purpose where a response is kept, which is replaced
	// only by that of the new run.
	Force bool
}

// Verdict is what a claim may do.
type Verdict int

const (
	// Proceed: the key is free; the claim is taken and the request runs.
	Proceed Verdict = iota + 1
	// ReplayKept: the key is complete; its response answers the request.
	ReplayKept
	// WaitForRun: a run is in flight; the request waits for it or is refused.
	WaitForRun
	// RefuseReused: the key was used with another fingerprint.
	RefuseReused
	// RefuseHeld: the latest run's end is unknown and its claim holds the key.
	RefuseHeld
	// PassSameRun: the request belongs to the run in flight.
	PassSameRun
	// RefuseExhausted: as many runs as are allowed may have reached the
	// upstream, and the last one's end is unknown.
	RefuseExhausted
)

var verdictNames = [...]string{"none", "proceed", "replay", "wait", "reused", "held", "same run", "exhausted"}

// String returns the verdict's name for logs and test failures.
func (v Verdict) String() string { return verdictNames[v] }

// Decide is the claim table: what a claim may do with the record that it finds
// (nil: none) at a time of the store's clock. It is the only place that knows;
// a store makes it atomic with the write of [Claim.Record].
func Decide(found *Record, c Claim, now time.Time) Verdict {
	switch {
	case found == nil:
		return Proceed
	case found.State == Released && found.Token == c.Token:
		return WaitForRun // a late copy of a claim that was withdrawn
	case found.State == Released && c.exhausted(found):
		return RefuseExhausted
	case found.State == Released:
		return Proceed
	case found.State == Held:
		return RefuseHeld
	case found.State == InFlight && found.Token == c.Token:
		return Proceed
	case found.State == InFlight && c.SameRun != "" && c.SameRun == found.ExecutionID:
		return PassSameRun
	case found.Lapsed(now) && found.Hold:
		return RefuseHeld
	case found.Lapsed(now) && c.exhausted(found):
		return RefuseExhausted
	case found.Lapsed(now):
		return Proceed
	case found.State == Complete && c.Force:
		return Proceed
	case !c.SameRequest(found):
		return RefuseReused
	case found.State == InFlight:
		return WaitForRun
	default:
		return ReplayKept
	}
}

// SameRequest reports whether the request may be the one that claimed the record:
// their fingerprints are the same, or cannot be compared.
func (c Claim) SameRequest(r *Record) bool {
	return sameFingerprint(r.Fingerprint, c.Fingerprints)
}

func (c Claim) exhausted(found *Record) bool {
	return c.MaxAttempts > 0 && found.Attempt-found.FreedAttempts >= c.MaxAttempts
}

// Record returns the record that the claim writes when it may proceed over the
// one it found (nil: none).
func (c Claim) Record(found *Record, now time.Time) *Record {
	next := c.first(now)
	switch {
	case found == nil:
	case found.State == InFlight && found.Token == c.Token: // the same claim again
		next.Attempt, next.ParentID, next.Replaces = found.Attempt, found.ParentID, found.Replaces
		next.FreedAttempts = found.FreedAttempts
	case found.State == Complete:
		next.Attempt, next.ParentID, next.Replaces = found.Attempt+1, found.ExecutionID, found
	default:
		next.Attempt, next.FreedAttempts = found.Attempt+1, found.FreedAttempts
	}
	if next.Replaces != nil {
		next.Expires = latest(next.Expires, next.Replaces.Expires)
	}
	return next
}

// first returns the record of a claim that found none.
func (c Claim) first(now time.Time) *Record {
	first := &Record{
		State:       InFlight,
		Token:       c.Token,
		ExecutionID: c.ExecutionID,
		Attempt:     1,
		Hold:        c.Hold,
		Origin:      c.Origin,
		SealedBy:    c.SealedBy,
		Claimed:     now,
		LeaseUntil:  now.Add(c.Lease),
		Expires:     now.Add(c.Life()),
	}
	if len(c.Fingerprints) > 0 {
		first.Fingerprint = c.Fingerprints[0]
	}
	return first
}
