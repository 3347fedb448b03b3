package caddymodule

import (
	"encoding/json"
	"strings"
	"testing"
)

// What a Caddyfile's parser finds wrong is found in JSON, too.
func TestMistakesInJSON(t *testing.T) {
	for text, want := range map[string]string{
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
		`"retention_from": {"json": "window"}`:                                                "retention_from: JSON pointer",
		`"retention_from": {"json": "/window", "max": 5}`:                                     "retention_from: max: 5ns is too short",
		`"max_attempts": -1`:                                                                  "max_attempts: -1 is not accepted",
		`"max_attempts": 4294967296`:                                                          "from 0 to 2147483647",
		`"max_response_body": 4611686018427387904`:                                            "max_response_body: 4611686018427387904 is not accepted",
		`"max_key_length": 4611686018427387904`:                                               "max_key_length: 4611686018427387904 is not accepted",
		`"lease": 4611686018427387904`:                                                        "lease: 1281023h53m38.427387904s is too long",
		`"wait": -1`:                                                                          "wait: -1ns is too short",
		`"providers": ["github"], "keys": [{"header": "X-Id"}, {"json": "id"}]`:               "keys[1]: JSON pointer",
		`"keys": [{"value": "order"}]`:                                                        "keys[0]: value: \"order\" has no placeholder",
		`"release_on": ["5xx", "5xx"]`:                                                        "release_on: 5xx is named twice",
		`"scope": ["{a}", "{a}"]`:                                                             "scope: {a} is named twice",
		`"max_attempts": "five"`:                                                              "max_attempts",
	} {
		s := new(Settings)
		err := json.Unmarshal([]byte("{"+text+"}"), s)
		if err == nil {
			s.setDefaults()
			err = s.check()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
