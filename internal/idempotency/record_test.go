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

// What an operator's release or completion makes of each record. All that is not named stays: the record
// still has what happened before.
func TestChangesByAnOperator(t *testing.T) {
	now := time.Unix(1000, 0)
	record := func(state idempotency.State, changes ...func(*idempotency.Record)) *idempotency.Record {
		r := &idempotency.Record{
			State: state, Token: "owner", ExecutionID: "run", Attempt: 3, ReleasedAttempts: 1, Fingerprint: "body:1", Hold: true,
			Origin: idempotency.Origin{Provider: "github", DeliveryID: "72d3162e"}, Status: 500, Reason: "EOF", ParentID: "parent",
			Claimed: now.Add(-time.Minute), Ended: now.Add(-time.Second), Expires: now.Add(72 * time.Hour),
		}
		for _, change := range changes {
			change(r)
		}
		return r
	}
	expiresIn := func(d time.Duration) func(*idempotency.Record) {
		return func(r *idempotency.Record) { r.Expires = now.Add(d) }
	}
	inFlight := func(left time.Duration, replaces *idempotency.Record) *idempotency.Record {
		return record(idempotency.InFlight, func(r *idempotency.Record) {
			r.LeaseUntil, r.PrevToken, r.Previous = now.Add(left), "earlier", replaces
		})
	}
	byOperator := func(r *idempotency.Record) { r.Token, r.Reason = "operator", "by alice" }
	allReleased := func(r *idempotency.Record) { r.ReleasedAttempts = 3 }
	answered := func(r *idempotency.Record) { r.Status = 202 }
	released := record(idempotency.Released, byOperator, allReleased)
	completed := record(idempotency.Complete, byOperator, answered)
	forced := inFlight(0, record(idempotency.Complete, func(r *idempotency.Record) { r.Attempt = 2 }))
	for name, c := range map[string]struct {
		found, released, completed *idempotency.Record // nil for an error
		releaseErr, completeErr    error
	}{
		"none":                  {releaseErr: idempotency.ErrGone, completeErr: idempotency.ErrGone},
		"held":                  {found: record(idempotency.Held), released: released, completed: completed},
		"released or exhausted": {found: record(idempotency.Released), released: released, completed: completed},
		"lapsed":                {found: inFlight(0, nil), released: released, completed: completed},
		"complete":              {found: record(idempotency.Complete), released: released, completeErr: idempotency.ErrComplete},
		"held, expires soon": {
			found:     record(idempotency.Held, expiresIn(time.Hour)),
			released:  record(idempotency.Released, byOperator, allReleased, expiresIn(time.Hour)),
			completed: record(idempotency.Complete, byOperator, answered, expiresIn(24*time.Hour)),
		},
		"in flight":         {found: inFlight(1, nil), releaseErr: idempotency.ErrInFlight, completeErr: idempotency.ErrInFlight},
		"forced":            {found: inFlight(1, completed), releaseErr: idempotency.ErrInFlight, completeErr: idempotency.ErrInFlight},
		"forced and lapsed": {found: forced, released: released, completeErr: idempotency.ErrComplete},
		"forced and lapsed, over what has expired": {
			found: inFlight(0, record(idempotency.Complete, expiresIn(0))), releaseErr: idempotency.ErrGone, completeErr: idempotency.ErrGone},
	} {
		response := &idempotency.Response{Status: 202}
		for _, want := range []struct {
			state    idempotency.State
			response *idempotency.Response
			record   *idempotency.Record
			err      error
		}{
			{idempotency.Released, nil, c.released, c.releaseErr},
			{idempotency.Complete, response, c.completed, c.completeErr},
		} {
			change := idempotency.Change{State: want.state, Token: "operator", Reason: "by alice", Response: want.response}
			got, err := c.found.Changed(change, now)
			if !errors.Is(err, want.err) || (err == nil) != (want.err == nil) {
				t.Errorf("%s, %s: %v, want %v", name, want.state, err, want.err)
			}
			if !reflect.DeepEqual(got, want.record) {
				t.Errorf("%s, %s:\ngot  %+v\nwant %+v", name, want.state, got, want.record)
			}
		}
		if err := c.found.Effective(now).CheckChange(idempotency.Precondition{}, now); !errors.Is(err, c.releaseErr) {
			t.Errorf("%s: may be changed: %v, want %v", name, err, c.releaseErr)
		}
		response.Body = make([]byte, 20<<10)
		if got, err := c.found.Changed(idempotency.Change{State: idempotency.Complete, Response: response}, now); err == nil && got.LargeBody != 20<<10 {
			t.Errorf("%s: a body of 20 KiB counts as %d bytes", name, got.LargeBody)
		}
	}
}
