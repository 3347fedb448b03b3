package engine

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The tests of this file look at moments between two steps of a request, which
// a test from the outside meets only by chance.

func engineOfFlights() *Engine { return &Engine{flights: make(map[idempotency.Key]*flight)} }

func waitingRequest(fingerprint string) Request {
	return Request{Fingerprint: fingerprint, Policy: Policy{Wait: time.Second}}
}

func TestRequestThatJoinedBeforeTheEnd(t *testing.T) {
	run := &idempotency.Record{State: idempotency.InFlight, Token: "token", ExecutionID: "run", Fingerprint: "body:one"}
	answer := &idempotency.Response{Status: 500}
	for name, test := range map[string]struct {
		fingerprint string
		late        bool
		replayed    bool
	}{
		"in time":                        {"body:one", false, true},
		"late":                           {"body:one", true, false},
		"in time with another operation": {"body:two", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			e := engineOfFlights()
			f, first, _, _ := e.join(idempotency.Key{}, Limits{})
			if !first {
				t.Fatal("the first request is not the first")
			}
			f.inFlight(run)
			late := false
			if !test.late {
				_, _, late, _ = e.join(idempotency.Key{}, Limits{})
			}
			e.linger(f, outcome{record: run.Settled(idempotency.Settlement{State: idempotency.Released, Response: answer}, time.Now()), response: answer})
			if test.late {
				_, _, late, _ = e.join(idempotency.Key{}, Limits{})
			}
			if late != test.late {
				t.Fatalf("late is %v, want %v", late, test.late)
			}
			d, err := follow(context.Background(), f, late, waitingRequest(test.fingerprint), nil)
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

func TestFlightThatIsDesertedBeforeItsWatchBegins(t *testing.T) {
	e := engineOfFlights()
	f, _, _, _ := e.join(idempotency.Key{}, Limits{})
	f.inFlight(&idempotency.Record{State: idempotency.InFlight})
	e.leave(f, true)
	if e.watching(f) {
		t.Error("a run is watched for nobody")
	}
	if next, first, _, _ := e.join(idempotency.Key{}, Limits{}); !first || next == f {
		t.Error("the next request joins a flight that nobody watches")
	}
}

func TestFlightThatEndsTwiceLeavesTheNextAlone(t *testing.T) {
	e := engineOfFlights()
	old, _, _, _ := e.join(idempotency.Key{}, Limits{})
	e.finish(old, outcome{})
	next, first, _, _ := e.join(idempotency.Key{}, Limits{})
	if !first {
		t.Fatal("the flight goes on after its end")
	}
	e.finish(old, outcome{})
	e.remove(old)
	if f, first, _, _ := e.join(idempotency.Key{}, Limits{}); first || f != next {
		t.Error("the end of an old flight removed the next one")
	}
}
