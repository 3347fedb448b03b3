package caddymodule

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// handlerOf reads a directive with one line in its block.
func handlerOf(line string) error {
	return new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser("dedup {\n" + line + "\n}"))
}

// globalOf reads a global option with one line in its block.
func globalOf(line string) error {
	_, err := parseGlobalOption(caddyfile.NewTestDispenser("dedup {\n"+line+"\n}"), nil)
	return err
}

// A text with an empty placeholder would name something else: another directory, another server, or
// a server without its password.
func TestPlaceholdersThatAreEmptyOrUnknown(t *testing.T) {
	t.Setenv("TEST_EMPTY", "")
	for settings, want := range map[string]string{
		`{"url": "redis://:{env.TEST_NOT_SET}@h"}`:                         "url: {env.TEST_NOT_SET} is empty",
		`{"url": "{env.TEST_EMPTY}"}`:                                      "url: {env.TEST_EMPTY} is empty",
		`{"urls": ["redis://a", "redis://{env.TEST_NOT_SET}"]}`:            "urls: {env.TEST_NOT_SET} is empty",
		`{"addresses": ["redis{env.TEST_NOT_SET}:6379"]}`:                  "addresses: {env.TEST_NOT_SET} is empty",
		`{"username": "{env.TEST_NOT_SET}"}`:                               "username: {env.TEST_NOT_SET} is empty",
		`{"password": "{env.TEST_NOT_SET}"}`:                               "password: {env.TEST_NOT_SET} is empty",
		`{"password": "a{env.TEST_NOT_SET}"}`:                              "password: {env.TEST_NOT_SET} is empty",
		`{"password": "{file./no/such/password}"}`:                         "password: {file./no/such/password} is empty",
		`{"password": "{vault.redis}"}`:                                    "password: it has a placeholder that is unknown",
		`{"sentinel": "a{env.TEST_NOT_SET}"}`:                              "sentinel: {env.TEST_NOT_SET} is empty",
		`{"sentinel": "a", "sentinel_username": "{env.TEST_NOT_SET}"}`:     "sentinel_username: {env.TEST_NOT_SET} is empty",
		`{"url": "redis://a", "tls": {"ca": "{env.TEST_NOT_SET}/ca.pem"}}`: "tls ca: {env.TEST_NOT_SET} is empty",
		`{"prefix": "a{env.TEST_NOT_SET}:"}`:                               "{env.TEST_NOT_SET} is empty",
	} {
		if _, err := provisioned(t, settings); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", settings, err, want)
		}
	}
	t.Setenv("TEST_DIRECTORY", t.TempDir())
	for path, want := range map[string]string{
		"{env.TEST_NOT_SET}":          "path {env.TEST_NOT_SET}: {env.TEST_NOT_SET} is empty",
		"{env.TEST_NOT_SET}/keys":     "path {env.TEST_NOT_SET}/keys: {env.TEST_NOT_SET} is empty",
		"/srv/{env.TEST_EMPTY}/keys":  "path /srv/{env.TEST_EMPTY}/keys: {env.TEST_EMPTY} is empty",
		"/srv/{tenant}/keys":          "path /srv/{tenant}/keys: it has a placeholder that is unknown",
		"{env.TEST_DIRECTORY}/{file}": "it has a placeholder that is unknown",
	} {
		if err := (&FileStore{Path: path}).Provision(caddy.Context{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", path, err, want)
		}
	}
	for _, namespace := range []string{"{env.TEST_NOT_SET}", "shop-{env.TEST_EMPTY}"} {
		if err := load(t, &App{Namespace: namespace}); err == nil || !strings.Contains(err.Error(), "namespace: "+namespace) {
			t.Errorf("the namespace %s: %v", namespace, err)
		}
	}
	s := &FileStore{Path: "{env.TEST_DIRECTORY}/keys"}
	if err := s.Provision(caddy.Context{}); err != nil || !filepath.IsAbs(s.Path) || filepath.Base(s.Path) != "keys" {
		t.Errorf("the path is %s, %v", s.Path, err)
	}
}

// An unclosed placeholder would be kept as literal text: a known value instead of a secret one, or
// the name of a directory.
func TestPlaceholdersThatAreNotClosed(t *testing.T) {
	const want = "a placeholder in it lacks its closing brace"
	for name, err := range map[string]error{
		"namespace":         globalOf("namespace {env.TEST_SECRET"),
		"namespace, within": globalOf(`namespace "a {env.TEST_A} {env.TEST_B"`),
		"store file":        globalOf("store file /srv/{env.TEST_TENANT/keys"),
		"a handler's store": handlerOf("store file {env.TEST_TENANT"),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Testfile:2") {
			t.Errorf("%s: %v; want %q", name, err, want)
		}
	}
	// The same in JSON.
	for name, err := range map[string]error{
		"namespace":  globalBlock.check(&App{Namespace: "{env.TEST_SECRET"}),
		"file store": (&FileStore{Path: "/srv/{env.TEST_TENANT/keys"}).Provision(caddy.Context{}),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", name, err, want)
		}
	}
	app := &App{Namespace: `a\{b`}
	if err := app.setNamespace(); err != nil || app.Namespace != "a{b" {
		t.Errorf("an escaped brace made the namespace %q, %v", app.Namespace, err)
	}
}

// The values of placeholders are not known when a Caddyfile is read, only when its configuration
// is loaded.
func TestPlaceholdersAreNoMistakeInACaddyfile(t *testing.T) {
	t.Setenv("TEST_ADDRESS", "b:1")
	for _, line := range []string{
		"store redis {env.TEST_URL}",
		"store redis {env.TEST_URL} {\nusername a\n}",
		"store redis redis://:{env.TEST_PASSWORD}@h redis://:{env.TEST_PASSWORD}@i",
		"store redis {\naddress {env.TEST_ADDRESS}\nusername {env.TEST_USER}\npassword {env.TEST_PASSWORD}\n}",
		"store redis {\nsentinel {env.TEST_MASTER}\naddress a:1 {env.TEST_ADDRESS}\n}",
		"store redis {\naddress {env.TEST_HOST}:6379\ntls {\nca {env.TEST_CA}\n}\n}",
		"store file {env.TEST_DIRECTORY}/keys",
	} {
		if err := handlerOf(line); err != nil {
			t.Errorf("%q: %v", line, err)
		}
	}
	if s, err := provisioned(t, `{"addresses": ["a:1", "{env.TEST_ADDRESS}"]}`); err != nil || s.options.Addresses[1] != "b:1" {
		t.Errorf("the options are %v, %v", s.options, err)
	}
}

// Each mistake is answered with the word, its line, and what is accepted.
func TestMistakesOfOneLine(t *testing.T) {
	for line, want := range map[string]string{
		// An unset variable leaves an empty argument, which differs from a missing one.
		`store file ""`:      "store file: the path is empty",
		`docs ""`:            `docs: "" is not an absolute URL`,
		"release_if":         "release_if lacks its arguments",
		`release_if ""`:      "release_if: the JSON pointer is empty",
		`release_if /a ""`:   "release_if: a value is empty",
		`key header X-Id ""`: "key header: the prefix is empty",
		`key json /id ""`:    "key json: the prefix is empty",
		`key value {http.request.uri.query.id} ""`:  "key value: the prefix is empty",
		"key form /token":                           `form "/token" is not the name of a field; write the name alone, such as token`,
		"key form token\nexclude /at\nmode webhook": "exclude: /at is left out of a content key or of a json fingerprint, and there is neither",
		"key form token\nkey form token":            "form token is read twice",
		`key content ""`:                            "key content: the prefix is empty",
		`key parts "" {
			content
		}`: "no prefix",
		`key parts p {
			header X-Id ""
		}`: "the prefix is empty",
		`key parts p {
			content ""
		}`: "the prefix is empty",
		`store redis ""`:                                       "redis URL",
		"store redis":                                          "no server is set",
		"store redis {\ntimeout 1s\n}":                         "no server is set",
		"store redis {\naddress \"\"\n}":                       `redis address ""`,
		"store redis {\nusername \"\"\n}":                      "username is empty",
		"store redis {\npassword \"\"\n}":                      "password is empty",
		"store redis {\nsentinel m\nsentinel_username \"\"\n}": "sentinel_username is empty",
		"store redis {\nsentinel m\nsentinel_password \"\"\n}": "sentinel_password is empty",
		"store redis {\ntls {\nca \"\"\n}\n}":                  "tls: ca: it is empty",
		"store redis {\ntls {\ncert \"\"\n}\n}":                "tls: cert: it is empty",
		"store redis {\ntls {\nkey \"\"\n}\n}":                 "tls: key: it is empty",
		"store redis {\ntls {\nserver_name \"\"\n}\n}":         "tls: server_name: it is empty",
		// Duplicates in a list are errors.
		"release_on 5xx 409 5xx":                               "release_on: 5xx is named twice",
		"release_on off off":                                   "release_on: off is named twice",
		"release_if /status RETRY DROP RETRY":                  "release_if: RETRY is named twice",
		"release_if /status RETRY\nrelease_if /status DROP":    "release_if: /status is named twice; write all its values on one line",
		"scope {http.request.host} a {http.request.host}":      "scope: {http.request.host} is named twice",
		"key header X-Id\nkey header x-id orders":              "key: header x-id is read twice",
		"store redis {\naddress a:1 b:1 A:1\n}":                `redis address "A:1" is named twice`,
		"store redis {\naddress a:1 a:1\nsentinel m\n}":        `redis address "a:1" is named twice`,
		"store redis {\naddress {env.A} {env.A}\n}":            `redis address "{env.A}" is named twice`,
		"store redis redis://a:1 redis://a:1":                  `redis address "a:1" is named twice`,
		"store redis redis://:s3cret@a redis://:s3cret@a:6379": `redis address "a:6379" is named twice`,
		// A * is valid in names, but is a wildcard elsewhere in Caddy. Taken literally it would match nothing: no request would be protected.
		"methods *":                           `methods: "*"`,
		"methods POST P*":                     `methods: "P*"`,
		"methods ALL":                         `methods: "ALL"`,
		"methods POST ANY":                    `methods: "ANY"`,
		"keep_header *":                       `keep_header: "*"`,
		"force *-Force":                       `force: "*-Force"`,
		"key header X-*":                      `header "X-*"`,
		"key parts a {\nheader * optional\n}": `header "*"`,
		"retention_from header X-*":           `header "X-*"`,
		"release_if /items/*/error":           `release_if: JSON pointer "/items/*/error" has a *`,
		"release_if /errors /failures":        `release_if: "/failures" is no value; each JSON pointer has a line of its own`,
		"release_if /status !SUCCESS":         `release_if: "!SUCCESS" is no value; name the values after which a retry runs`,
		"release_if /status {env.FAILED}":     `release_if: "{env.FAILED}" is no value; no placeholder is replaced there`,
		// Errors about keys name the word: several words take a field or a pointer.
		"key header X_Id(1)":                       `key: header "X_Id(1)"`,
		"key header Cookie":                        "key: Cookie carries a credential",
		"key header Host":                          "key: header Host never arrives",
		"key json id":                              `key: JSON pointer "id"`,
		"key value nightly":                        `key: value: "nightly" has no placeholder`,
		"key value {http.request.uri.query.a":      `key: value: "{http.request.uri.query.a" has a placeholder without its closing brace`,
		"key value {http.request.cookie.a}":        "key: value {http.request.cookie.a}",
		"key parts orders {\nheader Cookie\n}":     "key parts: Cookie carries a credential",
		"key parts orders {\njson id\n}":           `key parts: JSON pointer "id"`,
		"key parts orders {\nheader A optional\n}": `key: the first part is optional`,
		"key header Dedup-Attempt":                 "key: header Dedup-Attempt never arrives",
		"retention_from header dedup-retention":    "retention_from: header dedup-retention never arrives",
		"retention_from header host":               "retention_from: header host never arrives",
		"retention_from header authorization":      "retention_from: header authorization carries a credential",
		// What force would remove from requests.
		"force Content-Type": "force: Content-Type has a meaning of its own",
		"force Expect":       "force: Expect has a meaning of its own",
		"force x-id\nkey parts p {\nheader X-Id\n}":      "force: x-id is where the key comes from",
		"force x-window\nretention_from header X-Window": "force: x-window is where the retention comes from",
		// A scope that separates no callers.
		`scope ""`: `scope: "" separates no callers`,
		"scope {http.request.host} {http.request.header.Dedup-Execution-Id}": "is always empty",
		// A too long duration is not reported as malformed: its author would look for a typing mistake.
		"retention 36501d":                 "retention: 876024h0m0s is too long; use at most 36500d",
		"retention 106752d":                "retention: 106752d is too long; use at most 36500d",
		"lease 99999999999999999999s":      "lease: 99999999999999999999s is too long",
		"wait 1d9999999h":                  `wait: "1d9999999h" is not accepted`,
		"retention_from header X 1000000d": "retention_from: max: 1000000d is too long",
		"retention 1..5d":                  `retention: "1..5d" is not a duration`,
		"retention -106752d":               `retention: "-106752d" is not a duration`,
		"timeout 5":                        `timeout: "5" is not a duration`,
	} {
		err := handlerOf(line)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Testfile:") || strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "key: key") {
			t.Errorf("%s: %v; want %q", line, err, want)
		}
	}
	t.Setenv("TEST_ADDRESS", "a:1")
	if _, err := provisioned(t, `{"addresses": ["a:1", "{env.TEST_ADDRESS}"]}`); err == nil || !strings.Contains(err.Error(), `redis address "a:1" is named twice`) {
		t.Errorf("an address and its placeholder: %v", err)
	}
}

// For a word of another block, the error says where it belongs.
func TestWordsOfAnotherBlock(t *testing.T) {
	const site, global, limits, redis, tls = "in the block of a site's dedup", "in the global option dedup",
		"in limits of the global option dedup", "in store redis", "in tls of store redis"
	for _, c := range []struct {
		parse func(string) error
		line  string
		want  string
	}{
		{handlerOf, "namespace a", `dedup: unknown word "namespace"; it belongs ` + global},
		{handlerOf, "encrypt {env.KEY}", global},
		{handlerOf, "limits {\nwaiters 1\n}", global},
		{handlerOf, "local_copies off", global},
		{handlerOf, "buffered 1MiB", "it belongs " + limits},
		{handlerOf, "password s3cret", "it belongs " + redis},
		{handlerOf, "header Idempotency-Key", "it belongs in verify hmac or behind key, as key header"},
		{handlerOf, "parts orders {\ncontent\n}", "it belongs behind key, as key parts"},
		{handlerOf, "lese 30s", `unknown word "lese"; did you mean lease?`},
		{globalOf, "retention 7d", `the global option dedup: unknown word "retention"; it belongs ` + site},
		{globalOf, "lease 30s", site},
		{globalOf, "key header X-Id", "it belongs " + site + " or " + tls},
		{globalOf, "in_flight 1000", "it belongs " + limits},
		{globalOf, "address a:1", "it belongs " + redis},
		{globalOf, "limits {\nstore memory\n}", "it belongs " + site + " or " + global},
		{globalOf, "store redis {\nca ca.pem\n}", "it belongs " + tls},
	} {
		if err := c.parse(c.line); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v; want %q", c.line, err, c.want)
		}
	}
}

// Errors about common mistakes name the right form.
func TestOtherFormsAreAnsweredWithTheRightOne(t *testing.T) {
	for line, want := range map[string]string{
		"ttl 1h":                                           `unknown word "ttl"; write retention 7d in the block of a site's dedup`,
		"expire 1h":                                        `unknown word "expire"; write retention 7d in the block of a site's dedup`,
		"status 409":                                       `unknown word "status"; write release_on 409 `,
		"provider github":                                  `unknown word "provider"; write the provider's name behind dedup, as in dedup github`,
		"redis localhost:6379":                             `unknown word "redis"; write store redis {env.REDIS_URL}, or store redis and a URL such as redis://host:6379`,
		"redis redis://localhost:6379":                     `unknown word "redis"; write store redis {env.REDIS_URL}, or store redis and a URL such as redis://host:6379`,
		"store localhost:6379":                             "did you mean store redis redis://localhost:6379? use file, memory or redis",
		"store redis localhost:6379":                       "has no scheme, such as that of redis://localhost:6379",
		"store redis redis://a b:6379":                     "URL 2: the redis URL has no scheme",
		"scope json /namespace":                            `scope: "json" is a word behind key; scope takes texts with placeholders, such as`,
		"scope a header X-Tenant":                          `scope: "header" is a word behind key`,
		"scope {http.request.host} parts":                  `scope: "parts" is a word behind key`,
		"scope {http.request.host} /a~1b":                  `scope: "/a~1b" is not looked up in the body; for a member write {http.dedup.json./a~1b}`,
		"scope {http.dedup.json.tenant}":                   `scope: {http.dedup.json.tenant}: JSON pointer "tenant" must start with a slash`,
		"key value {http.dedup.json./a~2}":                 `value: {http.dedup.json./a~2}: JSON pointer "/a~2" must be UTF-8, and write ~`,
		"scope {http.dedup.json./{http.request.header.X}}": `has the placeholder {http.request.header.X}, and none is replaced there`,
		"scope {http.request.body.x}":                      "write {http.dedup.json./tenant}",
		"key json /items/*/id":                             `key: JSON pointer "/items/*/id" has a *, which stands for several members only in exclude`,
		"retention_from json /windows/*":                   `retention_from: JSON pointer "/windows/*" has a *`,
		"scope {http.dedup.json./tenants/*}":               `JSON pointer "/tenants/*" has a *`,
		"key header X-Id\nexclude ?":                       `exclude: "?" names no parameter of the query`,
		"key header X-Id\nexclude ?ts*":                    `exclude: "?ts*" names no parameter of the query; write each by its name alone, such as ?ts ?sig, or ?* for all`,
		"key header X-Id\nexclude ?ts ?ts":                 `exclude: ?ts is named twice`,
		"key content\nexclude ?ts":                         `exclude: ?ts is left out of the query in a fingerprint, and there is none`,
		"mode webhook\nexclude ?ts":                        `exclude: ?ts is left out of the query in a fingerprint, and there is none`,
		"key header X-Id\nexclude ?ts /at":                 `exclude: /at is left out of a content key or of a json fingerprint, and there is neither`,
		"key content\nexclude /items/-/at":                 `exclude: JSON pointer "/items/-/at" has the token -`,
		"key content\nexclude /sent*":                      `exclude: JSON pointer "/sent*" has a * inside the name "sent*"`,
		"retention 0":                                      "retention: 0s is too short; use at least 1s",
		"retention_from header X-Window 0":                 "retention_from: max: 0s is too short; use at least 1s",
		"lease 0":                                          "lease: 0s is too short; use at least 300ms",
		"timeout 0":                                        "timeout: 0s is too short; use at least 1ms",
		"wait 0":                                           `wait: "0" is not accepted; use a duration from 1ms to 36500d, such as 30s, or off`,
		"store redis {\ntimeout 0\n}":                      "timeout: 0s is too short; use at least 10ms",
		"methods POST GET":                                 "methods: GET is never deduplicated; use methods that change something",
		"methods HEAD":                                     "methods: HEAD is never",
		"methods OPTIONS":                                  "methods: OPTIONS is never",
		"methods TRACE":                                    "methods: TRACE is never",
		"methods QUERY":                                    "methods: QUERY is never",
		"methods CONNECT":                                  "methods: CONNECT is never",
		"missing reject":                                   `unknown word "missing"`,
		"in_flight reject":                                 `unknown word "in_flight"; it belongs in limits of the global option dedup`,
	} {
		place := fmt.Sprintf("Testfile:%d", 2+strings.Count(line, "\nexclude")+strings.Count(line, "\ntimeout"))
		if err := handlerOf(line); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), place) {
			t.Errorf("%s: %v; want %q at %s", line, err, want, place)
		}
	}
}

// Only the user can decide what to leave out of the key.
func TestProvidersBesideKeysNeedAMode(t *testing.T) {
	const lines = "dedup github {\nretention 1d\nkey header Idempotency-Key\n"
	err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(lines + "}"))
	for _, want := range []string{"mode: ", "webhook leaves the caller and the fingerprint out", "api leaves nothing out", "Testfile:3"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v; want %q in it", err, want)
		}
	}
	for _, mode := range []string{"api", "webhook"} {
		if err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(lines + "mode " + mode + "\n}")); err != nil {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
}

// force removes its field from requests. If it were part of the scope, callers would share keys.
func TestForceTakesNothingFromTheScope(t *testing.T) {
	for text, want := range map[string]string{
		"dedup {\nforce x-api-key\n}":                                              "force: x-api-key has a meaning of its own",
		"dedup {\nforce Remote-User\n}":                                            "force: Remote-User has a meaning of its own",
		"dedup {\nforce X-Tenant\nscope {http.request.header.x-tenant}\n}":         "force: X-Tenant is a part of the scope",
		"dedup {\nforce X-Tenant\nscope a \"b {http.request.header.X-Tenant}\"\n}": "force: X-Tenant is a part of the scope",
		"dedup github {\nforce X-Force\n}":                                         "force: beside a provider",
	} {
		err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Testfile:2") {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
	for _, line := range []string{"force X-Force", "force X-Force\nscope {http.request.header.X-Forced}"} {
		if err := handlerOf(line); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
}

// A page on no host cannot be opened; other schemes name things without one.
func TestDocsThatCannotBeOpened(t *testing.T) {
	for _, url := range []string{"https://", "http:///idempotency", "https:/api.example.com/docs", "https:docs", "HTTPS://:443/docs", "docs", "https://a/ö"} {
		if err := handlerOf("docs " + url); err == nil || !strings.Contains(err.Error(), "docs: "+strconv.Quote(url)) ||
			!strings.Contains(err.Error(), "such as https://") || !strings.Contains(err.Error(), "Testfile:2") {
			t.Errorf("%s: %v", url, err)
		}
	}
	// "not absolute" would be misleading here.
	for _, url := range []string{"https://a/ö", "https://a/<b>", `"https://a/b c"`, "https://a/{env.PAGE}"} {
		if err := handlerOf("docs " + url); err == nil || !strings.Contains(err.Error(), "percent-encoded") || strings.Contains(err.Error(), "is not an absolute") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, url := range []string{"https://example.com", "http://[::1]:80/docs#keys", "urn:example:idempotency", "tag:example.com,2026:docs"} {
		if err := handlerOf("docs " + url); err != nil {
			t.Error(err)
		}
	}
}

// Settings that exclude each other may come from several files, by import. The error
// names the file of the setting that it is about, as all others do.
func TestPlaceOfWhatExcludesEachOther(t *testing.T) {
	imported := filepath.Join(t.TempDir(), "common.conf")
	if err := os.WriteFile(imported, []byte("retention 5s\n\nforce Idempotency-Key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for site, want := range map[string]string{
		"dedup {\nimport " + imported + "\nlease 30s\n}":                                imported + ":3 import chain",
		"dedup {\nkey content\nfingerprint body\nimport " + imported + "\nlease 30s\n}": "Caddyfile:4",
	} {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(":80 {\n"+site+"\n}"), map[string]any{"filename": "Caddyfile"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", site, err, want)
		}
	}
}

// An error about two words of store redis is on the line of the second.
func TestLineOfWhatExcludesEachOtherInRedis(t *testing.T) {
	for block, want := range map[string]string{
		"{\naddress a:1\ncluster\ndb 1\nprefix a:\n}":                 "Testfile:5",
		"{\ndb 1\naddress a:1\ncluster\nprefix a:\n}":                 "Testfile:5",
		"redis://a {\nprefix a:\naddress b:1\ntimeout 1s\n}":          "Testfile:4",
		"{env.TEST_URL} {\nsentinel m\ncluster\ntimeout 1s\n}":        "Testfile:4",
		"redis://:p@a {\npassword {env.TEST_PASSWORD}\ntimeout 1s\n}": "Testfile:3",
		"redis://a/1 {\ndb 0\ntimeout 1s\n}":                          "Testfile:3",
	} {
		if err := handlerOf("store redis " + block); err == nil || !strings.HasPrefix(err.Error(), want+": ") {
			t.Errorf("%q: %v; want it at %s", block, err, want)
		}
	}
}

// humanize parses 1,5MiB as 15 MiB, and 1.5 without a unit as 1 byte.
func TestSizesThatMeanSomethingElse(t *testing.T) {
	sizes := map[string]func(string) error{
		"max_request_body %q":          handlerOf,
		"max_response_body %q":         handlerOf,
		"local_copies %q":              globalOf,
		"limits {\nbuffered %q\n}":     globalOf,
		"limits {\nmemory_store %q\n}": globalOf,
	}
	for line, parse := range sizes {
		for _, value := range []string{"1,5MiB", "1,048,576", "1024,", "1.5", "1.5B", "1.5 b", "1e6", "0x10", "+1", "-1", "0", "0.1KB,", "1.5.5MiB", "1_000", ""} {
			err := parse(fmt.Sprintf(line, value))
			if err == nil || !strings.Contains(err.Error(), strconv.Quote(value)) || !strings.Contains(err.Error(), "such as") {
				t.Errorf(line+": %v", value, err)
			}
		}
		for _, value := range []string{"1048576", "1.5MiB", ".5MiB", "1 MiB", "64k", "1PiB", "1b"} {
			if err := parse(fmt.Sprintf(line, value)); err != nil {
				t.Errorf(line+": %v", value, err)
			}
		}
	}
}

// Several paths behind dedup would be one path, which no request has: nothing would be protected.
func TestSeveralPathsBehindDedup(t *testing.T) {
	adapt := func(directive string) error {
		_, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(":80 {\n@a path /a\n"+directive+"\n}"), map[string]any{"filename": "Caddyfile"})
		return err
	}
	for directive, want := range map[string]string{
		"dedup /a,/b":             "@x path /a /b",
		"dedup /a, /b":            "@x path /a /b",
		"dedup /a /b":             "@x path /a /b",
		`dedup "/a /b" github`:    "@x path /a /b",
		"dedup /a,/b,/c/* {\n}":   "@x path /a /b /c/*",
		"route {\ndedup /a,/b\n}": "@x path /a /b",
		"dedup payments":          "a path begins with /",
	} {
		if err := adapt(directive); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "Caddyfile:") {
			t.Errorf("%s: %v; want %q", directive, err, want)
		}
	}
	for _, directive := range []string{"dedup /a", "dedup /a,b", `dedup "/git hooks"`, "dedup @a", "dedup * github", "dedup", "dedup /a github {\nobserve\n}"} {
		if err := adapt(directive); err != nil {
			t.Errorf("%s: %v", directive, err)
		}
	}
}

// What stands in the wrong place of the directive is answered with its right form.
func TestWordsInTheWrongPlace(t *testing.T) {
	for directive, want := range map[string]string{
		"dedup github /webhooks/*":       "dedup /webhooks/* github",
		"dedup github @hooks":            "dedup @hooks github",
		"dedup observe":                  "dedup { observe ... }",
		"dedup github observe":           "dedup { observe ... }",
		"dedup {\ngithub /webhooks/*\n}": "dedup /webhooks/* github",
		"dedup {\n/webhooks/*\n}":        "dedup /webhooks/* github",
	} {
		if err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(directive)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", directive, err, want)
		}
	}
	for _, p := range delivery.Providers() {
		if _, ok := handlerBlock[p.Name]; ok {
			t.Errorf("the provider %s has the name of a setting", p.Name)
		}
	}
}
