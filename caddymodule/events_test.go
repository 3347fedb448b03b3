package caddymodule

import (
	"context"
	"maps"
	"net/http"
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
	wantEvent := func(name string, attempt int) {
		t.Helper()
		page, _, err := s.keys.List(t.Context(), "", 1)
		if err != nil || len(page) != 1 {
			t.Fatalf("%v, %v", page, err)
		}
		select {
		case got := <-told:
			want := map[string]any{
				"key": page[0].Key.String(), "provider": "", "delivery_id": "k",
				"execution_id": page[0].Record.ExecutionID, "attempt": attempt,
			}
			if got.Name() != name || !maps.Equal(got.Data, want) {
				t.Errorf("got %s with %v, want %s with %v", got.Name(), got.Data, name, want)
			}
			if origin := got.Origin(); origin == nil || origin.CaddyModule().ID != "http.handlers.dedup" {
				t.Errorf("%s comes from %v", name, origin)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("no event %s", name)
		}
	}
	_, _ = s.post("k", "body")
	wantEvent("dedup.held", 1)
	page, _, _ := s.keys.List(t.Context(), "", 1)
	s.lapse(page[0].Key)
	_, _ = s.post("k", "body")
	wantEvent("dedup.takeover", 3)
	wantEvent("dedup.held", 3)
}
