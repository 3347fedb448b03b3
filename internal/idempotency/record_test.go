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
			if got := before.Settled(c.settlement, now); *got != want {
				t.Errorf("got  %+v\nwant %+v", *got, want)
			}
			if before != inFlight {
				t.Errorf("the record in flight became %+v", before)
			}
		})
	}
}

func TestResponseFor(t *testing.T) {
	for state, want := range map[idempotency.State]time.Duration{
		idempotency.Complete: time.Hour,
		idempotency.Released: time.Second,
		idempotency.Held:     time.Second,
	} {
		s := idempotency.Settlement{State: state, Retention: time.Hour, AnswerFor: time.Second}
		if got := s.ResponseFor(); got != want {
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

func TestOwned(t *testing.T) {
	for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete, idempotency.Released, idempotency.Held} {
		r := &idempotency.Record{State: state, Token: "mine"}
		if open, err := r.Owned("mine"); err != nil || open != (state == idempotency.InFlight) {
			t.Errorf("%s: its owner gets %v, %v", state, open, err)
		}
		if _, err := r.Owned("another"); !errors.Is(err, idempotency.ErrFenced) {
			t.Errorf("%s: another gets %v", state, err)
		}
	}
	var none *idempotency.Record
	if _, err := none.Owned("mine"); !errors.Is(err, idempotency.ErrGone) {
		t.Errorf("without a record: %v", err)
	}
}

// After an operator has freed a key, its record still says what happened before. A
// key whose run has a live lease cannot be freed.
func TestFreed(t *testing.T) {
	now := time.Unix(1000, 0)
	complete := idempotency.Record{
		State: idempotency.Complete, Token: "owner", ExecutionID: "run", Attempt: 3, FreedAttempts: 1, Fingerprint: "body:1", Hold: true,
		Origin: idempotency.Origin{Provider: "github", DeliveryID: "72d3162e"}, Status: 201, ParentID: "parent",
		Claimed: now.Add(-time.Minute), Ended: now.Add(-time.Second), Expires: now.Add(time.Hour),
	}
	with := func(change func(*idempotency.Record)) *idempotency.Record {
		r := complete
		change(&r)
		return &r
	}
	freed := with(func(r *idempotency.Record) { r.State, r.Token, r.FreedAttempts = idempotency.Released, "operator", 3 })
	inFlight := func(left time.Duration, replaces *idempotency.Record) *idempotency.Record {
		return with(func(r *idempotency.Record) {
			r.State, r.LeaseUntil, r.Replaces = idempotency.InFlight, now.Add(left), replaces
		})
	}
	counted := *freed
	counted.Attempt, counted.FreedAttempts = 3, 3
	for name, c := range map[string]struct {
		found, want *idempotency.Record
		err         error
	}{
		"none":      {err: idempotency.ErrGone},
		"complete":  {found: &complete, want: freed},
		"held":      {found: with(func(r *idempotency.Record) { r.State = idempotency.Held }), want: freed},
		"released":  {found: with(func(r *idempotency.Record) { r.State = idempotency.Released }), want: freed},
		"in flight": {found: inFlight(time.Millisecond, nil), err: idempotency.ErrInFlight},
		"lapsed":    {found: inFlight(0, nil), want: freed},
		"forced":    {found: inFlight(time.Millisecond, &complete), err: idempotency.ErrInFlight},
		"forced and lapsed": {
			found: inFlight(0, with(func(r *idempotency.Record) { r.Attempt = 2 })), want: &counted},
		"forced and lapsed, over what has expired": {
			found: inFlight(0, with(func(r *idempotency.Record) { r.Expires = now })), err: idempotency.ErrGone},
	} {
		got, err := c.found.Freed("operator", now)
		if !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.err)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", name, got, c.want)
		}
		if err := c.found.Effective(now).MayBeTaken(now); !errors.Is(err, c.err) {
			t.Errorf("%s: may be taken: %v, want %v", name, err, c.err)
		}
	}
}
