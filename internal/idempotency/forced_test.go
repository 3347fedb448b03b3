package idempotency_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Until the response of a forced run is kept, its record carries the record that it
// is meant to replace.
func TestForcedRecord(t *testing.T) {
	now := time.Unix(1000, 0)
	old := &idempotency.Record{
		State: idempotency.Complete, Token: "old", ExecutionID: "parent", Attempt: 2, Fingerprint: "body:1",
		Status: 201, Expires: now.Add(24 * time.Hour),
	}
	claim := idempotency.Claim{
		Token: "new", ExecutionID: "child", Fingerprints: []string{"body:2"}, Force: true,
		Terms: idempotency.Terms{Lease: time.Second, Retention: time.Hour},
	}
	run := claim.Record(old, now)
	if run.State != idempotency.InFlight || run.ParentID != "parent" || run.Attempt != 3 || run.Previous != old {
		t.Fatalf("the forced run's record is %+v", run)
	}
	if !run.Expires.Equal(old.Expires) {
		t.Errorf("it expires at %v, before the record that it may leave, %v", run.Expires, old.Expires)
	}
	if again := claim.Record(run, now); again.Previous != old || again.ParentID != "parent" || again.Attempt != 3 {
		t.Errorf("claimed again with its own token it is %+v", again)
	}
	if renewed := run.Renewed(claim.Terms, now.Add(time.Second)); !renewed.Expires.Equal(old.Expires) || renewed.Previous != old {
		t.Errorf("renewed it is %+v", renewed)
	}

	kept := run.Settled(idempotency.Settlement{State: idempotency.Complete, Counted: true, Retention: time.Hour}, now)
	if kept.State != idempotency.Complete || kept.Token != "new" || kept.ParentID != "parent" || kept.Previous != nil {
		t.Errorf("kept it is %+v", kept)
	}
	for _, s := range []idempotency.Settlement{
		{State: idempotency.Released, Counted: true, Retention: time.Minute},
		{State: idempotency.Held, Counted: true, Retention: time.Minute},
		{State: idempotency.Released, Retention: time.Minute},
	} {
		want := *old
		if s.Counted {
			want.Attempt = 3
		}
		if left := run.Settled(s, now); !reflect.DeepEqual(*left, want) {
			t.Errorf("settled as %+v it leaves %+v, want %+v", s, left, want)
		}
	}
}

// When the claim of a forced run has lapsed, the record that it was meant to replace
// counts again. Every other record counts as it is.
func TestEffective(t *testing.T) {
	now := time.Unix(1000, 0)
	old := &idempotency.Record{State: idempotency.Complete, Token: "old", Expires: now.Add(time.Hour)}
	gone := &idempotency.Record{State: idempotency.Complete, Token: "old", Expires: now}
	live, lapsed := now.Add(time.Millisecond), now
	record := func(until time.Time, replaces *idempotency.Record) *idempotency.Record {
		return &idempotency.Record{State: idempotency.InFlight, Token: "new", LeaseUntil: until, Previous: replaces}
	}
	for name, c := range map[string]struct{ found, want *idempotency.Record }{
		"none":                        {nil, nil},
		"complete":                    {old, old},
		"in flight":                   {record(live, nil), record(live, nil)},
		"lapsed":                      {record(lapsed, nil), record(lapsed, nil)},
		"forced, in flight":           {record(live, old), record(live, old)},
		"forced, lapsed":              {record(lapsed, old), old},
		"forced, lapsed, old expired": {record(lapsed, gone), nil},
	} {
		got := c.found.Effective(now)
		if (got == nil) != (c.want == nil) || got != nil && !reflect.DeepEqual(*got, *c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
