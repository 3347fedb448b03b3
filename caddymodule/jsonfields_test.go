package caddymodule

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Errors about the types of JSON name its fields, and what they take. None names a type of Go, or
// shows a value that may be a secret.
func TestTypesOfJSONFields(t *testing.T) {
	for _, c := range []struct {
		into       caddy.Module
		text, want string
	}{
		{new(Handler), `{"keys": "X-Id"}`, "keys: a text is not accepted; use a list of objects"},
		{new(Handler), `{"keys": ["X-Id"]}`, "keys[0]: a text is not accepted; use an object"},
		{new(Handler), `{"keys": [{"prefix": "p", "parts": [{"header": "A"}, {"json": 5}]}]}`, "keys[0].parts[1].json: a number is not accepted; use a text"},
		{new(Handler), `{"providers": "github"}`, "providers: a text is not accepted; use a list of texts"},
		{new(Handler), `{"release_on": [500]}`, "release_on[0]: a number is not accepted; use a text"},
		{new(Handler), `{"observe": "true"}`, "observe: a text is not accepted; use true or false"},
		{new(Handler), `{"max_attempts": "5"}`, "max_attempts: a text is not accepted; use a whole number"},
		{new(Handler), `{"max_attempts": 1.5}`, "max_attempts: 1.5 is not accepted; use a whole number"},
		{new(Handler), `{"max_request_body": "8MiB"}`, "max_request_body: a text is not accepted; use a whole number"},
		{new(Handler), `{"retention": true}`, `retention: true is not accepted; use a duration such as "30s" or "7d"`},
		{new(Handler), `{"retention": "1 week"}`, `retention: "1 week" is not a duration; use one such as "30s" or "7d"`},
		{new(Handler), `{"retention": "redis://:s3cr3tword@h"}`, "retention: "},
		{new(Handler), `{"retention": "999999d"}`, `retention: "999999d" is too long; use at most "36500d"`},
		{new(Handler), `{"retention": 86400.5}`, `retention: 86400.5 is not accepted; use a duration such as "30s" or "7d"`},
		{new(Handler), `{"verify": [{"hmac": {"header": "X-S"}, "secrets": "s3cr3tword"}]}`, "verify[0].secrets: a text is not accepted; use a list of texts"},
		{new(Handler), `{"verify": [{"hmac": {"header": ["X-S"]}}]}`, "verify[0].hmac.header: a list is not accepted; use a text"},
		{new(Handler), `{"retention_from": {"header": {}}}`, "retention_from.header: an object is not accepted; use a text"},
		{new(App), `{"encrypt": "s3cr3tword"}`, "encrypt: a text is not accepted; use a list of texts"},
		{new(App), `{"limits": {"buffered": "1MiB"}}`, "limits.buffered: a text is not accepted; use a whole number"},
		{new(App), `[]`, "a list is not accepted; use an object"},
		{new(RedisStore), `{"password": 12345}`, "password: a number is not accepted; use a text"},
		{new(RedisStore), `{"tls": true}`, "tls: true is not accepted; use an object"},
		{new(RedisStore), `{"addresses": "localhost:6379"}`, "addresses: a text is not accepted; use a list of texts"},
		{new(FileStore), `{"path": ["a"]}`, "path: a list is not accepted; use a text"},
		{new(Dashboard), `{"title": 5}`, "title: a number is not accepted; use a text"},
		{new(Health), `{"probe": true}`, "probe: true is not accepted; use a text"},
	} {
		err := caddy.StrictUnmarshalJSON([]byte(c.text), &c.into)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "12345") || strings.Contains(err.Error(), "s3cr3tword") {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
	}
}

// A number is nanoseconds. One that is too short for any setting was meant as seconds.
func TestNumbersOfSecondsInJSON(t *testing.T) {
	for _, c := range []struct {
		into       caddy.Module
		text, want string
	}{
		{new(Handler), `{"retention": 86400}`, `retention: 86400 is 86.4µs, because a number is nanoseconds; write "24h" for 86400 seconds`},
		{new(Handler), `{"lease": 90}`, `lease: 90 is 90ns, because a number is nanoseconds; write "1m30s" for 90 seconds`},
		{new(Handler), `{"timeout": 600}`, `write "10m" for`},
		{new(Handler), `{"wait": 10}`, `wait: 10 is 10ns, because a number is nanoseconds; write "10s" for`},
		{new(Handler), `{"wait": 0}`, ""},
		{new(Handler), `{"wait": -1}`, ""}, // which the check refuses
		{new(Handler), `{"wait": 1000000}`, ""},
		{new(Handler), `{"retention": 86400000000000}`, ""},
		{new(Handler), `{"retention_from": {"header": "X-R", "max": 5}}`, "retention_from.max: 5 is 5ns"},
		{new(Handler), `{"verify": [{"within": 300}]}`, `verify[0].within: 300 is 300ns, because a number is nanoseconds; write "5m" for`},
		{new(App), `{"limits": {"client_idle": 10}}`, "limits.client_idle: 10 is 10ns"},
		{new(RedisStore), `{"timeout": 2}`, `timeout: 2 is 2ns, because a number is nanoseconds; write "2s" for`},
	} {
		err := caddy.StrictUnmarshalJSON([]byte(c.text), &c.into)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
	}
}

// Unknown fields are refused at every depth.
func TestUnknownFieldsInJSON(t *testing.T) {
	for _, c := range []struct {
		into       caddy.Module
		text, want string
	}{
		{new(Handler), `{"retentoin": "7d"}`, `unknown field "retentoin"; did you mean retention?`},
		{new(Handler), `{"keys": [{"heeder": "X-Id"}]}`, `keys[0]: unknown field "heeder"; did you mean header?`},
		{new(Handler), `{"zzz": 1}`, `unknown field "zzz"; use caller, docs, exclude,`},
		{new(Handler), `{"redis://:s3cr3tword@h": 1}`, "unknown field"},
		{new(Handler), `{"Settings": {}}`, `unknown field "Settings"`},
		{new(App), `{"limits": {"waiter": 5}}`, `limits: unknown field "waiter"; did you mean waiters or`},
		{new(RedisStore), `{"tls": {"cas": "a"}}`, `tls: unknown field "cas"`},
		{new(FileStore), `{"paths": "a"}`, `unknown field "paths"; did you mean path?`},
		{new(MemoryStore), `{"path": "a"}`, `unknown field "path"`},
		{new(Dashboard), `{"body": true}`, `unknown field "body"`},
		{new(Health), `{"prob": "live"}`, `unknown field "prob"; did you mean probe?`},
	} {
		err := caddy.StrictUnmarshalJSON([]byte(c.text), &c.into)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "s3cr3tword") {
			t.Errorf("%s: %v; want %q", c.text, err, c.want)
		}
	}
}

// What encoding/json accepts is accepted: null, names in another case, and what this module writes.
func TestJSONThatIsAccepted(t *testing.T) {
	h := new(Handler)
	err := json.Unmarshal([]byte(`{"retention": null, "wait": null, "keys": null, "verify": [], "retention_from": null, "scope": [null], "Lease": "45s", "store": {"store": "memory"}}`), h)
	if err != nil || duration(h.Lease).String() != "45s" || string(h.StoreRaw) != `{"store": "memory"}` {
		t.Errorf("%v, %+v", err, h.Settings)
	}
	written, err := directive("dedup github {\nmode webhook\nkey parts p {\njson /a\nheader B optional\n}\nretention 7d\nwait off\nrelease_if /errors\nretention_from json /r 1d\nverify github {env.A}\nverify hmac {\nheader X-S\nsecret {env.B}\nsigned {timestamp}.{body}\ntimestamp X-T\nwithin 1m\n}\n}")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(written)
	if err != nil {
		t.Fatal(err)
	}
	again := new(Handler)
	if err := json.Unmarshal(text, again); err != nil {
		t.Errorf("%s: %v", text, err)
	}
	if read, err := json.Marshal(again); err != nil || !slices.Equal(read, text) {
		t.Errorf("read %s, %v; want %s", read, err, text)
	}
}
