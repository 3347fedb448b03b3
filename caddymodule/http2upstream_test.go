package caddymodule

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// http2Upstream is [upstream] over HTTP/2 without TLS.
func http2Upstream(t *testing.T, serve http.HandlerFunc) (address string, runs *atomic.Int64) {
	t.Helper()
	runs = new(atomic.Int64)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		_, _ = io.Copy(io.Discard, r.Body)
		serve(w, r)
	}))
	startHTTP2(server)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), runs
}

// With an upstream of HTTP/2 a run ends as with one of HTTP/1, for the store and for its
// client.
func TestEndsOverHTTP2(t *testing.T) {
	const complete, released, held = idempotency.Complete, idempotency.Released, idempotency.Held
	for name, c := range map[string]struct {
		upstream      http.HandlerFunc
		timeout       string
		status        int // that the client gets, 0 for a connection that is cut
		release, hold idempotency.State
	}{
		"answered": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "created")
		}, "1m", 201, complete, complete},
		"longer than timeout": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "300ms", 504, released, held},
		"cut off":             {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "1m", 502, released, held},
		// Its length was reached, and its end did not come.
		"cut off behind its last byte": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "created")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, "1m", 0, released, held},
	} {
		for unknown, want := range map[string]idempotency.State{"release": c.release, "hold": c.hold} {
			t.Run(name+" under "+unknown, func(t *testing.T) {
				address, runs := http2Upstream(t, c.upstream)
				s := serve(t, "dedup {", "on_unknown "+unknown, "timeout "+c.timeout, "}", "reverse_proxy h2c://"+address)
				got, err := s.post("k", "body")
				if err == nil && got.status != c.status || err != nil && c.status != 0 {
					t.Errorf("the client got %+v, %v; want %d", got, err, c.status)
				}
				if record := s.only(); record.State != want || runs.Load() != 1 {
					t.Errorf("the record is %s after %d runs; want %s after 1", record.State, runs.Load(), want)
				}
			})
		}
	}
}
