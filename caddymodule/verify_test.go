package caddymodule

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

func directive(text string) (*Handler, error) {
	h := new(Handler)
	return h, h.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
}

func TestVerifyInACaddyfile(t *testing.T) {
	for text, want := range map[string]string{
		"dedup github {\nverify {env.A}\n}":                                                                  `[{"provider":"github","secrets":["{env.A}"]}]`,
		"dedup github {\nverify github {env.A} {file./b}\n}":                                                 `[{"provider":"github","secrets":["{env.A}","{file./b}"]}]`,
		"dedup github stripe {\nverify github {env.A}\nverify stripe {env.B}\n}":                             `[{"provider":"github","secrets":["{env.A}"]},{"provider":"stripe","secrets":["{env.B}"]}]`,
		"dedup stripe {\nverify stripe {\nsecret {env.A} {env.B}\nwithin off\n}\n}":                          `[{"provider":"stripe","secrets":["{env.A}","{env.B}"],"within":0}]`,
		"dedup discord {\nverify discord aa\n}":                                                              `[{"provider":"discord","public_keys":["aa"]}]`,
		"dedup discord {\nverify {env.KEY}\n}":                                                               `[{"provider":"discord","public_keys":["{env.KEY}"]}]`,
		"dedup square {\nverify square {\nsecret {env.A}\nurl https://a.example/x https://b.example/x\n}\n}": `[{"provider":"square","secrets":["{env.A}"],"urls":["https://a.example/x","https://b.example/x"]}]`,
		// Their fields are the same, and the signature tells them apart.
		"dedup openai replicate {\nverify openai {env.A}\nverify replicate {env.B}\n}": `[{"provider":"openai","secrets":["{env.A}"]},{"provider":"replicate","secrets":["{env.B}"]}]`,
		"dedup {\nverify hmac {\nheader X-Signature\nsecret {env.A}\n}\n}":             `[{"hmac":{"header":"X-Signature"},"secrets":["{env.A}"]}]`,
		`dedup {
			mode webhook
			key json /id orders
			verify hmac {
				secret {env.A}
				header X-Signature
				format t={timestamp},v1={signature}
				algorithm sha512
				encoding base64
				secret_encoding hex
				signed {timestamp}.{body}
				timestamp ms
				within 1m
			}
		}`: `[{"hmac":{"header":"X-Signature","format":"t={timestamp},v1={signature}","algorithm":"sha512","encoding":"base64","secret_encoding":"hex","signed":"{timestamp}.{body}","timestamp_unit":"ms"},"secrets":["{env.A}"],"within":60000000000}]`,
		"dedup {\nverify hmac {\nheader X-Signature\nsecret {env.A}\nsigned {timestamp}.{body}\ntimestamp X-Time rfc3339\n}\n}": `[{"hmac":{"header":"X-Signature","signed":"{timestamp}.{body}","timestamp":"X-Time","timestamp_unit":"rfc3339"},"secrets":["{env.A}"]}]`,
	} {
		h, err := directive(text)
		got, _ := json.Marshal(h.Verify)
		if err != nil || string(got) != want {
			t.Errorf("%s:\n%v, %s; want %s", text, err, got, want)
		}
	}
}

// Every error names its line and what would be right, and none shows a word that may be a secret:
// {$NAME} has become a literal by then.
func TestVerifyMistakes(t *testing.T) {
	const secret = "s3cr3tword"
	for text, want := range map[string]string{
		"dedup github {\nverify\n}":                                                                              "2 verify lacks its arguments",
		"dedup github {\nverify s3cr3tword\n}":                                                                   "2 argument 1 of verify is neither a provider nor one placeholder",
		"dedup github {\nverify github s3cr3tword\n}":                                                            "2 verify: secret 1 is not one placeholder {env.NAME} or {file./path}",
		"dedup github {\nverify github {env.A} s3cr3tword\n}":                                                    "2 verify: secret 2 is not one placeholder",
		"dedup github {\nverify {env.A}s3cr3tword\n}":                                                            "2 argument 1 of verify is neither",
		"dedup github {\nverify github {env.A} {env.A}\n}":                                                       "2 verify: secret {env.A} is named twice",
		"dedup github {\nverify github {\ns3cr3tword\n}\n}":                                                      "3 verify: unknown word behind verify, which is not shown",
		"dedup github {\nverify github {\nsecret s3cr3tword\n}\n}":                                               "2 verify: secret 1 is not one placeholder",
		"dedup github {\nverify github {env.A} {\ns3cr3tword\n}\n}":                                              "- verify takes no block behind its arguments",
		"dedup github {\nverify github {env.A}\ns3cr3tword\n}":                                                   "3 dedup: unknown word behind verify",
		"dedup github {\nverify github {\nsecret {env.A} {\ns3cr3tword\n}\n}\n}":                                 "- secret takes no block behind its arguments",
		"dedup github {\nverify github {\n}\n}":                                                                  "2 verify: github needs a secret",
		"dedup github {\nverify github {\nsecret {env.A}\nwithin 5m\n}\n}":                                       "- within needs a signed timestamp, and github has none",
		"dedup github {\nverify github {\nsecret {env.A}\nwithin 0\n}\n}":                                        `- within: argument 1 is not accepted`,
		"dedup square {\nverify square {env.A}\n}":                                                               "- square needs the url to which it sends",
		"dedup discord {\nverify discord {\nsecret {env.A}\n}\n}":                                                "- discord has no use for a secret",
		"dedup sns {\nverify sns {env.A}\n}":                                                                     "2 verify: requests of sns cannot be verified: its certificate",
		"dedup github stripe {\nverify {env.A}\n}":                                                               "2 verify names no provider, and the handler has 2",
		"dedup github stripe {\nverify github {env.A}\n}":                                                        "2 verify: nothing verifies the requests of stripe",
		"dedup github {\nverify github {env.A}\nverify stripe {env.A}\n}":                                        "3 verify stripe: the handler does not serve stripe; add stripe behind dedup",
		"dedup github {\nverify github {env.A}\nverify github {env.B}\n}":                                        "3 verify github is repeated",
		"dedup github {\nmode webhook\nkey content\nverify github {env.A}\n}":                                    "4 verify: nothing verifies the requests of the key lines, by which anybody could get past; add verify hmac",
		"dedup github {\nverify github {env.A}\nverify hmac {\nheader X-S\nsecret {env.A}\n}\n}":                 "3 verify hmac is for the key lines",
		"dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\n}\nverify hmac {\nheader X-S\nsecret {env.A}\n}\n}": "6 verify hmac is repeated",
		"dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\n}\nforce X-Force\n}":                                "6 force: beside verify",
		"dedup {\nverify hmac {\nsecret {env.A}\n}\n}":                                                           `2 verify: header is missing`,
		"dedup {\nverify hmac {\nheader X-S\n}\n}":                                                               "2 verify: hmac needs a secret",
		"dedup {\nverify hmac {env.A}\n}":                                                                        "2 verify hmac takes a block",
		"dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\nsigned {timestamp}\n}\n}":                           "- has no {body}",
		"dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\nalgorithm md5\n}\n}":                                `5 verify: algorithm: argument 1 is not accepted; use sha256, sha1 or sha512`,
		"dedup {\nverify hmac {\nheader X-S\nsecret {env.A}\ntimestamp a b\n}\n}":                                "- timestamp takes the name of a header field, s, ms or rfc3339",
		"dedup openai replicate":                                                                                 "- openai",
	} {
		_, err := directive(text)
		line, message, _ := strings.Cut(want, " ")
		switch {
		case err == nil || !strings.Contains(err.Error(), message) || strings.Contains(err.Error(), secret):
			t.Errorf("%s:\n%v; want %q", text, err, message)
		case line != "-" && !strings.Contains(err.Error(), "Testfile:"+line):
			t.Errorf("%s:\n%v; want line %s", text, err, line)
		}
	}
}

// The JSON form is checked like the Caddyfile.
func TestVerifyMistakesInJSON(t *testing.T) {
	for text, want := range map[string]string{
		`{"providers": ["github"], "verify": [{"provider": "github", "secrets": ["s3cr3tword"]}]}`:               "verify[0]: secret 1 is not one placeholder",
		`{"providers": ["github"], "verify": [{"secrets": ["{env.A}"]}]}`:                                        "verify[0]: it takes exactly one of provider and hmac",
		`{"providers": ["github"], "verify": [{"provider": "github", "hmac": {}, "secrets": ["{env.A}"]}]}`:      "verify[0]: it takes exactly one",
		`{"verify": [{"hmac": {"header": "X-S", "encoding": "base32"}, "secrets": ["{env.A}"]}]}`:                `verify[0]: encoding: "base32" is not accepted`,
		`{"verify": [{"hmac": {"header": "X-S", "timestamp_unit": "h"}, "secrets": ["{env.A}"]}]}`:               "unit",
		`{"providers": ["stripe"], "verify": [{"provider": "stripe", "secrets": ["{env.A}"], "within": "-1s"}]}`: "verify[0]: within: -1s is too short",
		`{"providers": ["github", "stripe"], "verify": [{"provider": "github", "secrets": ["{env.A}"]}]}`:        "nothing verifies the requests of stripe",
	} {
		s := new(Settings)
		if err := json.Unmarshal([]byte(text), s); err != nil {
			t.Fatal(err)
		}
		s.setDefaults()
		if err := s.check(); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3tword") {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// Secrets are read when the configuration is loaded, and one that is not there fails it.
func TestVerifyReadsItsSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte("s3cr3tword\r\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TEST_SECRET", "s3cr3tword\n")
	t.Setenv("TEST_EMPTY", "")
	t.Setenv("TEST_LINE_END", "\r\n")
	t.Setenv("TEST_WHSEC", "whsec_s3cr3tword!")
	for text, want := range map[string]string{
		"dedup github {\nverify {env.TEST_SECRET}\n}":                                     "",
		"dedup github {\nverify {env.TEST_SECRET} {file." + file + "}\n}":                 "",
		"dedup github {\nverify {env.TEST_EMPTY}\n}":                                      "verify github: secret: {env.TEST_EMPTY} is empty",
		"dedup github {\nverify {env.TEST_LINE_END}\n}":                                   "verify github: secret: {env.TEST_LINE_END} is empty",
		"dedup github {\nverify {env.TEST_NOT_SET}\n}":                                    "verify github: secret: {env.TEST_NOT_SET} is empty",
		"dedup github {\nverify {file./no/such/secret}\n}":                                "verify github: secret: {file./no/such/secret} is empty",
		"dedup github {\nverify {env.TEST_SECRET} {file./no/such/file}\n}":                "verify github: secret: {file./no/such/file} is empty",
		"dedup svix {\nverify {env.TEST_WHSEC}\n}":                                        "verify svix: secret 1 of svix is not in base64",
		"dedup discord {\nverify discord s3cr3tword\n}":                                   "verify discord: public_key 1 of discord is not an Ed25519 key",
		"dedup chargebee {\nverify {env.TEST_SECRET}\n}":                                  "verify chargebee: secret 1 of chargebee has no colon",
		"dedup square {\nverify square {\nsecret {env.TEST_SECRET}\nurl s3cr3tword\n}\n}": "verify square: url 1 of square is not a URL",
	} {
		h, err := directive(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		v, err := h.verification()
		if want == "" && (err != nil || len(v.Verifiers) != 1) {
			t.Errorf("%s: %v", text, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cr3tword")) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}

// Each sender has the sources that are its own.
func TestVerifySelectsSources(t *testing.T) {
	t.Setenv("TEST_SECRET", "s3cr3tword")
	h, err := directive("dedup github {\nmode webhook\nkey header X-Id github\nverify github {env.TEST_SECRET}\nverify hmac {\nheader X-S\nsecret {env.TEST_SECRET}\n}\n}")
	if err != nil {
		t.Fatal(err)
	}
	v, err := h.verification()
	if err != nil {
		t.Fatal(err)
	}
	if of := v.Senders["github"].Sources; len(of) != 1 || of[0].Header != "X-GitHub-Delivery" {
		t.Errorf("github has %v", of)
	}
	if of := v.Senders[""].Sources; len(of) != 1 || of[0].Header != "X-Id" {
		t.Errorf("the user's own sender has %v", of)
	}
}
