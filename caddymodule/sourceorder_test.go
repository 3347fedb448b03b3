package caddymodule

import (
	"fmt"
	"strings"
	"testing"
)

// The first source that is present wins, and one that cannot be an ID keeps no later one, nor the
// scope, from being read.
func TestFirstPresentSourceWins(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
	bodies := map[string]string{"absent": `{"n":1}`, "unusable": `{"a":{"x":1}}`, "present": `{"a":"f"}`}
	sources := map[string]string{
		"json":            "key json /a first",
		"value":           "key value {http.dedup.json./a} first",
		"value of two":    "key value {http.dedup.json./a}-{http.request.header.X-Part} first",
		"parts":           "key parts first {\njson /a\nvalue {http.request.header.X-Part}\n}",
		"mapped, a value": "key value {mapped} first",
	}
	seconds := map[string]string{
		"a field":    "key header X-Id second",
		"a value":    "key value {http.request.header.X-Id} second",
		"a member":   "key json /n second",
		"no other":   "",
		"own scope":  "key header X-Id second\nscope {http.request.host}",
		"its member": "key header X-Id second\nscope {http.request.host} {http.dedup.json./s}",
	}
	for kind, source := range sources {
		for second, lines := range seconds {
			s := serve(t, "header >X-Outcome {http.dedup.outcome}", "header >X-Provider {http.dedup.provider}",
				"map {http.request.host} {mapped} {", "default {http.dedup.json./a}", "}",
				"dedup {", source, lines, "}", "reverse_proxy "+address)
			for state, body := range bodies {
				if second == "a member" {
					body = strings.TrimSuffix(body, "}") + `,"n":"` + state[:1] + `"}`
					body = strings.Replace(body, `"n":1,`, "", 1)
				}
				got := s.mustPost("", body, "X-Id", state[:1], "X-Part", "p")
				want := map[string]string{"absent": "executed second", "unusable": "executed second", "present": "executed first"}[state]
				if second == "no other" && state != "present" {
					want = map[string]string{"absent": "missing ", "unusable": "unusable "}[state]
				}
				if is := fmt.Sprintf("%s %s", got.header.Get("X-Outcome"), got.header.Get("X-Provider")); is != want {
					t.Errorf("%s %s, then %s: got %q, want %q", kind, state, second, is, want)
				}
			}
			s.stop()
		}
	}
}
