package caddymodule

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A caller that nothing in the key tells apart, and a field that may name the caller, are warned of once, with
// the line to write.
func TestWarningsAboutCallers(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
	const anonymous, unlisted, ownScope = "no field by which dedup knows its caller", "may name its caller", "nothing in the scope of this handler names the caller"
	known, both := []string{"Authorization", "Bearer a"}, []string{"Authorization", "Bearer a", "Cookie", "session=s"}
	for _, c := range []struct {
		name, message, line string
		header              []string
		warned              string // the caller to write, "" for no warning
	}{
		{"a cookie", anonymous, "", []string{"Cookie", "session=a"}, "{http.request.cookie.<name>}"},
		{"a cookie and no user", anonymous, "", []string{"Cookie", "session=a", "Authorization", ""}, "{http.request.cookie.<name>}"},
		{"nothing", anonymous, "", nil, "{http.request.header.<field>}"},
		{"an unknown field", anonymous, "", []string{"X-My-Token", "a"}, "{http.request.header.<field>}"},
		{"an account, no caller", anonymous, "", []string{"Stripe-Account", "acct_1", "X-Tenant-Id", "a"}, "{http.request.header.<field>}"},
		{"a cookie and a user", anonymous, "", []string{"Cookie", "session=a", "Authorization", "Bearer a"}, ""},
		{"a cookie and an API key", anonymous, "", []string{"Cookie", "session=a", "Api-Key", "a"}, ""},
		{"a user of a proxy", anonymous, "", []string{"X-Forwarded-User", "a"}, ""},
		{"a scope of its own", anonymous, "scope {http.request.cookie.session}", []string{"Cookie", "session=a"}, ""},
		{"a caller of its own", anonymous, "caller {http.request.cookie.session}", []string{"Cookie", "session=a"}, ""},
		{"an absent own caller", anonymous, "caller {http.request.cookie.other}", []string{"Cookie", "session=a"}, "{http.request.cookie.<name>}"},
		{"a webhook", anonymous, "mode webhook", []string{"Cookie", "session=a"}, ""},
		{"a user", unlisted, "", append(known, "X-User", "a"), "{http.request.header.X-User}"},
		{"a word of the name", unlisted, "", append(known, "X-Shop-Account-Id", "a"), "{http.request.header.X-Shop-Account-Id}"},
		{"an email", unlisted, "", append(known, "X-Goog-Authenticated-User-Email", "a"), "{http.request.header.X-Goog-Authenticated-User-Email}"},
		{"several", unlisted, "", append(known, "X-User", "a", "X-Principal", "a", "X-Account", "a", "X-Email", "a", "X-Consumer", "a"), "{http.request.header.X-Account}"},
		{"empty", unlisted, "", append(known, "X-User", ""), ""},
		{"listed", unlisted, "", append(known, "X-Forwarded-User", "a"), ""},
		{"a user agent", unlisted, "", append(known, "X-User-Agent", "a", "X-Original-User-Agent", "a", "X-User-Agent-Version", "a"), ""},
		{"no word of it", unlisted, "", append(known, "X-Usermode", "a", "User", "a", "X-Request-Id", "a"), ""},
		{"written as caller", unlisted, "caller {http.request.header.x-user}", append(known, "X-User", "a"), ""},
		{"the key", unlisted, "key header X-User-Key", append(known, "X-User-Key", "a"), ""},
		{"nothing identifies it", unlisted, "", []string{"X-User", "a"}, ""}, // which has a line of its own
		{"a scope of its own", unlisted, "scope {http.request.header.Authorization}", append(known, "X-User", "a"), ""},
		{"a webhook", unlisted, "mode webhook", append(known, "X-User", "a"), ""},
		{"own scope", ownScope, "scope {http.request.host}", both, "any"},
		{"own scope", ownScope, "scope {env.HOME} {http.request.orig_uri.path}", both, "any"},
		{"own scope", ownScope, "scope {http.request.header.Authorisation}", both, "any"}, // misspelt, and so always empty
		{"own scope", ownScope, "scope {http.auth.user.id}", both, "any"},                 // no handler authenticates
		{"own scope", ownScope, "scope {http.request.host} {http.request.header.Authorization}", both, ""},
		{"own scope", ownScope, "scope {http.request.cookie.session}", both, ""},
		{"own scope", ownScope, "scope {http.dedup.json./user}", both, ""},
		{"own scope", ownScope, "scope shared", both, ""},
		{"own scope", ownScope, "scope shared runs", both, ""},
		{"own scope", ownScope, "mode webhook\nscope {http.request.host}", both, ""},
		{"own scope", ownScope, "", both, ""},
	} {
		s := serve(t, "dedup {", c.line, "}", "reverse_proxy "+address)
		logged := s.logged(zap.WarnLevel)
		s.mustPost("", "body", c.header...) // without a key there is nothing to share
		for _, key := range []string{"1", "2"} {
			s.mustPost(key, `{"user":"u"}`, c.header...)
		}
		lines := logged.FilterMessageSnippet(c.message).All()
		if (len(lines) == 1) != (c.warned != "") || len(lines) > 1 {
			t.Errorf("%s, %q: the warnings are %v, want %q once", c.name, c.line, lines, c.warned)
		}
		for _, line := range lines {
			caller := fmt.Sprint(line.ContextMap()["caller"])
			written := strings.NewReplacer("<name>", "session", "<field>", "X-My-Token").Replace(caller)
			if c.warned != "any" && (caller != "caller "+c.warned || handlerOf(written) != nil) {
				t.Errorf("%s: the line to write is %q", c.name, caller)
			}
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
		"dedup {\nscope {http.request.header.X-Organization}\n}":                                                            {"Idempotency-Key", "X-Organization"},
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

// Names of members may have full stops and commas, but mostly a path is meant.
func TestWarningAboutPointersWithFullStops(t *testing.T) {
	h := new(Handler)
	if err := h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(`dedup {
		key json /data.id
		key parts p {
			json /a.b
			value x{http.dedup.json./c.d}
		}
		key content
		exclude /data.sent_at /x,y /fine ?a.b
		release_if /error.code
		retention_from json /ttl.seconds
		scope {http.dedup.json./tenant.id}
	}`)); err != nil {
		t.Fatal(err)
	}
	core, logged := observer.New(zap.WarnLevel)
	h.warnOfPointers(zap.New(core))
	got := make(map[string]string)
	for _, line := range logged.All() {
		got[line.ContextMap()["pointer"].(string)] = line.ContextMap()["did_you_mean"].(string)
	}
	want := map[string]string{
		"/data.id": "/data/id", "/a.b": "/a/b", "/c.d": "/c/d", "/data.sent_at": "/data/sent_at", "/x,y": "/x /y",
		"/error.code": "/error/code", "/ttl.seconds": "/ttl/seconds", "/tenant.id": "/tenant/id",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the warnings are %v, want %v", got, want)
	}
}
