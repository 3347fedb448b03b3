package caddymodule

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Dedup-Key is the key of the operation, for every attempt of it. A client's own never arrives, but under
// observe, which changes nothing.
func TestDedupKeyNamesTheOperation(t *testing.T) {
	const own = "a client's own"
	const away = "store redis redis://" + nothing + "\non_store_error pass"
	type step struct {
		key   string   // Idempotency-Key
		more  []string // header fields
		wants string   // the field: "key", "other" for the key of no record, "forced", "own", or "" for none
	}
	force := []string{"X-Force", "true"}
	for name, c := range map[string]struct {
		lines []string
		steps []step
	}{
		"every attempt":             {[]string{"dedup"}, []step{{"fails", nil, "key"}, {"fails", nil, "key"}}},
		"without a key":             {[]string{"dedup"}, []step{{"", nil, ""}}},
		"other methods":             {[]string{"dedup {\nmethods PUT\n}"}, []step{{"k", nil, ""}}},
		"under observe":             {[]string{"dedup {\nobserve\n}"}, []step{{"k", nil, "own"}}},
		"observed in front":         {[]string{"dedup {\nobserve\n}", "dedup"}, []step{{"k", nil, "key"}}},
		"unprotected":               {[]string{"dedup {\n" + away + "\n}"}, []step{{"k", nil, "key"}, {"k", nil, "key"}}},
		"the last one that claims":  {[]string{"dedup {\nscope shared outer\n}", "dedup"}, []step{{"k", nil, "key"}}},
		"none behind that claims":   {[]string{"dedup", "dedup github"}, []step{{"k", nil, "other"}}},
		"a forced run":              {[]string{"dedup {\nforce X-Force\n}"}, []step{{"k", nil, "key"}, {"k", force, "forced"}}},
		"a forced run that replays": {[]string{"dedup {\nforce X-Force\n}"}, []step{{"k", force, "key"}}},
		"an agent's call": {[]string{"dedup {\nmode mcp\nkey header Idempotency-Key\n}"},
			[]step{{"k", nil, "key"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan http.Header, 10)
			address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				got <- r.Header
				w.Header().Set("X-Key", r.Header.Get("X-Key"))
				if r.Header.Get("Idempotency-Key") == "fails" {
					w.WriteHeader(500)
				}
			})
			lines := slices.Concat([]string{"route {"}, c.lines, []string{"request_header X-Key {http.dedup.key}", "reverse_proxy " + address, "}"})
			s := serve(t, lines...)
			for i, step := range c.steps {
				body := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x"}}`
				s.mustPost(step.key, body, slices.Concat(step.more, []string{"Dedup-Key", own, "Content-Type", "application/json"})...)
				header := <-got
				key, values := header.Get("X-Key"), header["Dedup-Key"]
				var ok bool
				switch step.wants {
				case "":
					ok = len(values) == 0
				case "own":
					ok = len(values) == 1 && values[0] == own
				case "key":
					ok = len(key) == 64 && len(values) == 1 && values[0] == key
				case "other":
					ok = len(values) == 1 && len(values[0]) == 64
				case "forced":
					ok = len(values) == 1 && len(values[0]) == 64 && values[0] != key && strings.HasPrefix(values[0], key[:16])
				}
				if !ok {
					t.Errorf("step %d: the upstream got Dedup-Key %q; want %q, and the key is %q", i+1, values, step.wants, key)
				}
			}
		})
	}
}

// Every attempt to replace one run has one key, and the next run that is replaced has another.
func TestDedupKeyOfForcedRuns(t *testing.T) {
	var keys []string
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		keys = append(keys, r.Header.Get("Dedup-Key"))
		if n == 2 {
			w.WriteHeader(500)
		}
	})
	s := serve(t, "dedup {", "force X-Force", "}", "reverse_proxy "+address)
	s.mustPost("k", "body")
	for range 3 {
		s.mustPost("k", "body", "X-Force", "true")
	}
	if len(keys) != 4 || keys[1] != keys[2] || keys[3] == keys[2] || keys[1] == keys[0] {
		t.Errorf("the keys are %q; want the second and third equal, and no others", keys)
	}
}
