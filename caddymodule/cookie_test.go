package caddymodule

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A caller that only a cookie tells apart is warned of once, with the scope to write.
func TestCallersThatOnlyACookieTellsApart(t *testing.T) {
	address, _ := upstream(t, answers(201, "done"))
	for name, c := range map[string]struct {
		line   string
		header []string
		warned int
	}{
		"a cookie":                {"", []string{"Cookie", "session=a"}, 1},
		"a cookie and no user":    {"", []string{"Cookie", "session=a", "Authorization", ""}, 1},
		"a cookie and a user":     {"", []string{"Cookie", "session=a", "Authorization", "Bearer a"}, 0},
		"a cookie and an API key": {"", []string{"Cookie", "session=a", "X-Api-Key", "a"}, 0},
		"nothing":                 {"", nil, 0},
		"a scope of its own":      {"scope {http.request.cookie.session}", []string{"Cookie", "session=a"}, 0},
		"a webhook":               {"mode webhook", []string{"Cookie", "session=a"}, 0},
	} {
		s := serve(t, "dedup {", c.line, "}", "reverse_proxy "+address)
		core, logged := observer.New(zap.WarnLevel)
		s.handler().exchange.Logger = zap.New(core)
		s.mustPost("", "body", "Cookie", "session=a") // without a key there is nothing to share
		for _, key := range []string{"1", "2"} {
			s.mustPost(key, "body", c.header...)
		}
		lines := logged.FilterMessageSnippet("by a Cookie only").All()
		if len(lines) != c.warned {
			t.Errorf("%s: the warnings are %v, want %d", name, lines, c.warned)
		}
		for _, line := range lines {
			if scope := fmt.Sprint(line.ContextMap()["scope"]); handlerOf(strings.ReplaceAll(scope, "<name>", "session")) != nil {
				t.Errorf("%s: the scope to write is %q", name, scope)
			}
		}
		s.stop()
	}
}
