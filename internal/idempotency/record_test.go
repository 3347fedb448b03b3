package idempotency_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestSettled(t *testing.T) {
	claimed := time.Unix(1000, 0)
	now := claimed.Add(5 * time.Second)
	inFlight := idempotency.Record{
		State: idempotency.InFlight, Token: "mine", ExecutionID: "run", Attempt: 2, Fingerprint: "body:1", Hold: true,
		Origin: idempotency.Origin{Provider: "github", DeliveryID: "72d3162e"}, Status: 500,
		Claimed: claimed, LeaseUntil: claimed.Add(30 * time.Second), Expires: claimed.Add(time.Hour),
	}
	settled := inFlight
	settled.Ended, settled.LeaseUntil, settled.Expires = now, time.Time{}, now.Add(time.Minute)

	for name, c := range map[string]struct {
		settlement idempotency.Settlement
		state      idempotency.State
		status     int
		attempt    int
	}{
		"kept": {
			idempotency.Settlement{State: idempotency.Complete, Counted: true, Response: &idempotency.Response{Status: 201}},
			idempotency.Complete, 201, 2},
		"released with an answer": {
			idempotency.Settlement{State: idempotency.Released, Counted: true, Response: &idempotency.Response{Status: 503}},
			idempotency.Released, 503, 2},
		"released without an answer": {
			idempotency.Settlement{State: idempotency.Released, Counted: true}, idempotency.Released, 0, 2},
		"not sent": {
			idempotency.Settlement{State: idempotency.Released, Response: &idempotency.Response{Status: 502, Failed: true}},
			idempotency.Released, 502, 1},
		"held": {
			idempotency.Settlement{State: idempotency.Held, Counted: true}, idempotency.Held, 0, 2},
	} {
		t.Run(name, func(t *testing.T) {
			c.settlement.Retention = time.Minute
			before, want := inFlight, settled
			want.State, want.Status, want.Attempt = c.state, c.status, c.attempt
			if got := before.Settled(c.settlement, now); !reflect.DeepEqual(*got, want) {
				t.Errorf("got  %+v\nwant %+v", *got, want)
			}
			if !reflect.DeepEqual(before, inFlight) {
				t.Errorf("the record in flight became %+v", before)
			}
		})
	}
}

func TestResponseRetention(t *testing.T) {
	for state, want := range map[idempotency.State]time.Duration{
		idempotency.Complete: time.Hour,
		idempotency.Released: time.Second,
		idempotency.Held:     time.Second,
	} {
		s := idempotency.Settlement{State: state, Retention: time.Hour, AnswerRetention: time.Second}
		if got := s.ResponseRetention(); got != want {
			t.Errorf("%s: a response is kept for %v; want %v", state, got, want)
		}
	}
}

func TestLapsed(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete, idempotency.Released, idempotency.Held} {
		for offset, over := range map[time.Duration]bool{time.Nanosecond: false, 0: true, -time.Nanosecond: true} {
			r := &idempotency.Record{State: state, LeaseUntil: now.Add(offset)}
			if want := over && state == idempotency.InFlight; r.Lapsed(now) != want {
				t.Errorf("%s, lease until %v from now: Lapsed is %v; want %v", state, offset, !want, want)
			}
		}
	}
}

// Whether a claim may be renewed and settled, for all records that a store can have.
func TestOwned(t *testing.T) {
	lost := idempotency.ErrGone
	for _, c := range []struct {
		// The tokens of the record that is found, of that before the claim, and of that which
		// the settlement leaves.
		found, follows, left string
		err                  error
	}{
		{"mine", "", "", nil},
		{"mine", "earlier", "", nil},
		{"mine", "", "earlier", nil},
		{"another", "", "", idempotency.ErrFenced},
		{"another", "earlier", "", idempotency.ErrFenced},
		{"another", "", "earlier", idempotency.ErrFenced},
		// The record that our claim was written over: nothing has been written since.
		{"earlier", "earlier", "", lost},
		// The one that our settlement leaves: it has left that already.
		{"earlier", "", "earlier", nil},
		// A record of an earlier or a later claim: it is unknown which.
		{"earlier", "", "", idempotency.ErrFenced},
	} {
		for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete, idempotency.Released, idempotency.Held} {
			r := &idempotency.Record{State: state, Token: c.found}
			open, err := r.Owned("mine", c.follows, c.left)
			if !errors.Is(err, c.err) || open != (c.found == "mine" && state == idempotency.InFlight) {
				t.Errorf("%+v, %s: %v, %v", c, state, open, err)
			}
		}
	}
	var none *idempotency.Record
	for _, follows := range []string{"", "earlier"} {
		if _, err := none.Owned("mine", follows, "earlier"); !errors.Is(err, idempotency.ErrGone) {
			t.Errorf("without a record: %v", err)
		}
	}
}

// A record names the one that it replaced until it is settled or released.
func TestPrevTokenUntilSettled(t *testing.T) {
	now := time.Unix(1000, 0)
	mine := idempotency.Claim{Token: "mine"}
	complete := &idempotency.Record{State: idempotency.Complete, Token: "earlier", Expires: now.Add(time.Hour)}
	for name, c := range map[string]struct {
		found *idempotency.Record
		want  string
	}{
		"nothing":             {nil, ""},
		"released":            {&idempotency.Record{State: idempotency.Released, Token: "earlier"}, "earlier"},
		"lapsed":              {&idempotency.Record{State: idempotency.InFlight, Token: "earlier"}, "earlier"},
		"the same claim":      {&idempotency.Record{State: idempotency.InFlight, Token: "mine", PrevToken: "earlier"}, "earlier"},
		"complete, if forced": {complete, ""},
	} {
		record := mine.Record(c.found, now)
		if record.PrevToken != c.want {
			t.Errorf("over %s it follows %q, want %q", name, record.PrevToken, c.want)
		}
		if settled := record.Settled(idempotency.Settlement{State: idempotency.Complete, Response: &idempotency.Response{}}, now); settled.PrevToken != "" {
			t.Errorf("over %s, settled, it follows %q", name, settled.PrevToken)
		}
		record.LeaseUntil = now
		if released, err := record.Changed(idempotency.Change{State: idempotency.Released, Token: "operator"}, now); err != nil || released.PrevToken != "" {
			t.Errorf("over %s, released, it follows %q, %v", name, released.PrevToken, err)
		}
	}
}

// After an operator has released a key, its record still says what happened before. A
// key whose run has a live lease cannot be released.
func TestReleaseByAnOperator(t *testing.T) {
	now := time.Unix(1000, 0)
	complete := idempotency.Record{
		State: idempotency.Complete, Token: "owner", ExecutionID: "run", Attempt: 3, ReleasedAttempts: 1, Fingerprint: "body:1", Hold: true,
		Origin: idempotency.Origin{Provider: "github", DeliveryID: "72d3162e"}, Status: 201, ParentID: "parent",
		Claimed: now.Add(-time.Minute), Ended: now.Add(-time.Second), Expires: now.Add(time.Hour),
	}
	with := func(change func(*idempotency.Record)) *idempotency.Record {
		r := complete
		change(&r)
		return &r
	}
	released := with(func(r *idempotency.Record) {
		r.State, r.Token, r.ReleasedAttempts, r.Reason = idempotency.Released, "operator", 3, "released by alice"
	})
	inFlight := func(left time.Duration, replaces *idempotency.Record) *idempotency.Record {
		return with(func(r *idempotency.Record) {
			r.State, r.LeaseUntil, r.Previous = idempotency.InFlight, now.Add(left), replaces
		})
	}
	counted := *released
	counted.Attempt, counted.ReleasedAttempts = 3, 3
	for name, c := range map[string]struct {
		found, want *idempotency.Record
		err         error
	}{
		"none":      {err: idempotency.ErrGone},
		"complete":  {found: &complete, want: released},
		"held":      {found: with(func(r *idempotency.Record) { r.State = idempotency.Held }), want: released},
		"released":  {found: with(func(r *idempotency.Record) { r.State = idempotency.Released }), want: released},
		"in flight": {found: inFlight(time.Millisecond, nil), err: idempotency.ErrInFlight},
		"lapsed":    {found: inFlight(0, nil), want: released},
		"forced":    {found: inFlight(time.Millisecond, &complete), err: idempotency.ErrInFlight},
		"forced and lapsed": {
			found: inFlight(0, with(func(r *idempotency.Record) { r.Attempt = 2 })), want: &counted},
		"forced and lapsed, over what has expired": {
			found: inFlight(0, with(func(r *idempotency.Record) { r.Expires = now })), err: idempotency.ErrGone},
	} {
		got, err := c.found.Changed(idempotency.Change{State: idempotency.Released, Token: "operator", Reason: "released by alice"}, now)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c.want)
		}
		if err := c.found.Effective(now).CheckChange(idempotency.Precondition{}, now); !errors.Is(err, c.err) {
			t.Errorf("%s: may be taken: %v, want %v", name, err, c.err)
		}
	}
}

// A completed key has the operator's response from now on, whatever its run has left.
func TestCompletionByAnOperator(t *testing.T) {
	now := time.Unix(1000, 0)
	record := func(state idempotency.State, change func(*idempotency.Record)) *idempotency.Record {
		r := &idempotency.Record{
			State: state, Token: "owner", ExecutionID: "run", Attempt: 3, ReleasedAttempts: 1, Fingerprint: "body:1", Hold: true,
			Origin: idempotency.Origin{Provider: "github", DeliveryID: "72d3162e"}, Status: 500, Reason: "EOF",
			Claimed: now.Add(-time.Minute), Ended: now.Add(-time.Second), Expires: now.Add(72 * time.Hour),
		}
		if change != nil {
			change(r)
		}
		return r
	}
	completed := func(change func(*idempotency.Record)) *idempotency.Record {
		r := record(idempotency.Complete, change)
		r.Token, r.Status, r.Reason = "operator", 202, "completed by alice"
		return r
	}
	expiresIn := func(d time.Duration) func(*idempotency.Record) {
		return func(r *idempotency.Record) { r.Expires = now.Add(d) }
	}
	lapses := func(at time.Time) func(*idempotency.Record) {
		return func(r *idempotency.Record) { r.LeaseUntil, r.PrevToken = at, "earlier" }
	}
	forced := record(idempotency.InFlight, func(r *idempotency.Record) { r.LeaseUntil, r.Previous = now, record(idempotency.Complete, nil) })
	for name, c := range map[string]struct {
		found, want *idempotency.Record
		err         error
	}{
		"none":                   {err: idempotency.ErrGone},
		"held":                   {found: record(idempotency.Held, nil), want: completed(nil)},
		"released or exhausted":  {found: record(idempotency.Released, nil), want: completed(nil)},
		"lapsed":                 {found: record(idempotency.InFlight, lapses(now)), want: completed(nil)},
		"it would expire sooner": {found: record(idempotency.Held, expiresIn(time.Hour)), want: completed(expiresIn(24 * time.Hour))},
		"in flight":              {found: record(idempotency.InFlight, lapses(now.Add(1))), err: idempotency.ErrInFlight},
		"complete":               {found: record(idempotency.Complete, nil), err: idempotency.ErrComplete},
		"forced and lapsed":      {found: forced, err: idempotency.ErrComplete},
	} {
		change := idempotency.Change{
			State: idempotency.Complete, Token: "operator", Reason: "completed by alice", Response: &idempotency.Response{Status: 202},
		}
		got, err := c.found.Changed(change, now)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c.want)
		}
		change.Response.Body = make([]byte, 20<<10)
		if got, err := c.found.Changed(change, now); err == nil && got.LargeBody != 20<<10 {
			t.Errorf("%s: a body of 20 KiB counts as %d bytes", name, got.LargeBody)
		}
	}
}
