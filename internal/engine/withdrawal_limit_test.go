package engine

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

// storeOfOne has a record, nil for none, with the same answer for all keys, and fails
// the test if it is asked for a claim that would run. It has no other methods.
type storeOfOne struct {
	idempotency.Store
	t      *testing.T
	record *idempotency.Record
}

func (s storeOfOne) Lookup(context.Context, idempotency.Key) (*idempotency.Record, time.Time, error) {
	return s.record, time.Now(), nil
}

func (s storeOfOne) Claim(_ context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	verdict := idempotency.Decide(s.record, c, time.Now())
	if verdict == idempotency.Proceed {
		s.t.Error("the store was asked for a claim that would run")
	}
	return idempotency.Claimed{Verdict: verdict, Record: s.record, Response: &idempotency.Response{Status: 201}, Now: time.Now()}, nil
}

// With too many claims in doubt nothing runs, because each new claim may be in doubt, too. Requests
// that would not run are decided as usual.
func TestTooManyClaimsInDoubt(t *testing.T) {
	decide := func(record *idempotency.Record) Decision {
		t.Helper()
		e := &Engine{
			store:       seal.Around(storeOfOne{t: t, record: record}, nil),
			options:     Options{Observer: noopObserver{}, NewToken: func() string { return "token" }, NewExecutionID: func() string { return "execution" }},
			flights:     flights{byKey: make(map[idempotency.Key]*flight)},
			withdrawals: withdrawals{inDoubt: tally{n: maxWithdrawals}},
		}
		e.copies = &ownCopies{all: NewCopies(0), store: e.store, ctx: t.Context()}
		e.timeout.Store(int64(time.Second))
		d, err := e.Claim(context.Background(), Request{})
		if err != nil {
			t.Fatal(err)
		}
		if e.unsettled.n != 0 {
			t.Errorf("%d claims count as unsettled", e.unsettled.n)
		}
		e.withdrawals.inDoubt.add(-1)
		if _, full := e.reserveClaim(Request{}); full != nil {
			t.Errorf("no claim may be made with one in doubt fewer: %v", full)
		}
		return d
	}
	if refused, ok := decide(nil).(Refusal); !ok || refused.Reason != ReasonUnavailable {
		t.Errorf("a run: %+v, want a refusal with %q", refused, ReasonUnavailable)
	}
	kept := &idempotency.Record{State: idempotency.Complete, ExecutionID: "kept"}
	if replay, ok := decide(kept).(Replay); !ok || replay.Record.ExecutionID != "kept" {
		t.Errorf("a replay: %+v", replay)
	}
	held := &idempotency.Record{State: idempotency.Held, ExecutionID: "held"}
	if refused, ok := decide(held).(Refusal); !ok || refused.Reason != ReasonHeld {
		t.Errorf("a held key: %+v, want a refusal with %q", refused, ReasonHeld)
	}
}

// A key that cannot be reached does not keep others waiting.
func TestFailedWithdrawalIsTheLastOfTheNextRound(t *testing.T) {
	claim := idempotency.Claim{Terms: idempotency.Terms{Lease: time.Hour}}
	one, two := &withdrawal{claim: claim, since: time.Now()}, &withdrawal{claim: claim, since: time.Now()}
	ws := withdrawals{pending: []*withdrawal{one, two}}
	if ws.removeDone(one) || len(ws.pending) != 2 || ws.pending[1] != one {
		t.Errorf("the next round is %v, want %p last", ws.pending, one)
	}
}
