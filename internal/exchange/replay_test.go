package exchange

import (
	"context"
	"errors"
	"io"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// What duplicates take for their response: a small one each, without waiting; a large one, and that of a run for
// which they have waited, once for all of them. Those that have waited get it whatever on_duplicate says.
func TestRoomOfReplays(t *testing.T) {
	const small, replay = budget.SmallReplay, idempotency.ReplayDuplicate
	for _, test := range []struct {
		on           idempotency.OnDuplicate
		size         int
		waited, full bool // full: others have taken all room
		want         int  // bytes that two duplicates take; -1 if they wait for room
	}{
		{replay, small, false, false, 2 * small},
		{replay, small, false, true, 2 * small},
		{replay, small, true, false, small},
		{replay, small, true, true, small},
		{replay, small + 1, false, false, small + 1},
		{replay, small + 1, false, true, -1},
		{replay, small + 1, true, false, small + 1},
		{replay, small + 1, true, true, small + 1},
		{idempotency.ConflictDuplicate, small + 1, true, false, small + 1},
		{idempotency.AcknowledgeDuplicate, small + 1, true, false, small + 1},
		{idempotency.SeeOtherDuplicate, small + 1, true, false, small + 1},
	} {
		room := budget.New(1 << 20)
		others := budget.Allowance{Budget: room}
		if test.full {
			others.Count(1 << 20)
		}
		before := room.Used()
		handler := New(Config{OnDuplicate: test.on, Budget: room})
		response := &idempotency.Response{Status: 201, Header: map[string][]string{"Location": {"/1"}}, Body: make([]byte, test.size)}
		duplicate := engine.Replay{Record: &idempotency.Record{LargeBody: test.size}, Response: response, Waited: test.waited}
		gone, cancel := context.WithCancel(t.Context()) // ends the wait for room
		cancel()
		var end []func()
		for range 2 {
			x := &exchange{Handler: handler, w: httptest.NewRecorder(), r: httptest.NewRequest("POST", "/", nil).WithContext(gone)}
			x.Allowance.Budget = room
			_, ready, err := x.prepareReplay(nil, duplicate)
			if (err != nil) != (test.want < 0) || err == nil && ready.answer.Response != response {
				t.Errorf("%+v: %+v, %v", test, ready.answer, err)
			}
			end = append(end, x.Allowance.ReleaseAll, ready.close)
		}
		if got := int(room.Used() - before); got != max(test.want, 0) {
			t.Errorf("%+v: %d bytes are taken", test, got)
		}
		for _, release := range end {
			release()
		}
		if got := room.Used() - before; got != 0 {
			t.Errorf("%+v: %d bytes are taken when they are answered", test, got)
		}
	}
}

// A response that has to be read from the store is read in room of its own, when the request has given up its body and
// the room for it. What cannot be read is a refusal, beside the record of the run.
func TestReplayReadsTheResponse(t *testing.T) {
	const size = 2 * budget.SmallReplay
	response := &idempotency.Response{Status: 201, Body: make([]byte, size)}
	failed, gone := errors.New("the store failed"), errors.New("the client has gone")
	for name, test := range map[string]struct {
		response *idempotency.Response
		err      error
		leaves   bool // the client, while the store is read
		reason   engine.Reason
	}{
		"read":        {response: response},
		"gone":        {reason: engine.ReasonUnavailable},
		"failed":      {err: failed, reason: engine.ReasonUnavailable},
		"unreadable":  {err: &idempotency.UnreadableError{Err: failed}, reason: engine.ReasonUnreadable},
		"client gone": {err: failed, leaves: true},
	} {
		t.Run(name, func(t *testing.T) {
			room := budget.New(10 * size) // of which replays get nine tenths
			others := budget.Allowance{Budget: room}
			others.Count(8*size - 2000)
			before := room.Used()
			ctx, leave := context.WithCancelCause(t.Context())
			r := httptest.NewRequest("POST", "/", strings.NewReader("body")).WithContext(ctx)
			c := Config{OnDuplicate: idempotency.ReplayDuplicate, Budget: room}
			c.Identify.MaxRequestBody = 100
			x := &exchange{Handler: New(c), w: httptest.NewRecorder(), r: r}
			x.Allowance.Budget = room
			x.Body.Init(x.w, r, 100, &x.Allowance)
			if err := x.Body.ReadAll(); err != nil {
				t.Fatal(err)
			}
			x.Allowance.Count(1000)
			store := &storepool.Store{Engine: engineOn(t, &reading{memory.New(1 << 20), func() (*idempotency.Response, error) {
				if left, _ := io.ReadAll(r.Body); len(left) > 0 || room.Used() != before+size {
					t.Errorf("while the response is read, %q of the body is held, and %d bytes are taken", left, room.Used()-before)
				}
				if test.leaves {
					leave(gone)
				}
				return test.response, test.err
			}})}

			duplicate := engine.Replay{Record: &idempotency.Record{LargeBody: size, Token: "token"}, Differs: true, Waited: true}
			decision, ready, err := x.prepareReplay(store, duplicate)
			switch d := decision.(type) {
			case engine.Replay:
				if test.response == nil || d.Response != response || ready.answer.Response != response || ready.answer.Kind != idempotency.AnswerWaited {
					t.Errorf("it is answered with %+v, %+v", d, ready.answer)
				}
				if got := room.Used() - before; got != size {
					t.Errorf("%d bytes are taken for the response", got)
				}
			case engine.Refusal:
				if d.Reason != test.reason || d.Record != duplicate.Record || !d.Differs || d.Err == nil {
					t.Errorf("it is refused with %+v", d)
				}
			default:
				if !test.leaves || !errors.Is(err, gone) {
					t.Errorf("got %v, %v", decision, err)
				}
			}
			ready.close()
			x.Allowance.ReleaseAll()
			if got := room.Used() - before; got != 0 {
				t.Errorf("%d bytes stay taken", got)
			}
		})
	}
}

// reading is a store whose responses are those of response.
type reading struct {
	idempotency.Store
	response func() (*idempotency.Response, error)
}

func (s *reading) Response(context.Context, idempotency.Key, string) (*idempotency.Response, error) {
	return s.response()
}
