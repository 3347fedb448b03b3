package caddymodule

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.uber.org/zap"
)

// A caller that nothing in the key tells apart is warned of once, with the line to write.
func TestScopeAnonymousCallers(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
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
		logged := s.logged(zap.WarnLevel)
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

// A field that may name the caller and is not part of the key is shown once, with the line to write.
func TestScopeUnlistedIdentity(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
	known := []string{"Authorization", "Bearer a"}
	for name, c := range map[string]struct {
		line   string
		header []string
		field  string
	}{
		"a user":                {"", append(known, "X-User", "a"), "X-User"},
		"a word of the name":    {"", append(known, "X-Shop-Account-Id", "a"), "X-Shop-Account-Id"},
		"an email":              {"", append(known, "X-Goog-Authenticated-User-Email", "a"), "X-Goog-Authenticated-User-Email"},
		"empty":                 {"", append(known, "X-User", ""), ""},
		"listed":                {"", append(known, "X-Forwarded-User", "a"), ""},
		"a user agent":          {"", append(known, "X-User-Agent", "a", "X-Original-User-Agent", "a", "X-User-Agent-Version", "a"), ""},
		"no word of it":         {"", append(known, "X-Usermode", "a", "User", "a", "X-Request-Id", "a"), ""},
		"written as caller":     {"caller {http.request.header.x-user}", append(known, "X-User", "a"), ""},
		"the key":               {"key header X-User-Key", append(known, "X-User-Key", "a"), ""},
		"nothing identifies it": {"", []string{"X-User", "a"}, ""}, // which has a line of its own
		"a scope of its own":    {"scope {http.request.header.Authorization}", append(known, "X-User", "a"), ""},
		"a webhook":             {"mode webhook", append(known, "X-User", "a"), ""},
	} {
		s := serve(t, "dedup {", c.line, "}", "reverse_proxy "+address)
		logged := s.logged(zap.WarnLevel)
		for _, key := range []string{"1", "2"} {
			s.mustPost(key, "body", c.header...)
		}
		lines := logged.FilterMessageSnippet("may name its caller").All()
		if (len(lines) == 1) != (c.field != "") || len(lines) > 1 {
			t.Errorf("%s: the warnings are %v, want one about %q", name, lines, c.field)
		}
		for _, line := range lines {
			if got := line.ContextMap()["caller"]; got != "caller {http.request.header."+c.field+"}" || handlerOf(fmt.Sprint(got)) != nil {
				t.Errorf("%s: the line to write is %v", name, got)
			}
		}
		s.stop()
	}
}

// A scope of one's own in which nothing names the caller is shown once, unless it is shared.
func TestOwnScopeAnonymousCallers(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
	for line, warned := range map[string]bool{
		"scope {http.request.host}":                                     true,
		"scope {env.HOME} {http.request.orig_uri.path}":                 true,
		"scope {http.request.header.Authorisation}":                     true, // misspelt, and so always empty
		"scope {http.auth.user.id}":                                     true, // nobody authenticates
		"scope {http.request.host} {http.request.header.Authorization}": false,
		"scope {http.request.cookie.session}":                           false,
		"scope {http.dedup.json./user}":                                 false,
		"scope shared":                                                  false,
		"scope shared runs":                                             false,
		"mode webhook\nscope {http.request.host}":                       false,
		"": false,
	} {
		s := serve(t, "dedup {", line, "}", "reverse_proxy "+address)
		logged := s.logged(zap.WarnLevel)
		for _, key := range []string{"1", "2"} {
			s.mustPost(key, `{"user":"u"}`, "Authorization", "Bearer a", "Cookie", "session=s")
		}
		if n := logged.FilterMessageSnippet("nothing in the scope of this handler names the caller").Len(); (n == 1) != warned || n > 1 {
			t.Errorf("%s: %d warnings, want any: %v", line, n, warned)
		}
		s.stop()
	}
}

// Connection takes no field from the upstream of which the claimed key is made.
func TestConnectionTakesNoKeyAway(t *testing.T) {
	for lines, fields := range map[string][]string{
		"dedup":        {"Idempotency-Key", "Authorization", "X-Api-Key", "X-Webauth-User", "Stripe-Account"},
		"dedup github": {"X-Github-Delivery", "X-Github-Hook-Id"},
		"dedup {\nkey parts p {\nheader X-Id\nvalue {http.request.header.X-Part}\n}\ncaller {http.request.header.X-Who}\n}": {"X-Id", "X-Part", "X-Who"},
		"dedup {\ncaller {http.request.cookie.session}\n}":                                                                  {"Idempotency-Key", "Cookie"},
	} {
		var got http.Header
		address, _ := startUpstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) { got = r.Header })
		s := serve(t, lines, "reverse_proxy "+address)
		header := []string{"X-Hop", "1", "Connection", "X-Hop, " + strings.ToLower(strings.Join(fields, ","))}
		for _, field := range fields {
			header = append(header, field, "1")
		}
		s.mustPost("", "body", header...)
		for _, field := range fields {
			if got.Get(field) != "1" {
				t.Errorf("%s: the upstream got no %s", lines, field)
			}
		}
		if got.Get("X-Hop") != "" {
			t.Errorf("%s: the upstream got a field that Connection names", lines)
		}
		s.stop()
	}
}
