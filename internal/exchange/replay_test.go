package exchange

import (
	"context"
	"net/http/httptest"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What requests get that waited takes room whatever on_duplicate says: it is the run's response.
func TestResponseOfThoseThatWaitedTakesRoom(t *testing.T) {
	for _, on := range []idempotency.OnDuplicate{
		idempotency.ReplayDuplicate, idempotency.ConflictDuplicate, idempotency.AcknowledgeDuplicate, idempotency.SeeOtherDuplicate,
	} {
		room := budget.New(1 << 20)
		x := &exchange{Handler: New(Config{OnDuplicate: on, Budget: room})}
		x.Allowance.Budget = room
		response := &idempotency.Response{Status: 201, Header: map[string][]string{"Location": {"/1"}}, Body: make([]byte, budget.SmallReplay+1)}
		_, ready, err := x.prepareReplay(nil, engine.Replay{Record: new(idempotency.Record), Response: response, Waited: true})
		if err != nil || ready.answer.Response != response {
			t.Fatalf("%s: %+v, %v", on, ready.answer, err)
		}
		if got := room.Used(); got != int64(len(response.Body)) {
			t.Errorf("%s: %d bytes are taken, want %d", on, got, len(response.Body))
		}
		if ready.close(); room.Used() != 0 {
			t.Errorf("%s: %d bytes are taken when it is answered", on, room.Used())
		}
	}
}

// What duplicates take for their response: a small one each, without waiting; a large one, and that of a run for
// which they have waited, once for all of them.
func TestRoomOfReplays(t *testing.T) {
	const small = budget.SmallReplay
	for _, test := range []struct {
		size         int
		waited, full bool // full: others have taken all room
		want         int  // bytes that two duplicates take; -1 if they wait for room
	}{
		{small, false, false, 2 * small},
		{small, false, true, 2 * small},
		{small, true, false, small},
		{small, true, true, small},
		{small + 1, false, false, small + 1},
		{small + 1, false, true, -1},
		{small + 1, true, false, small + 1},
		{small + 1, true, true, small + 1},
	} {
		room := budget.New(1 << 20)
		others := budget.Allowance{Budget: room}
		if test.full {
			others.Count(1 << 20)
		}
		before := room.Used()
		handler := New(Config{OnDuplicate: idempotency.ReplayDuplicate, Budget: room})
		duplicate := engine.Replay{
			Record: &idempotency.Record{LargeBody: test.size}, Response: &idempotency.Response{Status: 201, Body: make([]byte, test.size)}, Waited: test.waited,
		}
		gone, cancel := context.WithCancel(t.Context()) // ends the wait for room
		cancel()
		for range 2 {
			x := &exchange{Handler: handler, w: httptest.NewRecorder(), r: httptest.NewRequest("POST", "/", nil).WithContext(gone)}
			x.Allowance.Budget = room
			_, ready, err := x.prepareReplay(nil, duplicate)
			if (err != nil) != (test.want < 0) {
				t.Errorf("%+v: %v", test, err)
			}
			defer x.Allowance.ReleaseAll()
			defer ready.close()
		}
		if got := int(room.Used() - before); got != max(test.want, 0) {
			t.Errorf("%+v: %d bytes are taken", test, got)
		}
	}
}
