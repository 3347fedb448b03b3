package caddymodule

import (
	"encoding/json"
	"errors"
	"iter"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// wordsInJSON has what the lines of a directive become.
var wordsInJSON = map[string]string{
	"mode api\nmethods POST PUT\non_missing reject\nmax_key_length 64\nscope {http.request.host} fixed": `{"mode": "api", "methods": ["POST", "PUT"], "on_missing": "reject", "max_key_length": 64, "scope": ["{http.request.host}", "fixed"]}`,
	"observe\nretention 36h\nlease 10s\ntimeout 1m\nwait 2s":                                            `{"observe": true, "retention": 129600000000000, "lease": 10000000000, "timeout": 60000000000, "wait": 2000000000}`,
	"release_on 5xx !503\nrelease_if /errors\nrelease_if /status RETRY DROP\non_unknown hold":           `{"release_on": ["5xx", "!503"], "release_if": [{"json": "/errors"}, {"json": "/status", "values": ["RETRY", "DROP"]}], "on_unknown": "hold"}`,
	"max_request_body 2MiB\nmax_response_body 512KiB\nkeep_header Set-Cookie Age":                       `{"max_request_body": 2097152, "max_response_body": 524288, "keep_header": ["Set-Cookie", "Age"]}`,
	"on_store_error pass\ndocs https://example.com/idempotency\nforce X-Force\nmax_attempts 5":          `{"on_store_error": "pass", "docs": "https://example.com/idempotency", "force": "X-Force", "max_attempts": 5}`,
	"fingerprint json\nexclude /sent_at ?ts":                                                            `{"fingerprint": "json", "exclude": ["/sent_at", "?ts"]}`,
	"mode mcp\nkey content\nretention 1m\ntools pay refund":                                             `{"mode": "mcp", "keys": [{"content": true}], "retention": 60000000000, "tools": ["pay", "refund"]}`,
	"caller {http.request.cookie.session}":                                                              `{"caller": ["{http.request.cookie.session}"]}`,
	"mode webhook\nwait off\nrelease_on off\nfingerprint none":                                          `{"mode": "webhook", "wait": 0, "release_on": ["off"], "fingerprint": "none"}`,
	"on_duplicate see_other":                        `{"on_duplicate": "see_other"}`,
	"max_attempts 0":                                `{}`,
	"key header X-Token\nkey header X-Order orders": `{"keys": [{"header": "X-Token"}, {"header": "X-Order", "prefix": "orders"}]}`,
	"key json /a~1b/m~0n/0 events":                  `{"keys": [{"json": "/a~1b/m~0n/0", "prefix": "events"}]}`,
	"key value {http.request.uri.query.id} tenants": `{"keys": [{"value": "{http.request.uri.query.id}", "prefix": "tenants"}]}`,
	"key value `\\{{http.request.uri.query.id}\\}`": `{"keys": [{"value": "\\{{http.request.uri.query.id}\\}"}]}`,
	"key form order_token orders":                   `{"keys": [{"form": "order_token", "prefix": "orders"}]}`,
	"key content orders":                            `{"keys": [{"content": true, "prefix": "orders"}]}`,
	"key parts optional {\nheader Optional\njson /id optional\nform token optional\nvalue {http.request.uri.query.v} optional\ncontent\n}": `{"keys": [{"prefix": "optional", "parts": [{"header": "Optional"}, {"json": "/id", "optional": true}, {"form": "token", "optional": true}, {"value": "{http.request.uri.query.v}", "optional": true}, {"content": true}]}]}`,
	"retention_from header X-Window":                              `{"retention_from": {"header": "X-Window"}}`,
	"retention_from json /window 12h":                             `{"retention_from": {"json": "/window", "max": 43200000000000}}`,
	"store redis redis://localhost:6379 {\nprefix shop:dedup:\n}": `{"store": {"store": "redis", "url": "redis://localhost:6379", "prefix": "shop:dedup:"}}`,
	"verify hmac {\nsecret {env.A} {env.B}\nheader X-S\nsigned {timestamp}.{body}\ntimestamp X-At ms\nwithin 10m\n}": `{"verify": [{"hmac": {"header": "X-S", "signed": "{timestamp}.{body}", "timestamp": "X-At", "timestamp_unit": "ms"}, "secrets": ["{env.A}", "{env.B}"], "within": 600000000000}]}`,
	// The signature tells apart whose fields are the same.
	"dedup openai replicate {\nverify openai {env.A}\nverify replicate {env.B}\n}":                       `{"providers": ["openai", "replicate"], "verify": [{"provider":"openai","secrets":["{env.A}"]},{"provider":"replicate","secrets":["{env.B}"]}]}`,
	"dedup github {\nverify {env.A} {file./b}\n}":                                                        `{"providers": ["github"], "verify": [{"provider":"github","secrets":["{env.A}","{file./b}"]}]}`,
	"dedup stripe {\nverify stripe {\nsecret {env.A} {env.B}\nwithin off\n}\n}":                          `{"providers": ["stripe"], "verify": [{"provider":"stripe","secrets":["{env.A}","{env.B}"],"within":0}]}`,
	"dedup discord {\nverify discord aa\n}":                                                              `{"providers": ["discord"], "verify": [{"provider":"discord","public_keys":["aa"]}]}`,
	"dedup discord {\nverify {env.KEY}\n}":                                                               `{"providers": ["discord"], "verify": [{"provider":"discord","public_keys":["{env.KEY}"]}]}`,
	"dedup square {\nverify square {\nsecret {env.A}\nurl https://a.example/x https://b.example/x\n}\n}": `{"providers": ["square"], "verify": [{"provider":"square","secrets":["{env.A}"],"urls":["https://a.example/x","https://b.example/x"]}]}`,
	"verify hmac {\nsecret {env.A}\nheader X-S\nformat t={timestamp},v1={signature}\nalgorithm sha512\nencoding base64\nsecret_encoding hex\nsigned {timestamp}.{body}\ntimestamp ms\n}": `{"verify": [{"hmac":{"header":"X-S","format":"t={timestamp},v1={signature}","algorithm":"sha512","encoding":"base64","secret_encoding":"hex","signed":"{timestamp}.{body}","timestamp_unit":"ms"},"secrets":["{env.A}"]}]}`,
}

// optionsInJSON has what the lines of the global option become.
var optionsInJSON = map[string]string{
	"namespace shop\nstore file /var/lib/dedup": `{"namespace": "shop", "store": {"store": "file", "path": "/var/lib/dedup"}}`,
	"store file":                       `{"store": {"store": "file"}}`,
	"store memory\nlocal_copies 64MiB": `{"store": {"store": "memory"}, "local_copies": 67108864}`,
	"local_copies off\nencrypt {env.NEW} {file./run/secrets/old}":                                                `{"local_copies": 0, "encrypt": ["{env.NEW}", "{file./run/secrets/old}"]}`,
	"limits {\nbuffered 1MiB\nclient_idle 5s\nwaiters 10\nwaiters_per_key 5\nin_flight 20\nmemory_store 2MiB\n}": `{"limits": {"buffered": 1048576, "client_idle": 5000000000, "waiters": 10, "waiters_per_key": 5, "in_flight": 20, "memory_store": 2097152}}`,
	"store redis redis://localhost:6379/2":                                                                       `{"store": {"store": "redis", "url": "redis://localhost:6379/2"}}`,
	"store redis {env.REDIS_URL} {\ndb 0\n}":                                                                     `{"store": {"store": "redis", "url": "{env.REDIS_URL}", "db": 0}}`,
	"store redis rediss://a:6379 rediss://b:6379":                                                                `{"store": {"store": "redis", "urls": ["rediss://a:6379", "rediss://b:6379"]}}`,
	"store redis {\naddress a:1\ncluster\nwait_replicas 2\n}":                                                    `{"store": {"store": "redis", "addresses": ["a:1"], "cluster": true, "wait_replicas": 2}}`,
	"store redis {\naddress a:1\nusername ali\npassword {env.P}\ndb 3\nprefix shop:\ntimeout 250ms\ntls {\nca /ca.pem\ncert /cert.pem\nkey /key.pem\nserver_name redis.internal\ninsecure_skip_verify\n}\n}": `{"store": {"store": "redis", "addresses": ["a:1"], "username": "ali", "password": "{env.P}", "db": 3, "prefix": "shop:", "timeout": 250000000, "tls": {"ca": "/ca.pem", "cert": "/cert.pem", "key": "/key.pem", "server_name": "redis.internal", "insecure_skip_verify": true}}}`,
	"store redis {\naddress a:1 b:1\nsentinel main\nsentinel_username watcher\nsentinel_password {env.S}\n}":                                                                                                 `{"store": {"store": "redis", "addresses": ["a:1", "b:1"], "sentinel": "main", "sentinel_username": "watcher", "sentinel_password": "{env.S}"}}`,
}

// Each word of the Caddyfile has its place in JSON.
func TestWordsInJSON(t *testing.T) {
	tried := make(map[string]bool)
	becomes := func(lines string, value any, err error, want string) {
		t.Helper()
		for line := range strings.Lines(lines) {
			tried[strings.Fields(line)[0]] = true
		}
		text, errOfJSON := json.Marshal(value)
		var got, wanted any
		if err := errors.Join(err, errOfJSON, json.Unmarshal(text, &got), json.Unmarshal([]byte(want), &wanted)); err != nil {
			t.Errorf("%s: %v", lines, err)
		} else if !reflect.DeepEqual(got, wanted) {
			t.Errorf("%s\nbecomes %s\nwant %s", lines, text, want)
		}
	}
	for lines, want := range wordsInJSON {
		text := lines
		if !strings.HasPrefix(lines, "dedup") {
			text = "dedup {\n" + lines + "\n}"
		}
		h, err := directive(text)
		becomes(lines, h.Settings, err, want)
	}
	for lines, want := range optionsInJSON {
		app := new(App)
		err := app.read(caddyfile.NewTestDispenser("dedup {\n"+lines+"\n}"), false)
		becomes(lines, app, err, want)
	}
	for _, words := range []iter.Seq[string]{maps.Keys(handlerBlock), maps.Keys(globalBlock), maps.Keys(limitsBlock), maps.Keys(redisBlock), maps.Keys(tlsBlock)} {
		for word := range words {
			if !tried[word] {
				t.Errorf("no line has %s", word)
			}
		}
	}
}

// The directive comes after those that authenticate and compress, and before those that answer.
// A matcher stands before the providers.
func TestPlaceInASite(t *testing.T) {
	adapted, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(`:80 {
		reverse_proxy localhost:3000
		dedup /hooks/* github
		dedup_health /ready
		encode gzip
		basic_auth {
			ali $2a$04$uf76iymeUNTJnEhP70mn.eLvDOZNaERVsFNAoeUWIl9NCQiBTSOAO
		}
	}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, found := range regexp.MustCompile(`"handler":"(\w+)"|"path":\["([^"]+)"|"providers":\["(\w+)"`).FindAllStringSubmatch(string(adapted), -1) {
		got = append(got, found[1]+found[2]+found[3])
	}
	want := []string{"authentication", "encode", "/ready", "dedup_health", "/hooks/*", "dedup", "github", "reverse_proxy"}
	if !slices.Equal(got, want) {
		t.Errorf("the handlers are %q, want %q", got, want)
	}
}

// An empty list in JSON is the default. An empty scope of its own would let all callers share their keys.
func TestEmptyListsAreDefaults(t *testing.T) {
	var absent, empty Settings
	if err := json.Unmarshal([]byte(`{"scope": [], "methods": [], "release_on": [], "keys": [], "keep_header": []}`), &empty); err != nil {
		t.Fatal(err)
	}
	absent.setDefaults()
	empty.setDefaults()
	want, got := absent.identification(), empty.identification()
	if len(got.Scope) > 0 || !slices.Equal(got.Methods, want.Methods) || !reflect.DeepEqual(got.Policies, want.Policies) || !reflect.DeepEqual(got.Sources, want.Sources) || empty.check() != nil {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
