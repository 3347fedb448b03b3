package idempotency_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// claimCase is one situation that the claim table must decide, in words.
type claimCase struct {
	record      string // none, in flight, complete, released, held
	lease       string // live, at its end, over; "-" for a record not in flight
	unknown     string // release, hold: what the record's claim chose; "-" without a record
	fingerprint string // one of those below
	token       string // same, other
	within      string // none, same, other: with which execution ID the request came in
	choice      string // release, hold: what the new claim chose
	force       string // yes, no: the new claim runs again on purpose
	attempts    string // any, left, used: how many runs the new claim allows, of which 3 are used
}

func (c claimCase) String() string {
	return fmt.Sprintf("record %s, lease %s, unknown %s, fingerprint %s, token %s, within %s, choice %s, force %s, attempts %s",
		c.record, c.lease, c.unknown, c.fingerprint, c.token, c.within, c.choice, c.force, c.attempts)
}

var (
	records      = []string{"none", "in flight", "complete", "released", "held"}
	leases       = []string{"live", "at its end", "over"}
	choices      = []string{"release", "hold"}
	fingerprints = []string{
		"same", "different", "other kind", "not recorded", "not taken", "neither",
		"same in another form", "different in another form", "another key's",
	}
	// differing are the fingerprints that show that two requests are not the same.
	differing = is("different", "different in another form")
	// unreadable are those that cannot be compared here.
	unreadable = is("another key's")
	alike      = isNot(fingerprints, append(slices.Clone(differing), unreadable...)...)
	tokens     = []string{"same", "other"}
	withins    = []string{"none", "same", "other"}
	forces     = []string{"yes", "no"}
	attempts   = []string{"any", "left", "used"}
)

// claimTable is what the product promises for each state of a key, together with
// what it promises after a lost reply, after a lapsed lease, and to the requests
// that are part of a run. An empty field stands for any value. Every case must be
// in exactly one row.
var claimTable = []struct {
	record, lease, unknown, fingerprint, token, within, force, attempts []string
	want                                                                idempotency.Verdict
}{
	// no record, or released
	{record: is("none"), want: idempotency.Proceed},
	{record: is("released"), token: is("other"), attempts: is("any", "left"), want: idempotency.Proceed},
	{record: is("released"), token: is("other"), attempts: is("used"), want: idempotency.RefuseExhausted},

	// released, because the claim was withdrawn, and a delayed copy of it arrives
	{record: is("released"), token: is("same"), want: idempotency.WaitForRun},

	// held: whatever comes, until an operator releases the key
	{record: is("held"), want: idempotency.RefuseHeld},

	// in flight by this claim: its reply was lost, and the claim is made again
	{record: is("in flight"), token: is("same"), want: idempotency.Proceed},

	// in flight, and the request is part of the run
	{record: is("in flight"), token: is("other"), within: is("same"), want: idempotency.RefuseLoop},

	// in flight, with a live lease
	{record: is("in flight"), lease: is("live"), token: is("other"), within: is("none", "other"),
		fingerprint: differing, want: idempotency.RefuseReused},
	{record: is("in flight"), lease: is("live"), token: is("other"), within: is("none", "other"),
		fingerprint: alike, want: idempotency.WaitForRun},
	{record: is("in flight"), lease: is("live"), token: is("other"), within: is("none", "other"),
		fingerprint: unreadable, want: idempotency.RefuseUnreadable},

	// in flight, with a lapsed lease: it is unknown how the run ended, and the setting
	// that the run was claimed under decides
	{record: is("in flight"), lease: is("at its end", "over"), token: is("other"), within: is("none", "other"),
		unknown: is("release"), attempts: is("any", "left"), want: idempotency.Proceed},
	{record: is("in flight"), lease: is("at its end", "over"), token: is("other"), within: is("none", "other"),
		unknown: is("release"), attempts: is("used"), want: idempotency.RefuseExhausted},
	{record: is("in flight"), lease: is("at its end", "over"), token: is("other"), within: is("none", "other"),
		unknown: is("hold"), want: idempotency.RefuseHeld},

	// complete
	{record: is("complete"), force: is("yes"), token: is("other"), want: idempotency.Proceed},
	{record: is("complete"), force: is("no"), token: is("other"), fingerprint: differing, want: idempotency.RefuseReused},
	{record: is("complete"), force: is("no"), token: is("other"), fingerprint: unreadable, want: idempotency.RefuseUnreadable},
	{record: is("complete"), force: is("no"), token: is("other"), fingerprint: alike, want: idempotency.ReplayKept},

	// complete, and a delayed copy of the claim arrives whose run has ended
	{record: is("complete"), token: is("same"), fingerprint: differing, want: idempotency.RefuseReused},
	{record: is("complete"), token: is("same"), fingerprint: unreadable, want: idempotency.RefuseUnreadable},
	{record: is("complete"), token: is("same"), fingerprint: alike, want: idempotency.ReplayKept},
}

func is(values ...string) []string { return values }

func isNot(all []string, values ...string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(v string) bool { return slices.Contains(values, v) })
}

func matches(field []string, value string) bool {
	return len(field) == 0 || slices.Contains(field, value)
}

// build returns the record and the claim that a case describes.
func (c claimCase) build(now time.Time) (*idempotency.Record, idempotency.Claim) {
	claim := idempotency.Claim{
		Token: "token-claim", ExecutionID: "run-claim", Fingerprints: []string{"body:1"},
		Terms: idempotency.Terms{Hold: c.choice == "hold", Lease: 30 * time.Second, Retention: time.Hour},
	}
	found := &idempotency.Record{
		Token: "token-found", ExecutionID: "run-found", Attempt: 5, ReleasedAttempts: 2, Fingerprint: "body:1",
		Hold: c.unknown == "hold", Expires: now.Add(time.Minute),
	}
	found.State = map[string]idempotency.State{
		"in flight": idempotency.InFlight, "complete": idempotency.Complete,
		"released": idempotency.Released, "held": idempotency.Held,
	}[c.record]
	switch c.lease {
	case "live":
		found.LeaseUntil = now.Add(time.Millisecond)
	case "at its end":
		found.LeaseUntil = now
	case "over":
		found.LeaseUntil = now.Add(-time.Millisecond)
	}
	switch c.fingerprint {
	case "different":
		claim.Fingerprints = []string{"body:2"}
	case "different in another form":
		found.Fingerprint, claim.Fingerprints = "body/k:1", []string{"body/l:2", "body/k:2", "body:1"}
	case "same in another form":
		found.Fingerprint, claim.Fingerprints = "body/k:1", []string{"body/l:2", "body/k:1", "body:2"}
	case "another key's":
		found.Fingerprint = "body/k:1"
	case "other kind":
		claim.Fingerprints = []string{"json:2"}
	case "not recorded":
		found.Fingerprint = ""
	case "not taken":
		claim.Fingerprints = nil
	case "neither":
		found.Fingerprint, claim.Fingerprints = "", nil
	}
	if c.token == "same" {
		claim.Token = found.Token
	}
	claim.Within = map[string]string{"same": found.ExecutionID, "other": "run-outside"}[c.within]
	claim.Force = c.force == "yes"
	claim.MaxAttempts = map[string]int{"any": 0, "left": 4, "used": 3}[c.attempts]
	if c.record == "none" {
		return nil, claim
	}
	return found, claim
}

func TestDecideOverItsWholeDomain(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	used := make([]int, len(claimTable))
	for c := range claimCases {
		row := -1
		for i, r := range claimTable {
			if !matches(r.record, c.record) || !matches(r.lease, c.lease) || !matches(r.unknown, c.unknown) ||
				!matches(r.fingerprint, c.fingerprint) || !matches(r.token, c.token) || !matches(r.within, c.within) ||
				!matches(r.force, c.force) || !matches(r.attempts, c.attempts) {
				continue
			}
			if row >= 0 {
				t.Fatalf("%v: rows %d and %d of the table both say what is right", c, row, i)
			}
			row = i
		}
		if row < 0 {
			t.Fatalf("%v: no row of the table says what is right", c)
		}
		used[row]++
		found, claim := c.build(now)
		if got := idempotency.Decide(found, claim, now); got != claimTable[row].want {
			t.Errorf("%v: got %v; want %v", c, got, claimTable[row].want)
		}
	}
	for row, n := range used {
		if n == 0 {
			t.Errorf("no case is in row %d of the table", row)
		}
	}
}

// claimCases yields every case once. A record that is not in flight has no lease to
// vary, and without a record there is no setting that it was claimed under.
func claimCases(yield func(claimCase) bool) {
	for _, record := range records {
		leases, unknowns := leases, choices
		if record != "in flight" {
			leases = []string{"-"}
		}
		if record == "none" {
			unknowns = []string{"-"}
		}
		for _, lease := range leases {
			for _, unknown := range unknowns {
				for _, fingerprint := range fingerprints {
					for _, token := range tokens {
						for _, within := range withins {
							for _, choice := range choices {
								for _, force := range forces {
									for _, attempt := range attempts {
										if !yield(claimCase{record, lease, unknown, fingerprint, token, within, choice, force, attempt}) {
											return
										}
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// A request without an execution ID is not part of a run, even if the record has no
// execution ID either.
func TestDecideWithoutExecutionID(t *testing.T) {
	now := time.Unix(1000, 0)
	found := &idempotency.Record{State: idempotency.InFlight, Token: "a", LeaseUntil: now.Add(time.Second)}
	if got := idempotency.Decide(found, idempotency.Claim{Token: "b"}, now); got != idempotency.WaitForRun {
		t.Fatalf("got %v; want %v", got, idempotency.WaitForRun)
	}
}

func TestClaimRecord(t *testing.T) {
	now := time.Unix(1000, 0)
	origin := idempotency.Origin{Provider: "github", DeliveryID: "72d3162e"}
	claim := idempotency.Claim{
		Key: idempotency.Key{1}, Token: "mine", ExecutionID: "run", Within: "outer",
		Fingerprints: []string{"body:1", "body/k:2"}, Origin: origin, SealedBy: "k", Waits: true,
		Terms: idempotency.Terms{Hold: true, Lease: 30 * time.Second, Retention: time.Hour},
	}
	want := idempotency.Record{
		State: idempotency.InFlight, Token: "mine", ExecutionID: "run", Attempt: 1, Fingerprint: "body:1", Hold: true,
		Origin: origin, SealedBy: "k",
		Claimed: now, LeaseUntil: now.Add(30 * time.Second), Expires: now.Add(time.Hour),
	}
	if got := claim.Record(nil, now); !reflect.DeepEqual(*got, want) {
		t.Errorf("over no record:\ngot  %+v\nwant %+v", *got, want)
	}
	// Of the record that was found, the number of attempts stays, and its token, by which
	// it is known again.
	old := &idempotency.Record{
		State: idempotency.Released, Token: "theirs", ExecutionID: "old", Attempt: 4, Fingerprint: "json:2",
		Origin: idempotency.Origin{Provider: "stripe", DeliveryID: "evt"}, Status: 503,
		Claimed: now.Add(-time.Hour), Ended: now.Add(-time.Minute), Expires: now.Add(time.Minute),
	}
	want.Attempt, want.PrevToken = 5, "theirs"
	if got := claim.Record(old, now); !reflect.DeepEqual(*got, want) {
		t.Errorf("over a released record:\ngot  %+v\nwant %+v", *got, want)
	}
	if old.State != idempotency.Released || old.Attempt != 4 {
		t.Errorf("the record that was found became %+v", *old)
	}
	// The reply to the claim was lost, and the claim is made again.
	again := claim.Record(claim.Record(old, now), now)
	if !reflect.DeepEqual(*again, want) {
		t.Errorf("over the claim's own record:\ngot  %+v\nwant %+v", *again, want)
	}
	// The run ended and the key was released: the next claim is another run.
	released := claim.Record(old, now).Settled(idempotency.Settlement{State: idempotency.Released, Counted: true}, now)
	want.Attempt, want.PrevToken = 6, "mine"
	if got := claim.Record(released, now); !reflect.DeepEqual(*got, want) {
		t.Errorf("over the claim's own released record:\ngot  %+v\nwant %+v", *got, want)
	}
}

func TestRecordOutlivesItsLease(t *testing.T) {
	for _, c := range []struct{ lease, retention, want time.Duration }{
		{30 * time.Second, time.Hour, time.Hour},
		{30 * time.Second, time.Minute, time.Minute},
		{30 * time.Second, 59 * time.Second, time.Minute},
		{30 * time.Second, time.Second, time.Minute},
		{30 * time.Second, 0, time.Minute},
	} {
		terms := idempotency.Terms{Lease: c.lease, Retention: c.retention}
		if got := terms.Life(); got != c.want {
			t.Errorf("lease %v, retention %v: a record lives %v; want %v", c.lease, c.retention, got, c.want)
		}
	}
}
