package idempotency

import (
	"strings"
	"testing"
)

func TestInlineJSON(t *testing.T) {
	largest := `"` + strings.Repeat("x", MaxInlineJSON-2) + `"`
	for name, c := range map[string]struct {
		contentType, body string
		want              bool
	}{
		"JSON":               {"application/json", `{"id": 1}`, true},
		"with a charset":     {"application/json; charset=utf-8", `[]`, true},
		"a problem":          {"application/problem+json", `{}`, true},
		"the largest":        {"application/json", largest, true},
		"larger":             {"application/json", largest + " ", false},
		"text":               {"text/plain", `{}`, false},
		"no type":            {"", `{}`, false},
		"no JSON":            {"application/json", `{`, false},
		"not UTF-8":          {"application/json", "\"\xff\"", false},
		"nothing":            {"application/json", "", false},
		"two values, a type": {"application/json", `{} {}`, false},
	} {
		r := &Response{Body: []byte(c.body)}
		if c.contentType != "" {
			r.Header = map[string][]string{"Content-Type": {c.contentType}}
		}
		if got := r.InlineJSON(); (got != nil) != c.want || c.want && string(got) != c.body {
			t.Errorf("%s: got %q, want it: %v", name, got, c.want)
		}
	}
	if (*Response)(nil).InlineJSON() != nil {
		t.Error("no response has JSON")
	}
}
