package idempotency

import "time"

// Claim is what a request brings before a key's record.
type Claim struct {
	Key Key
	// Token is the secret of this claim; the same token again is a retry of
	// the same claim whose reply was lost.
	Token       string
	ExecutionID string
	// SameRun is the execution ID that the request came in with: another dedup
	// in front has claimed already. Empty for all others.
	SameRun     string
	Fingerprint string
	Hold        bool
	Provider    string
	DeliveryID  string
	// SealedBy is the ID of the encryption key with which DeliveryID is sealed.
	SealedBy string
	// Sealer seals and opens what is kept of the key; nil seals nothing.
	Sealer *Sealer
	// Lease is how long the claim holds without renewal.
	Lease time.Duration
	// Retention is how long the record lives.
	Retention time.Duration
	// Waits says that the request wants to be woken when the run that it finds
	// in flight ends.
	Waits bool
	// Force runs again on purpose where a response is kept, which is replaced
	// only by that of the new run.
	Force bool
	// MaxAttempts is how many runs may reach the upstream; 0 is no limit.
	MaxAttempts int
	// Operator claims on an operator's behalf, to free the key: whatever the
	// record says, but for a run that is alive.
	Operator bool
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
	case c.Operator && (found.State != InFlight || found.Token == c.Token || found.Lapsed(now)):
		return Proceed
	case c.Operator:
		return WaitForRun
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
	case !SameFingerprint(found.Fingerprint, c.Fingerprint):
		return RefuseReused
	case found.State == InFlight:
		return WaitForRun
	default:
		return ReplayKept
	}
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
	case c.Operator:
		next.Attempt, next.FreedAttempts = found.Attempt+1, found.Attempt
		next.Expires = later(next.Expires, found.Expires)
	case found.State == Complete:
		next.Attempt, next.ParentID, next.Replaces = found.Attempt+1, found.ExecutionID, found
	default:
		next.Attempt, next.FreedAttempts = found.Attempt+1, found.FreedAttempts
	}
	if next.Replaces != nil {
		next.Expires = later(next.Expires, next.Replaces.Expires)
	}
	return next
}

// first returns the record of a claim that found none.
func (c Claim) first(now time.Time) *Record {
	return &Record{
		State:       InFlight,
		Token:       c.Token,
		ExecutionID: c.ExecutionID,
		Attempt:     1,
		Fingerprint: c.Fingerprint,
		Hold:        c.Hold,
		Provider:    c.Provider,
		DeliveryID:  c.DeliveryID,
		SealedBy:    c.SealedBy,
		Claimed:     now,
		LeaseUntil:  now.Add(c.Lease),
		Expires:     now.Add(c.Life()),
	}
}

// Life is how long a record lives from a claim or its renewal. A record
// outlives its lease even where the retention is shorter: a crash under hold
// must still be seen.
func (c Claim) Life() time.Duration {
	return max(c.Retention, 2*c.Lease)
}
