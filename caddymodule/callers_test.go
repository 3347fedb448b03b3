package caddymodule

import (
	"fmt"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

// A caller that nothing in the key tells apart is warned of once, with the line to write.
func TestScopeAnonymousCallers(t *testing.T) {
	address, _ := upstream(t, answers(201, "done"))
	for name, c := range map[string]struct {
		line   string
		header []string
		warned string // the caller to write
	}{
		"a cookie":                {"", []string{"Cookie", "session=a"}, "{http.request.cookie.<name>}"},
		"a cookie and no user":    {"", []string{"Cookie", "session=a", "Authorization", ""}, "{http.request.cookie.<name>}"},
		"nothing":                 {"", nil, "{http.request.header.<field>}"},
		"an unknown field":        {"", []string{"X-My-Token", "a"}, "{http.request.header.<field>}"},
		"an account, no caller":   {"", []string{"Stripe-Account", "acct_1", "X-Tenant-Id", "a"}, "{http.request.header.<field>}"},
		"a cookie and a user":     {"", []string{"Cookie", "session=a", "Authorization", "Bearer a"}, ""},
		"a cookie and an API key": {"", []string{"Cookie", "session=a", "Api-Key", "a"}, ""},
		"a user of a proxy":       {"", []string{"X-Forwarded-User", "a"}, ""},
		"a scope of its own":      {"scope {http.request.cookie.session}", []string{"Cookie", "session=a"}, ""},
		"a caller of its own":     {"caller {http.request.cookie.session}", []string{"Cookie", "session=a"}, ""},
		"an absent own caller":    {"caller {http.request.cookie.other}", []string{"Cookie", "session=a"}, "{http.request.cookie.<name>}"},
		"a webhook":               {"mode webhook", []string{"Cookie", "session=a"}, ""},
	} {
		s := serve(t, "dedup {", c.line, "}", "reverse_proxy "+address)
		core, logged := observer.New(zap.WarnLevel)
		s.handler().exchange.Logger = zap.New(core)
		s.mustPost("", "body", "Cookie", "session=a") // without a key there is nothing to share
		for _, key := range []string{"1", "2"} {
			s.mustPost(key, "body", c.header...)
		}
		lines := logged.FilterMessageSnippet("no field by which dedup knows its caller").All()
		if (len(lines) != 0) != (c.warned != "") || len(lines) > 1 {
			t.Errorf("%s: the warnings are %v, want %q once", name, lines, c.warned)
		}
		for _, line := range lines {
			caller := fmt.Sprint(line.ContextMap()["caller"])
			if caller != "caller "+c.warned || handlerOf(strings.NewReplacer("<name>", "session", "<field>", "X-My-Token").Replace(caller)) != nil {
				t.Errorf("%s: the line to write is %q", name, caller)
			}
		}
		s.stop()
	}
}

// What a caller is known by is no key, which is stored readable, if it is a secret, and no field
// that force removes: callers would share keys.
func TestCallersFieldsAreNoKeys(t *testing.T) {
	for _, field := range append(exchange.CredentialFields, "Cookie", "Proxy-Authorization") {
		lower := strings.ToLower(field)
		for _, line := range []string{"key header " + lower, "key value {http.request.header." + field + "}", "key parts p {\nheader " + field + "\n}"} {
			if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), "carries a credential, and keys are stored readable") {
				t.Errorf("%s: %v", line, err)
			}
		}
	}
	for _, field := range append(append(exchange.CredentialFields, exchange.UserFields...), exchange.AccountFields...) {
		if err := handlerOf("force " + strings.ToLower(field)); err == nil || !strings.Contains(err.Error(), "has a meaning of its own") {
			t.Errorf("force %s: %v", field, err)
		}
	}
	if err := handlerOf("key header Stripe-Account"); err != nil {
		t.Error(err)
	}
}
