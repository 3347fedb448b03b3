package exchange

import (
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
