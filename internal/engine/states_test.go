package engine

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The tests in this file look at single states of a flight, and at moments between two
// steps of a request. A test from outside the package meets these only by chance.

// flightTable says which state follows after each event. An event that is not in the
// row of a state changes nothing.
var flightTable = map[flightState]map[flightEvent]flightState{
	asking:   {runFound: flying, over: gone},
	flying:   {runUnstored: unstored, over: gone, deserted: gone},
	unstored: {over: gone},
	gone:     {},
}

func TestFlightTable(t *testing.T) {
	for state := asking; state <= gone; state++ {
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

func engineOfFlights() *Engine {
	return &Engine{flights: make(map[idempotency.Key]*flight)}
}

func (e *Engine) mustJoin(t *testing.T, want membership) *member {
	t.Helper()
	m := e.join(idempotency.Key{})
	if m.part != want {
		t.Fatalf("joined as %d, want %d", m.part, want)
	}
	return &m
}

// isTold reports whether a channel is closed.
func isTold(changed <-chan struct{}) bool {
	select {
	case <-changed:
		return true
	default:
		return false
	}
}

// Those who wait are told of every change, and of nothing else. While nobody waits,
// there is no channel to tell them with.
func TestFlightTellsOfItsChanges(t *testing.T) {
	e := engineOfFlights()
	f := e.mustJoin(t, first).flight
	if f.changed != nil {
		t.Error("there is a broadcast that nobody waits for")
	}
	_, changed := e.view(f)
	if _, again := e.view(f); again != changed {
		t.Error("two who wait do not wait for the same")
	}
	for _, step := range []struct {
		move func()
		want flightState
	}{
		{func() { e.fly(f, &idempotency.Record{}, new(Run)) }, flying},
		{func() { e.end(f, runUnstored, idempotency.Claimed{}, nil) }, unstored},
		{func() { e.end(f, over, idempotency.Claimed{}, nil) }, gone},
	} {
		_, before := e.view(f)
		if isTold(before) {
			t.Fatalf("told before it is %v", step.want)
		}
		step.move()
		if !isTold(before) {
			t.Errorf("not told that it is %v", step.want)
		}
		if f.changed != nil {
			t.Error("there is a broadcast that nobody waits for")
		}
		if seen, _ := e.view(f); seen.state != step.want {
			t.Errorf("it is %v, want %v", seen.state, step.want)
		}
	}
}

func TestRequestThatJoinedBeforeTheEnd(t *testing.T) {
	run := &idempotency.Record{State: idempotency.InFlight, Token: "token", ExecutionID: "run", Fingerprint: "body:one"}
	answer := &idempotency.Response{Status: 500}
	for name, test := range map[string]struct {
		fingerprint string
		part        membership
		replayed    bool
	}{
		"before the end":                       {"body:one", waiter, true},
		"after the end":                        {"body:one", afterwards, false},
		"before the end, of another operation": {"body:two", waiter, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := engineOfFlights()
			f := e.mustJoin(t, first).flight
			e.fly(f, run, new(Run))
			var m *member
			if test.part == waiter {
				m = e.mustJoin(t, waiter)
			}
			record := run.Settled(idempotency.Settlement{State: idempotency.Released, Response: answer}, time.Now())
			found := idempotency.Claimed{Record: record, Response: answer}
			e.end(f, runUnstored, found, nil)
			if test.part == afterwards {
				m = e.mustJoin(t, afterwards)
			}
			e.end(f, over, idempotency.Claimed{}, nil) // of two ends, the first one counts
			c := idempotency.Claim{Fingerprints: []string{test.fingerprint}, Waits: true}
			d, err := e.follow(context.Background(), m, c, nil)
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

// When nobody waits any more, a flight ends if its run is on another replica, and only
// then.
func TestDesertedFlight(t *testing.T) {
	for name, own := range map[string]*Run{"watched": nil, "our own": new(Run)} {
		e := engineOfFlights()
		one, two := e.mustJoin(t, first), e.mustJoin(t, waiter)
		f := one.flight
		e.fly(f, &idempotency.Record{State: idempotency.InFlight}, own)
		watched := own == nil
		_, changed := e.view(f)
		e.leave(one)
		if isTold(changed) {
			t.Errorf("%s: given up with one who waits", name)
		}
		e.leave(two)
		if isTold(changed) != watched {
			t.Errorf("%s: given up is %v, want %v", name, !watched, watched)
		}
		next := waiter
		if watched {
			next = first
		}
		e.mustJoin(t, next)
	}
}

func TestFlightThatEndsTwiceLeavesTheNextAlone(t *testing.T) {
	e := engineOfFlights()
	old := e.mustJoin(t, first).flight
	e.end(old, over, idempotency.Claimed{}, nil)
	next := e.mustJoin(t, first).flight
	e.end(old, over, idempotency.Claimed{}, nil)
	if m := e.mustJoin(t, waiter); m.flight != next {
		t.Error("the end of an old flight removed the next one")
	}
}
