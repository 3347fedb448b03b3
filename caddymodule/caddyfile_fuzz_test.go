package caddymodule

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// FuzzDirective reads any text as the directive. What the Caddyfile accepts must be what
// the JSON that it becomes says, and be accepted there: else an error would come without
// its line, or what was written would mean something else.
func FuzzDirective(f *testing.F) {
	for _, block := range []string{
		"", "mode webhook", "methods POST PUT", "key header X-A a\nkey json /a b\nkey form f g\nkey value {x} c\nkey content d",
		"key parts p {\n header X\n json /a optional\n value {y}\n content optional\n}", "exclude /a\nfingerprint json",
		"on_missing reject", "max_key_length 5", "scope a {b}", "retention 7d\nlease 1m\ntimeout 5m", "retention_from header X 5d",
		"retention_from json /a", "mode mcp\nkey content\nretention 1m\ntools pay refund", "wait 5s", "wait off", "release_on off", "release_on 5xx 409", "release_if /errors\nrelease_if /status RETRY DROP", "on_unknown hold\nmax_attempts 3",
		"on_duplicate see_other\nforce X-F\non_store_error pass", "max_request_body 1.5MiB\nmax_response_body 1KiB",
		"keep_header Set-Cookie\ndocs https://a/b", "store file x", "store memory",
		"store redis redis://u:p@h:1/2 {\n prefix a:\n timeout 1s\n}", "store redis {\n address a:1 b:2\n sentinel m\n tls {\n server_name x\n}\n}",
	} {
		f.Add("github", block)
		f.Add("", block)
	}
	f.Fuzz(func(t *testing.T, args, block string) {
		tokens, err := caddyfile.Tokenize([]byte("dedup "+args+" {\n"+block+"\n}\n"), "Caddyfile")
		if err != nil {
			return
		}
		var read Handler
		if err := read.UnmarshalCaddyfile(caddyfile.NewDispenser(tokens)); err != nil {
			_ = err.Error()
			return
		}
		text, err := json.Marshal(read.Settings)
		if err != nil {
			t.Fatalf("%+v cannot be JSON: %v", read.Settings, err)
		}
		var again Settings
		decoder := json.NewDecoder(bytes.NewReader(text))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&again); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if !reflect.DeepEqual(read.Settings, again) {
			t.Fatalf("the Caddyfile says %+v, and its JSON %+v", read.Settings, again)
		}
		again.setDefaults()
		if err := again.check(); err != nil {
			t.Fatalf("the Caddyfile accepts %s, and JSON does not: %v", text, err)
		}
	})
}
