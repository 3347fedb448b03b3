package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// A word that looks like a setting would be a constant: routes, hosts and callers would share keys.
func TestScopeWordsThatSeparateNothing(t *testing.T) {
	for line, want := range map[string]string{
		"scope method host path":              `scope: "method" is the same text in every request; write {http.request.method}`,
		"scope {http.request.host} HOST":      `"HOST" is the same text in every request; write {http.request.host}`,
		"scope {http.request.host} path":      "write {http.request.orig_uri.path}",
		"scope query":                         "write {http.request.orig_uri.query}",
		"scope user":                          "write {http.auth.user.id}",
		"scope caller":                        "leave scope out for the default, which has the caller",
		"scope default":                       "leave scope out for the default",
		"scope off":                           "write scope shared if all requests share their keys",
		"scope none":                          "write scope shared",
		"scope any":                           "write scope shared",
		"scope all":                           "write scope shared",
		"scope Authorization":                 "write {http.request.header.Authorization}",
		"scope x-tenant-id":                   "write {http.request.header.X-Tenant-Id}",
		"scope {http.request.host} X-Api-Key": "write {http.request.header.X-Api-Key}",
		"scope runs":                          "no word of it has a placeholder, so all requests would share their keys; write scope shared runs if that is meant",
		"scope runs jobs":                     "no word of it has a placeholder",
		"scope {http.request.host} shared":    "shared stands first, with at most a name behind it, as in scope shared runs",
		"scope {http.request.header.host}":    "{http.request.header.host} is always empty; write {http.request.host}",
		"scope shared a b":                    "shared stands first, with at most a name behind it",
		"scope shared {http.request.host}":    `"{http.request.host}" is not a name: with shared, no placeholder is replaced`,
	} {
		if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
	for _, line := range []string{
		"scope shared", "scope shared runs", "scope {http.request.host} runs", "scope a-{http.request.host}", "scope {env.REGION}",
	} {
		if err := handlerOf(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestCallerWords(t *testing.T) {
	for text, want := range map[string]string{
		"dedup {\ncaller session\n}": `caller: "session" is not one placeholder; write one such as {http.request.cookie.session} or {http.request.header.X-User}`,
		"dedup {\ncaller X-User\n}":  `"X-User" is not one placeholder`,
		"dedup {\ncaller \"{http.request.cookie.a} {http.request.cookie.b}\"\n}": "is not one placeholder",
		"dedup {\ncaller {http.request.cookie.session\n}":                        "without its closing brace",
		"dedup {\ncaller {http.request.uuid}\n}":                                 "changes with every request",
		"dedup {\ncaller {http.request.header.authorization}\n}":                 "tells callers apart by default; leave it out",
		"dedup {\ncaller {http.auth.user.id}\n}":                                 "tells callers apart by default; leave it out",
		"dedup {\ncaller {env.X}\n}":                                             "{env.X} is the same in every request",
		"dedup {\ncaller {http.request.cookie.a} {http.request.cookie.a}\n}":     "is named twice",
		"dedup {\ncaller {http.request.cookie.a}\nscope {http.request.host}\n}":  "caller and scope exclude each other: scope replaces the default, to which caller adds; add {http.request.cookie.a} to scope",
		"dedup github {\ncaller {http.request.cookie.a}\n}":                      "caller: mode webhook has no caller",
		"dedup {\nmode webhook\ncaller {http.request.cookie.a}\n}":               "caller: mode webhook has no caller",
		"dedup {\nforce X-Run\ncaller {http.request.header.X-Run}\n}":            "force: X-Run is a part of the scope",
		"dedup {\ncaller {http.dedup.json./a[0]}\n}":                             "/a/0",
		"dedup {\ncaller\n}": "caller lacks its arguments",
	} {
		if err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
	for _, text := range []string{
		"dedup {\ncaller {http.request.cookie.session} {http.request.header.X-User}\n}",
		"dedup {\nmode mcp\nkey json /params/arguments/id\ncaller {http.request.cookie.session}\n}",
		"dedup {\nmode api\nkey header X-Id\ncaller {http.dedup.json./user}\n}",
	} {
		if err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}
