package caddymodule

import (
	"strings"
	"testing"
)

// Some settings replace no placeholders. There, one would be the same text for all requests:
// tenants would share keys, or no body would have the member.
func TestPlaceholdersWhereNoneIsReplaced(t *testing.T) {
	for lines, want := range map[string]struct {
		text, place string
		json        Settings
	}{
		"key header X-Id {http.request.header.X-Tenant}": {`prefix: "{http.request.header.X-Tenant}" has the placeholder {http.request.header.X-Tenant}`, "Testfile:2",
			Settings{Keys: []KeySource{{Header: "X-Id", Prefix: "{http.request.header.X-Tenant}"}}}},
		"key content a-{http.request.host}": {`prefix: "a-{http.request.host}" has`, "Testfile:2",
			Settings{Keys: []KeySource{{Content: true, Prefix: "a-{http.request.host}"}}}},
		"key parts {tenant} {\ncontent\n}": {`prefix: "{tenant}" has`, "Testfile:",
			Settings{Keys: []KeySource{{Prefix: "{tenant}", Parts: []KeySource{{Content: true}}}}}},
		"key json /{env.MEMBER}": {`JSON pointer "/{env.MEMBER}" has the placeholder {env.MEMBER}`, "Testfile:2",
			Settings{Keys: []KeySource{{JSON: "/{env.MEMBER}"}}}},
		"key parts a {\njson /a/{http.request.host}\n}": {`JSON pointer "/a/{http.request.host}" has`, "Testfile:",
			Settings{Keys: []KeySource{{Prefix: "a", Parts: []KeySource{{JSON: "/a/{http.request.host}"}}}}}},
		"key content\nexclude /{file./run/member}": {"exclude: JSON pointer", "Testfile:3",
			Settings{Keys: []KeySource{{Content: true}}, Exclude: []string{"/{file./run/member}"}}},
		"retention_from json /{env.MEMBER}": {"retention_from: JSON pointer", "Testfile:2",
			Settings{RetentionFrom: &RetentionSource{JSON: "/{env.MEMBER}"}}},
	} {
		if err := handlerOf(lines); err == nil || !strings.Contains(err.Error(), want.text) || !strings.Contains(err.Error(), want.place) {
			t.Errorf("%q: %v; want %q at %s", lines, err, want.text, want.place)
		}
		want.json.setDefaults()
		if err := want.json.check(); err == nil || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%q in JSON: %v; want %q", lines, err, want.text)
		}
	}
	for _, lines := range []string{"key header X-Id a}b{", `key json /a\{env.b} \{a}`, "key json /{id}", "key json /{a}/{b}\nexclude /{sent}\nkey content"} {
		if err := handlerOf(lines); err != nil {
			t.Errorf("%q: %v", lines, err)
		}
	}
}

// One key for all requests answers all of them with the first one's response. A key that
// no retry repeats protects nothing.
func TestKeysThatAreTheSameAlwaysOrNever(t *testing.T) {
	const always, never = "is the same in all requests", "changes with every request"
	for line, want := range map[string]string{
		"key value {env.TEST_ID}":                                     always,
		`key value "{env.TEST_A}-{file./run/id}"`:                     always,
		"key value a{system.hostname}":                                always,
		"key parts a {\nvalue {env.TEST_ID}\nvalue {file./run/id}\n}": always,
		"key value {http.request.uuid}":                               never,
		"key value {http.request.host}-{time.now.unix_ms}":            never,
		"key parts a {\nheader X-A\nvalue {time.now.http}\n}":         never,
		"scope {http.request.host} {http.request.uuid}":               never,
		"scope a-{http.request.remote.port}":                          never,
		"scope {http.request.host} {http.request.remote}":             never,
		"key value {http.request.remote}":                             never,
		"key value {time.now.rfc3339}":                                never,
	} {
		if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "such as {http.request.") {
			t.Errorf("%q: %v; want %q", line, err, want)
		}
	}
	for _, s := range []Settings{{Keys: []KeySource{{Value: "{env.TEST_ID}"}}}, {Scope: []string{"{time.now}"}}} {
		s.setDefaults()
		if err := s.check(); err == nil {
			t.Errorf("in JSON %v is accepted", s)
		}
	}
	for _, line := range []string{
		"key value {env.TEST_TENANT}-{http.request.uri.query.id}", "key value {time.now.year}-{http.request.uri.query.id}",
		"scope {env.TEST_TENANT}", "scope {time.now.year}", "key value {http.vars.id}", "scope {http.request.remote.host}",
		"key parts a {\nvalue {env.TEST_REGION}\nheader X-A\n}",
	} {
		if err := handlerOf(line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// A line end at the end of a variable is no part of its value: replicas share their keys if only one
// of them has it.
func TestLineEndsOfVariablesArePartOfNoKey(t *testing.T) {
	t.Setenv("TEST_REGION", "eu")
	t.Setenv("TEST_REGION_LINE", "eu\n")
	t.Setenv("TEST_REGION_CRLF", "eu\r\n")
	t.Setenv("TEST_REGION_LINES", "eu\n\n")
	keys := map[string]string{}
	for _, name := range []string{"TEST_REGION", "TEST_REGION_LINE", "TEST_REGION_CRLF", "TEST_REGION_LINES"} {
		placeholder := "{env." + name + "}"
		s := serveWith(t, "namespace shop-"+placeholder, "header >X-Key {http.dedup.key}",
			"dedup {", "scope {http.request.host} "+placeholder, "key value {http.request.header.X-Id}-"+placeholder, "}", "respond done 201")
		keys[name] = s.mustPost("", "body", "X-Id", "1", "Host", "a.test").header.Get("X-Key")
		s.stop()
	}
	if want := keys["TEST_REGION"]; want == "" || keys["TEST_REGION_LINE"] != want || keys["TEST_REGION_CRLF"] != want || keys["TEST_REGION_LINES"] == want {
		t.Errorf("the keys are %q", keys)
	}
}
