package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// Errors do not show a misplaced Redis URL, which contains a password: s3cret in each of these.
func TestMistakesThatShowNoPassword(t *testing.T) {
	const url = "redis://:s3cret@h:6379"
	for line, want := range map[string]string{
		"store " + url:                                     "did you mean store redis <url>?",
		"store " + url + " redis://b":                      "did you mean store redis <url>?",
		"store u:s3cret@h":                                 "did you mean store redis <url>?",
		"store file " + url + " a":                         "one path at most",
		"store memory " + url:                              "no arguments",
		"store memory {\n" + url + "\n}":                   "takes no block",
		"store redis " + url + " s3cret":                   "URL 2: the redis URL has no scheme",
		"store redis " + url + " {\nfoo\n}":                `unknown word "foo"`,
		"store redis {\n" + url + "\n}":                    "store redis: unknown word",
		"store redis {\naddress " + url + "\n}":            "write a URL behind store redis",
		"store redis {\naddress a:1 :s3cret@h:6379\n}":     "use host:port",
		"store redis {\naddress s3cret@h:6379\n}":          "use host:port",
		"store redis {\naddress redis://s3cret\n}":         "write a URL behind store redis",
		"store redis {\nusername dedup s3cret\n}":          "username takes one argument",
		"store redis {\npassword u s3cret\n}":              "password takes one argument",
		"store redis {\nsentinel_username dedup s3cret\n}": "sentinel_username takes one argument",
		"store redis {\ncluster " + url + "\n}":            "write the addresses behind address",
		"store redis {\ntls " + url + "\n}":                "tls takes a block",
		"store redis {\ntls {\n" + url + "\n}\n}":          "tls: unknown word",
		"store redis {\nprefix " + url + " a\n}":           "prefix takes one argument",
		"store redis {\ntimeout " + url + "\n}":            "not a duration",
		"store redis {\ndb " + url + "\n}":                 "not a whole number",
		"max_request_body " + url:                          "not a size",
		"on_missing " + url:                                "use pass or reject",
		"methods " + url:                                   "not a method",
		"force " + url:                                     "not the name of a header field",
		url:                                                "dedup: unknown word",
		"key " + url:                                       "key",
		"key header X-Id orders " + url:                    "wrong number of arguments",
		"key header " + url:                                "is not a field name",
		"key json " + url:                                  "must start with a slash",
		"key value " + url:                                 "has no placeholder",
		"key value \"" + url + " {\"":                      "closing brace",
		"key content " + url + "{http.vars.a}":             "none is replaced there",
		"key parts orders " + url:                          "takes one argument",
		"key parts a {\nheader X-Id " + url + "\n}":        "only the word optional may follow",
		"key parts a {\njson " + url + "\n}":               "must start with a slash",
		"exclude " + url:                                   "must start with a slash",
		"release_on " + url:                                "is neither a code",
		"release_on off " + url:                            "off stands alone",
		"release_on " + url + " " + url:                    "is named twice",
		"release_if " + url:                                "must start with a slash",
		"scope " + url + " " + url:                         "no word of it has a placeholder",
		"wait off " + url:                                  "takes one argument",
		"retention_from " + url:                            "is not accepted",
		"retention_from json " + url:                       "must start with a slash",
		"docs \"" + url + " a\"":                           "is not an absolute URL",
		"docs https://u:s3cret@example.com":                "has a user",
		"docs https://s3cret@example.com":                  "has a user",
		"docs `redis://:s3cret\"@h a`":                     "is not an absolute URL",
	} {
		if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v; want %q", line, err, want)
		}
	}
	for _, text := range []string{"dedup " + url, "dedup {\n" + url + "\n}", "dedup {\nlocal_copies " + url + "\n}", "dedup {\nlimits " + url + " {\n}\n}"} {
		if _, err := parseGlobalOption(caddyfile.NewTestDispenser(text), nil); err == nil || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := checkProviders([]string{url}); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("as a provider: %v", err)
	}
	app := &App{StoreRaw: []byte(`{"store": "` + url + `"}`)}
	if _, err := app.loadStore(caddy.Context{}, app, app.StoreRaw); err == nil || !strings.Contains(err.Error(), "url") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("as a store in JSON: %v", err)
	}
}

// A store in JSON without its kind is not shown: the settings that are there may be those of
// Redis, with its password.
func TestStoresWithoutTheirKindShowNoPassword(t *testing.T) {
	for _, settings := range []string{
		`{"addresses": ["h:1"], "password": "s3cret"}`, `{"module": "redis", "url": "redis://:s3cret@h"}`, `{"Store": "redis", "password": "s3cret"}`,
		`{"store": "", "password": "s3cret"}`, `{"store": 1, "password": "s3cret"}`, `{"store": null, "password": "s3cret"}`, `{}`, `null`, `"redis"`,
	} {
		app := &App{StoreRaw: []byte(settings)}
		_, err := app.loadStore(caddy.Context{}, app, app.StoreRaw)
		if err == nil || !strings.Contains(err.Error(), "use file, memory or redis") || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

// Other texts are shown, so that the author sees which one is meant.
func TestHiddenTexts(t *testing.T) {
	for text, hidden := range map[string]bool{
		"redis://:s3cret@h": true, "redis://:s3cret": true, "u:s3cret@h": true, "rediss://{env.P}@h": true, "https://u:s3cret@h": true,
		"": false, "mongodb": false, "localhost:6379": false, "/run/redis.sock": false, "https://example.com/docs": false, "@matcher": false, "{env.REDIS_URL}": false,
	} {
		if got := withoutPassword(text) != text; got != hidden {
			t.Errorf("%q is hidden: %v", text, got)
		}
	}
}

// Errors show the name of a placeholder and never its value.
func TestValuesOfPlaceholdersAreNotShown(t *testing.T) {
	t.Setenv("TEST_REDIS_URL", "redis://:s3cret@h:6379")
	t.Setenv("TEST_REDIS_PASSWORD", "s3cret")
	t.Setenv("TEST_REDIS_BASE64", "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCg==s3cret")
	t.Setenv("TEST_REDIS_PEM", "-----BEGIN PRIVATE KEY-----\ns3cret\n")
	for settings, want := range map[string]string{
		`{"addresses": ["{env.TEST_REDIS_URL}"]}`:                                                `redis address "{env.TEST_REDIS_URL}" is a URL`,
		`{"addresses": ["a:1", "{env.TEST_REDIS_URL}"], "sentinel": "main"}`:                     `redis address "{env.TEST_REDIS_URL}" is a URL`,
		`{"addresses": ["a:1", "{env.TEST_REDIS_URL}"]}`:                                         `redis address "{env.TEST_REDIS_URL}" is a URL`,
		`{"addresses": ["{env.TEST_REDIS_PASSWORD}"]}`:                                           `redis address "{env.TEST_REDIS_PASSWORD}" is neither`,
		`{"addresses": ["redis://:{env.TEST_REDIS_PASSWORD}@h:6379"]}`:                           "write a URL behind store redis",
		`{"addresses": ["redis://:s3cret@{env.TEST_NOT_SET}"]}`:                                  "addresses: {env.TEST_NOT_SET} is empty",
		`{"url": "redis://:s3cret@{env.TEST_NOT_SET}"}`:                                          "url: {env.TEST_NOT_SET} is empty",
		`{"url": "redis://:s3{s3cret}cret@h"}`:                                                   "url: it has a placeholder that is unknown",
		`{"url": "http://:{env.TEST_REDIS_PASSWORD}@h"}`:                                         "another scheme",
		`{"password": "s3{s3cret}cret"}`:                                                         "password: it has a placeholder that is unknown",
		`{"url": "redis://a", "tls": {"cert": "cert.pem", "key": "{env.TEST_REDIS_PEM}"}}`:       "tls key takes the name of a file",
		`{"url": "redis://a", "tls": {"cert": "cert.pem", "key": "{env.TEST_REDIS_BASE64}"}}`:    "tls key takes the name of a file",
		`{"url": "redis://a", "tls": {"ca": "-----BEGIN CERTIFICATE-----\ns3cret"}}`:             "tls ca takes the name of a file",
		`{"addresses": ["a:1", "redis://:s3cret@b:1", "redis://:s3cret@b:1"]}`:                   "write a URL behind store redis",
		`{"urls": ["redis://:s3cret@b:1", "redis://:s3cret@b:1"]}`:                               `redis address "b:1" is named twice`,
		`{"url": "redis://:s3cret@b:1", "sentinel_username": "u", "sentinel_password":"s3cret"}`: "need sentinel",
	} {
		if _, err := provisioned(t, settings); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want %q", settings, err, want)
		}
	}
}
