package idempotency_test

import (
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestSettled(t *testing.T) {
	claimed := time.Unix(1000, 0)
	now := claimed.Add(5 * time.Second)
	inFlight := idempotency.Record{
		State: idempotency.InFlight, Token: "mine", ExecutionID: "run", Attempt: 2, Fingerprint: "body:1", Hold: true,
		Provider: "github", DeliveryID: "72d3162e", Status: 500,
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
