package engine

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The tests in this file check single states of a flight, and moments between two steps of a request,
// which a test from outside the package would meet only by chance.

func noFlights() *flights {
	return &flights{byKey: make(map[idempotency.Key]*flight)}
}

func (t *flights) mustJoin(tb testing.TB, asFirst bool) *member {
	tb.Helper()
	m := t.join(idempotency.Key{})
	if m.first != asFirst {
		tb.Fatalf("joined as the first: %v, want %v", m.first, asFirst)
	}
	return &m
}

// isClosed reports whether a channel is closed.
func isClosed(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

func TestJoinedBeforeEnd(t *testing.T) {
	run := &idempotency.Record{State: idempotency.InFlight, Token: "token", ExecutionID: "run", Fingerprint: "body:one"}
	answer := &idempotency.Response{Status: 500}
	for name, test := range map[string]struct {
		fingerprint string
		afterEnd    bool
		replayed    bool
	}{
		"before the end":                       {"body:one", false, true},
		"after the end":                        {"body:one", true, false},
		"before the end, of another operation": {"body:two", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := noFlights()
			f := all.mustJoin(t, true).flight
			f.setRun(run, new(Run))
			var m *member
			if !test.afterEnd {
				m = all.mustJoin(t, false)
			}
			record := run.Settled(idempotency.Settlement{State: idempotency.Released, Response: answer}, time.Now())
			found := idempotency.Claimed{Record: record, Response: answer}
			f.end(unstored, found, nil)
			if test.afterEnd {
				m = all.mustJoin(t, false)
			}
			f.end(closed, idempotency.Claimed{}, nil) // of two ends, the first one counts
			c := idempotency.Claim{Fingerprints: []string{test.fingerprint}, Waits: true}
			d, err := new(Engine).follow(context.Background(), m, c, nil)
			if err != nil {
				t.Fatal(err)
			}
			replay, replayed := d.(Replay)
			switch {
			case replayed != test.replayed:
				t.Errorf("decided %T %+v, want a replay: %v", d, d, test.replayed)
			case replayed && (replay.Response != answer || !replay.Waited):
				t.Errorf("replayed %+v", replay)
			case !replayed && d != nil:
				t.Errorf("decided %T %+v, want to ask the store", d, d)
			}
		})
	}
}

// When its last member leaves, a flight ends only if its run is on another replica.
func TestDesertedFlight(t *testing.T) {
	for name, own := range map[string]*Run{"watched": nil, "our own": new(Run)} {
		all := noFlights()
		one, two := all.mustJoin(t, true), all.mustJoin(t, false)
		f := one.flight
		f.setRun(&idempotency.Record{State: idempotency.InFlight}, own)
		watched := own == nil
		_, changed := f.view()
		one.leave()
		if isClosed(changed) {
			t.Errorf("%s: given up with a request that waits", name)
		}
		two.leave()
		if isClosed(changed) != watched {
			t.Errorf("%s: given up is %v, want %v", name, !watched, watched)
		}
		all.mustJoin(t, watched)
	}
}

func TestFlightEndsOnce(t *testing.T) {
	all := noFlights()
	old := all.mustJoin(t, true).flight
	old.end(closed, idempotency.Claimed{}, nil)
	next := all.mustJoin(t, true).flight
	for _, again := range []flightState{unstored, closed} {
		old.end(again, idempotency.Claimed{}, nil)
		if seen, _ := old.view(); seen.state != closed {
			t.Errorf("an end as %d reopens the flight as %d", again, seen.state)
		}
	}
	if m := all.mustJoin(t, false); m.flight != next {
		t.Error("the end of an old flight removed the next one")
	}
}

// A limit never refuses a replay: a request that has decided to wait just before the run ended does not
// wait.
func TestNoWaitAfterTheEnd(t *testing.T) {
	all := noFlights()
	all.limits.Waiters, all.waiting = 1, 1
	f := all.mustJoin(t, true).flight
	f.setRun(&idempotency.Record{State: idempotency.InFlight}, new(Run))
	m := all.mustJoin(t, false)
	seen, _ := f.view()
	f.end(closed, idempotency.Claimed{}, nil)
	if reached, err := m.wait(seen.state); err != nil || m.counted {
		t.Errorf("refused by %q: %v, counted: %v", reached, err, m.counted)
	}
}
