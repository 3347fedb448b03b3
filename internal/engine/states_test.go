package engine

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The tests in this file check single states of a flight, and moments between two steps of a request,
// which a test from outside the package would meet only by chance.

// flightTable says which state follows after each event. An event that is not in the
// row of a state changes nothing.
var flightTable = map[flightState]map[flightEvent]flightState{
	asking:   {runFound: running, runOver: closed},
	running:  {runUnstored: unstored, runOver: closed, deserted: closed},
	unstored: {runOver: closed},
	closed:   {},
}

func TestFlightTable(t *testing.T) {
	for state := asking; state <= closed; state++ {
		for event := runFound; event <= deserted; event++ {
			want, changes := flightTable[state][event]
			if !changes {
				want = state
			}
			if got, changed := state.after(event); got != want || changed != changes {
				t.Errorf("%v, event %d: %v, changed %v; want %v, %v", state, event, got, changed, want, changes)
			}
		}
	}
}

func noFlights() *flights {
	return &flights{byKey: make(map[idempotency.Key]*flight)}
}

func (t *flights) mustJoin(tb testing.TB, want membership) *member {
	tb.Helper()
	m := t.join(idempotency.Key{})
	if m.part != want {
		tb.Fatalf("joined as %d, want %d", m.part, want)
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

// A flight notifies the requests that wait of every change, and of nothing else. Without a waiter it
// has no channel.
func TestFlightNotifiesMembers(t *testing.T) {
	all := noFlights()
	f := all.mustJoin(t, first).flight
	if f.changed != nil {
		t.Error("there is a broadcast that no request waits for")
	}
	_, changed := f.view()
	if _, again := f.view(); again != changed {
		t.Error("two requests do not wait for the same")
	}
	for _, step := range []struct {
		move func()
		want flightState
	}{
		{func() { f.setRun(&idempotency.Record{}, new(Run)) }, running},
		{func() { f.end(runUnstored, idempotency.Claimed{}, nil) }, unstored},
		{func() { f.end(runOver, idempotency.Claimed{}, nil) }, closed},
	} {
		_, before := f.view()
		if isClosed(before) {
			t.Fatalf("notified before it is %v", step.want)
		}
		step.move()
		if !isClosed(before) {
			t.Errorf("not notified that it is %v", step.want)
		}
		if f.changed != nil {
			t.Error("there is a broadcast that no request waits for")
		}
		if seen, _ := f.view(); seen.state != step.want {
			t.Errorf("it is %v, want %v", seen.state, step.want)
		}
	}
}

func TestJoinedBeforeEnd(t *testing.T) {
	run := &idempotency.Record{State: idempotency.InFlight, Token: "token", ExecutionID: "run", Fingerprint: "body:one"}
	answer := &idempotency.Response{Status: 500}
	for name, test := range map[string]struct {
		fingerprint string
		part        membership
		replayed    bool
	}{
		"before the end":                       {"body:one", waiter, true},
		"after the end":                        {"body:one", joinedAfterEnd, false},
		"before the end, of another operation": {"body:two", waiter, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := noFlights()
			f := all.mustJoin(t, first).flight
			f.setRun(run, new(Run))
			var m *member
			if test.part == waiter {
				m = all.mustJoin(t, waiter)
			}
			record := run.Settled(idempotency.Settlement{State: idempotency.Released, Response: answer}, time.Now())
			found := idempotency.Claimed{Record: record, Response: answer}
			f.end(runUnstored, found, nil)
			if test.part == joinedAfterEnd {
				m = all.mustJoin(t, joinedAfterEnd)
			}
			f.end(runOver, idempotency.Claimed{}, nil) // of two ends, the first one counts
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
		one, two := all.mustJoin(t, first), all.mustJoin(t, waiter)
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
		next := waiter
		if watched {
			next = first
		}
		all.mustJoin(t, next)
	}
}

func TestFlightEndsOnce(t *testing.T) {
	all := noFlights()
	old := all.mustJoin(t, first).flight
	old.end(runOver, idempotency.Claimed{}, nil)
	next := all.mustJoin(t, first).flight
	old.end(runOver, idempotency.Claimed{}, nil)
	if m := all.mustJoin(t, waiter); m.flight != next {
		t.Error("the end of an old flight removed the next one")
	}
}
