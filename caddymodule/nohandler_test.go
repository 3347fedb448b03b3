package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A sender takes an empty 200 for success. Where no handler has answered, it gets 500.
func TestNoHandler(t *testing.T) {
	address, _ := startUpstream(t, answers(200, ""))
	proxy := "reverse_proxy " + address
	swallows := "reverse_proxy " + address + " {\nhandle_response {\nvars x y\n}\n}"
	route := func(lines ...string) string { return "route {\n" + strings.Join(lines, "\n") + "\n}" }
	for name, c := range map[string]struct {
		site []string
		want int
	}{
		"nothing behind":               {[]string{"dedup"}, 500},
		"a matcher that misses":        {[]string{"dedup", "respond /other done"}, 500},
		"handlers that write nothing":  {[]string{route("dedup", "vars x y", "header X-A 1")}, 500},
		"a proxy in front":             {[]string{route("forward_auth "+address+" {\nuri /\n}", "dedup")}, 500},
		"a named route":                {[]string{"invoke shop\n}\n&(shop) {\ndedup\nreverse_proxy 127.0.0.1:1"}, 500}, // Caddy takes only its first directive
		"a webhook":                    {[]string{"dedup {\nmode webhook\nkey header Idempotency-Key\n}"}, 500},
		"one dedup behind another":     {[]string{route("dedup", "dedup {\nscope {http.request.host} inner\n}")}, 500},
		"a body too large for the key": {[]string{"dedup {\nmode webhook\nkey json /id\nmax_request_body 1\n}"}, 500},
		"routes behind":                {[]string{route(route("dedup"), proxy)}, 200},
		"an answer without a body":     {[]string{"dedup", "respond 200"}, 200},
		"a swallowed answer":           {[]string{route("dedup", swallows)}, 200},
		"another method":               {[]string{"dedup {\nmethods PUT\n}"}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, c.site...)
			for _, key := range []string{"k", "", "k"} {
				got := s.mustPost(key, "body")
				if got.status != c.want || (c.want == 500) != strings.Contains(got.body, `"code":"no_handler"`) {
					t.Errorf("with the key %q the client got %d %s", key, got.status, got.body)
				}
				if c.want == 500 && got.header.Get("Idempotent-Replayed") != "" {
					t.Errorf("with the key %q no_handler was replayed", key)
				}
			}
			if c.want != 500 {
				return
			}
			for _, kept := range s.listed() {
				// To a dedup in front, the refusal is an answer.
				if r := kept.Record; r.State != idempotency.Released || r.Attempt != 0 && name != "one dedup behind another" {
					t.Errorf("the key is %s after %d attempts, want it released after none", r.State, r.Attempt)
				}
			}
		})
	}
}
