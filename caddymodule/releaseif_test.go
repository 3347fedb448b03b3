package caddymodule

import (
	"cmp"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A response whose JSON says that the request failed releases the key, and its record and log say by
// which member, without its body.
func TestReleaseIf(t *testing.T) {
	logOutput = "book"
	t.Cleanup(func() { logOutput = "discard" })
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if retention := r.Header.Get("X-Retention"); retention != "" {
			w.Header().Set("Dedup-Retention", retention)
		}
		status, _ := strconv.Atoi(cmp.Or(r.Header.Get("X-Status"), "200"))
		w.WriteHeader(status)
		if r.Header.Get("X-Stream") != "" {
			_ = http.NewResponseController(w).Flush()
		}
		_, _ = io.WriteString(w, r.Header.Get("X-Says"))
	})
	const errors, retry, fine = `{"errors": ["s3cret"]}`, `{"status": "RETRY", "why": "s3cret"}`, `{"status": "SUCCESS", "errors": []}`
	const said = "the response says that the request failed: release_if "
	const complete, released = idempotency.Complete, idempotency.Released
	both := []string{"release_if /errors", "release_if /status RETRY DROP"}
	for name, c := range map[string]struct {
		block   []string
		header  []string // of each request
		state   idempotency.State
		reason  string
		attempt int // after three requests
	}{
		"any value":              {both, []string{"X-Says", errors}, released, said + "/errors", 3},
		"a value":                {both, []string{"X-Says", retry}, released, said + "/status RETRY", 3},
		"not configured":         {nil, []string{"X-Says", errors}, complete, "", 1},
		"a stream":               {both, []string{"X-Says", errors, "X-Stream", "1"}, released, said + "/errors", 3},
		"release_on off":         {append(both, "release_on off"), []string{"X-Says", errors, "X-Status", "500"}, released, said + "/errors", 3},
		"a retention of its own": {both, []string{"X-Says", errors, "X-Retention", "60"}, released, said + "/errors", 3},
		"the last attempt":       {append(both, "max_attempts 2"), []string{"X-Says", errors, "X-Retention", "60"}, complete, "", 2},
		"too large":              {append(both, "max_response_body 9"), []string{"X-Says", errors}, complete, "the response was not kept: it is larger than max_response_body, 9 bytes", 1},
	} {
		t.Run(name, func(t *testing.T) {
			book.clear()
			s := serve(t, "dedup {", strings.Join(c.block, "\n"), "}", "reverse_proxy "+address)
			for n := range 3 {
				got := s.mustPost("k", "body", c.header...)
				if replayed := got.header.Get("Idempotent-Replayed") != ""; replayed != (n >= c.attempt) && name != "too large" {
					t.Errorf("request %d: replayed: %v", n+1, replayed)
				}
			}
			if r := s.only(); r.State != c.state || r.Reason != c.reason || r.Attempt != c.attempt {
				t.Errorf("the record is %s with %q after %d attempts; want %s with %q after %d", r.State, r.Reason, r.Attempt, c.state, c.reason, c.attempt)
			}
			want := 0
			if c.reason != "" && c.state == released {
				want = c.attempt
			}
			if lines := book.about("released", "error", c.reason); len(lines) != want && c.state == released {
				t.Errorf("%d lines give the reason %q, want %d", len(lines), c.reason, want)
			}
			for _, line := range book.about("released") {
				if why := line.text("error"); strings.Contains(why, "s3cret") {
					t.Errorf("the body is logged: %s", why)
				}
			}
		})
	}
}
