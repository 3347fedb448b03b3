package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// What a Caddyfile's parser finds wrong is found in JSON, too, when it is loaded.
func TestMistakesInJSON(t *testing.T) {
	t.Parallel()
	for settings, says := range map[string]string{
		`"keys": [{}]`: "exactly one",
		`"keys": [{"header": "X-Id", "json": "/id"}]`:                                         "exactly one",
		`"keys": [{"content": true, "value": "x"}]`:                                           "exactly one",
		`"keys": [{"json": "id"}]`:                                                            "must start with a slash",
		`"keys": [{"header": "X Id"}]`:                                                        "not a field name",
		`"keys": [{"parts": [{"json": "/id"}]}]`:                                              "no prefix",
		`"keys": [{"prefix": "p", "parts": [{"prefix": "q", "content": true}]}]`:              "prefix",
		`"keys": [{"prefix": "p", "parts": [{"prefix": "q", "parts": [{"content": true}]}]}]`: "parts",
		`"keys": [{"prefix": "p", "parts": [{}]}]`:                                            "exactly one",
		`"keys": [{"header": "X-Id", "optional": true}]`:                                      "keys[0]: optional is only for parts",
		`"keys": [{"prefix": "p", "optional": true, "parts": [{"content": true}]}]`:           "keys[0]: optional is only for parts",
		`"keys": [{"prefix": "p", "parts": [{"content": true, "optional": true}]}]`:           "keys[0]: the first part is optional",
		`"keys": [{"cookie": "id"}]`:                                                          "cookie",
		`"providers": ["gitub"]`:                                                              "did you mean github",
		`"providers": ["github", "github"]`:                                                   "named twice",
		`"providers": ["svix", "resend"]`:                                                     "the requests of svix and resend look the same",
		`"providers": ["github"], "keys": [{"header": "X-Id"}]`:                               "mode: providers beside keys need it written",
		`"exclude": ["sent_at"], "keys": [{"content": true}]`:                                 "must start with a slash",
		`"exclude": ["/sent_at"]`:                                                             "content key",
		`"fingerprint": "json", "keys": [{"content": true}]`:                                  "exclude each other",
		`"on_duplicate": "reject"`:                                                            "replay, conflict, acknowledge or see_other",
		`"force": "Dedup-Force"`:                                                              "start with Dedup-",
		`"force": "Idempotency-Key"`:                                                          "where the key comes from",
		`"retention_from": {}`:                                                                "retention_from: it takes exactly one of header and json",
		`"retention_from": {"value": "x"}`:                                                    "value",
		`"retention_from": {"json": "window"}`:                                                "retention_from: JSON pointer",
		`"retention_from": {"json": "/window", "max": 5}`:                                     "retention_from: max: 5ns is too short",
		`"max_attempts": -1`:                                                                  "max_attempts: -1 is not accepted",
		`"max_attempts": 4294967296`:                                                          "from 0 to 2147483647",
		`"max_response_body": 4611686018427387904`:                                            "max_response_body: 4611686018427388000 is not accepted",
		`"max_key_length": 4611686018427387904`:                                               "max_key_length: 4611686018427388000 is not accepted",
		`"lease": 4611686018427387904`:                                                        "lease: 1281023h53m38.427388s is too long",
		`"wait": -1`:                                                                          "wait: -1ns is too short",
		`"providers": ["github"], "keys": [{"header": "X-Id"}, {"json": "id"}]`:               "keys[1]: JSON pointer",
		`"keys": [{"value": "order"}]`:                                                        "keys[0]: value: \\\"order\\\" has no placeholder",
		`"store": {"store": "redis", "url": "redis://:p@a:6379", "password": "secret"}`:       "the URL and password both set a password",
		`"store": {"store": "redis", "url": "rediss://a:6379", "tls": {}}`:                    "tls without settings means the same",
		`"store": {"store": "redis", "url": "redis://a:6379", "addresses": ["a:6379"]}`:       "a URL and address (in JSON addresses)",
		`"store": {"store": "redis", "timeout": 4611686018427387904}`:                         "timeout: 1281023h53m38.427388s is too long",
		`"store": {"store": "redis"}`:                                                         "no server is set",
		`"release_on": ["5xx", "5xx"]`:                                                        "release_on: 5xx is named twice",
		`"scope": ["a", "a"]`:                                                                 "scope: a is named twice",
		`"store": {"store": "redis", "addresses": ["a:1", "a:1"]}`:                            "is named twice",
		`"store": {"store": "redis://:p@a:6379"}`:                                             "write it in url",
		`"store": {"store": "file", "path": "{env.DEDUP_NOT_SET}/keys"}`:                      "{env.DEDUP_NOT_SET} is empty",
		`"max_attempts": "five"`:                                                              "max_attempts",
	} {
		config := fmt.Sprintf(`{"admin": {"disabled": true}, "apps": {"http": {"servers": {"s": {"listen": [":0"], "routes": [{"handle": [{"handler": "dedup", %s}]}]}}}}}`, settings)
		dir := shortTempDir(t)
		file := filepath.Join(dir, "caddy.json")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		out, code := command(t, dir, "validate", "--config", file)
		if code == 0 || !strings.Contains(out, says) {
			t.Errorf("%s: validate ended with %d; want a message with %q:\n%s", settings, code, says, out)
		}
	}
}

// The commands of the page of JSON lead from its first Caddyfile to a proxy that runs.
func TestCommandsOfThePageOfJSON(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir, addr := shortTempDir(t), fmt.Sprintf(":%d", freeport.Of(t))
	var caddyfile string
	var commands []string
	for _, b := range docBlocks(t) {
		switch {
		case b.page != "json.md":
		case b.language == "sh":
			commands = append(commands, strings.TrimSpace(b.text))
		case b.language == "caddyfile" && caddyfile == "":
			caddyfile = strings.NewReplacer("redis {env.REDIS_URL}", "memory", ":8080", addr, "localhost:3000", up.addr,
				"{\n\tdedup {", "{\n\tadmin off\n\tdedup {").Replace(b.text)
		}
	}
	if len(commands) != 3 {
		t.Fatalf("the page has the commands %q, want adapt, validate and run", commands)
	}
	if err := os.WriteFile(filepath.Join(dir, "Caddyfile"), []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	var p *caddy
	for i, line := range commands {
		args := strings.Fields(strings.TrimPrefix(line, "caddy-dedup "))
		if args[0] == "run" {
			p = startProcess(t, dir, args...)
			continue
		}
		cmd := exec.CommandContext(t.Context(), binary, args...)
		cmd.Dir, cmd.Env = dir, homeEnv(dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if i == 0 {
			if err := os.WriteFile(filepath.Join(dir, "caddy.json"), out, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.addr = "127.0.0.1" + addr
	p.awaitLog(t, "serving initial configuration", func(e entry) bool { return e.text("msg") == "serving initial configuration" })
	options := []option{header("X-GitHub-Delivery", "1"), header("X-GitHub-Hook-ID", "7")}
	first := p.post(t, "/", "", "{}", options...)
	wantFresh(t, first, 201, "run 1 of 1")
	wantReplay(t, p.post(t, "/", "", "{}", options...), first)
}
