package caddymodule

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// A server may answer before its configuration has opened the store, and goes on for a moment
// where that fails. A run by then would be one of a configuration that was never loaded.
func TestNothingRunsBeforeTheStoreIsOpen(t *testing.T) {
	address, runs := upstream(t, answers(201, "done"))
	app, web := provision(t, "", "dedup {", "store_errors pass", "}", "reverse_proxy "+address)
	s := &site{t: t, app: app}
	for _, server := range web.Servers {
		s.Server = httptest.NewServer(server)
	}
	defer s.Close()
	got := s.mustPost("k", "body")
	if got.status != 503 || got.header.Get("Retry-After") == "" || !strings.Contains(got.body, "store_unavailable") || runs.Load() != 0 {
		t.Errorf("got %d %v %s, after %d runs", got.status, got.header, got.body, runs.Load())
	}
	if err := app.Start(); err != nil {
		t.Fatal(err)
	}
	if got := s.mustPost("k", "body"); got.status != 201 {
		t.Errorf("the store is open, and a request got %d %s", got.status, got.body)
	}
	store := app.started[0].Store()
	if err := app.Cleanup(); err != nil {
		t.Error(err)
	}
	<-store.Gone()
}
