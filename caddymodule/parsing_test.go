package caddymodule

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
)

// What a body is parsed into counts. Where it alone would take more than the limit the body is too
// large; where others have taken it the request is refused.
func TestRoomForParsing(t *testing.T) {
	body := `{"id":1,"list":[` + strings.Repeat("0,", 15_000) + `0]}` // 300 kB parsed
	const small, large = "limits {\nbuffered 256KiB\n}", "limits {\nbuffered 512KiB\n}"
	for name, lines := range map[string]string{
		"a member":       "key json /id",
		"the content":    "key content\nexclude /*/*",
		"a fingerprint":  "key header Idempotency-Key\nfingerprint json",
		"a placeholder":  "key value {http.dedup.json./id}",
		"the scope":      "key header Idempotency-Key\nscope {http.dedup.json./id}",
		"a large member": "key header Idempotency-Key\nscope {http.dedup.json./list}",
	} {
		for _, mode := range []string{"api", "webhook"} {
			t.Run(name+" "+mode, func(t *testing.T) {
				var got string
				var running int64 // bytes that are taken while the upstream answers
				address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
					running = buffered.Used()
					answers(201, "done")(w, r, n)
				})
				serve := func(global string) *site {
					return serveWith(t, global, "header >X-Outcome {http.dedup.outcome}", "dedup {\nmode "+mode, lines, "}", "reverse_proxy "+address)
				}
				s := serve(small)
				logged := s.logged(zap.InfoLevel)
				const limit = "limits { buffered }, 262144 bytes"
				if answered := s.mustPost("k", body); mode == "api" {
					answered.problem(t, 413, "request_too_large")
					got = answered.body
				} else if answered.status != 201 || answered.header.Get("X-Outcome") != "missing" {
					t.Errorf("too large, it gets %+v", answered)
				} else if all := logged.FilterMessageSnippet("missing: ").All(); len(all) == 1 {
					got = all[0].ContextMap()["reason"].(string)
				}
				if !strings.Contains(got, limit) {
					t.Errorf("the reason is %q; want that it names %s", got, limit)
				}
				s.stop()

				s = serve(large)
				others := &budget.Allowance{Budget: buffered}
				defer others.ReleaseAll()
				others.Count(400 << 10)
				s.mustPost("k", body).problem(t, 503, "overloaded")
				others.ReleaseAll()
				if answered := s.mustPost("k", body); name != "a large member" && answered.header.Get("X-Outcome") != "executed" {
					t.Errorf("with room, it gets %+v", answered)
				}
				if running > 100<<10 {
					t.Errorf("%d bytes are taken while the request runs", running)
				}
				s.stop()
				if held := buffered.Used(); held != 0 {
					t.Errorf("%d bytes are taken after the last request", held)
				}
			})
		}
	}
}

// A member that a handler behind asks for is empty where there is no room to parse the body.
func TestRoomForMembersBehind(t *testing.T) {
	body := `{"id":1,"list":[` + strings.Repeat("0,", 15_000) + `0]}`
	others := &budget.Allowance{Budget: buffered}
	defer others.ReleaseAll()
	var got string
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		got = r.Header.Get("X-Member")
		_, _ = io.Copy(io.Discard, r.Body)
	})
	s := serveWith(t, "limits {\nbuffered 512KiB\n}", "dedup", "reverse_proxy "+address+" {", "header_up X-Member {http.dedup.json./id}", "}")
	for taken, want := range map[int]string{0: "1", 300 << 10: ""} {
		others.Count(taken)
		if answered := s.mustPost(want+"k", body); answered.status != 200 || got != want {
			t.Errorf("with %d bytes taken it is %q in front of %d; want %q", taken, got, answered.status, want)
		}
		others.ReleaseAll()
	}
}
