package caddymodule

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// eventReader is an event handler that hands on what it is told.
type eventReader struct{}

// told is what the event handlers of the tests were told.
var told = make(chan caddy.Event, 10)

func init() { caddy.RegisterModule(new(eventReader)) }

func (*eventReader) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "events.handlers.dedup_test", New: func() caddy.Module { return new(eventReader) }}
}

func (*eventReader) UnmarshalCaddyfile(*caddyfile.Dispenser) error { return nil }

func (*eventReader) Handle(_ context.Context, e caddy.Event) error {
	told <- e
	return nil
}

func TestEventsOfRuns(t *testing.T) {
	address, _ := upstream(t, func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) })
	s := serveWith(t, "}\nevents {\non dedup.held dedup_test\non dedup.takeover dedup_test", "dedup {", "unknown hold", "}", "reverse_proxy "+address)
	if err := s.handler().events.app.Start(); err != nil {
		t.Fatal(err)
	}
	// Nobody waits for one before the next is told: they come in any order.
	wantEvents := func(attempt int, names ...string) {
		t.Helper()
		page, _, err := s.keys.List(t.Context(), "", 1)
		if err != nil || len(page) != 1 {
			t.Fatalf("%v, %v", page, err)
		}
		want := map[string]any{
			"key": page[0].Key.String(), "provider": "", "delivery_id": "k",
			"execution_id": page[0].Record.ExecutionID, "attempt": attempt,
		}
		var came []string
		for range names {
			select {
			case got := <-told:
				came = append(came, got.Name())
				if !maps.Equal(got.Data, want) {
					t.Errorf("got %s with %v, want %v", got.Name(), got.Data, want)
				}
				if origin := got.Origin(); origin == nil || origin.CaddyModule().ID != "http.handlers.dedup" {
					t.Errorf("%s comes from %v", got.Name(), origin)
				}
			case <-time.After(10 * time.Second):
				t.Fatalf("after %q no event comes; want %q", came, names)
			}
		}
		if slices.Sort(came); !slices.Equal(came, names) {
			t.Errorf("the events are %q, want %q", came, names)
		}
	}
	_, _ = s.post("k", "body")
	wantEvents(1, "dedup.held")
	page, _, _ := s.keys.List(t.Context(), "", 1)
	s.lapse(page[0].Key)
	_, _ = s.post("k", "body")
	wantEvents(3, "dedup.held", "dedup.takeover")
}
