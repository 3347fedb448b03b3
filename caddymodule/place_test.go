package caddymodule

import (
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
)

// An error begins with its place, says what is wrong, and names the word that is meant. It lists all
// words only if none is near.
func TestErrorsBeginWithTheirPlace(t *testing.T) {
	for text, want := range map[string]string{
		"dedup {\nretentoin 1d\n}": `Testfile:2: dedup: unknown word "retentoin"; did you mean retention?`,
		"dedup {\nwaiters 5\n}":    `Testfile:2: dedup: unknown word "waiters"; it belongs in limits of the global option dedup`,
		"dedup {\nttl 5\n}":        `Testfile:2: dedup: unknown word "ttl"; write retention 7d in the block of a site's dedup`,
		"dedup {\nkey header X-Id\nreverse_proxy localhost:3000\n}":                                   `Testfile:3: dedup: unknown word "reverse_proxy"; it is a directive of Caddy; is a } missing in front of it?`,
		"dedup {\nretention 1d\nkey header\n}":                                                        "Testfile:3: key header has the wrong number of arguments",
		"dedup githb":                                                                                 `Testfile:1: "githb" is not a provider; did you mean github?`,
		"dedup {\nkey header X-Id\nforce X-Id\n}":                                                     "Testfile:3: force: X-Id is where the key comes from",
		"dedup {\nkey header X-Id\nverify hmac {\nsecret {env.A}\n}\n}":                               "Testfile:3: verify: header is missing; write the field that has the signature",
		"dedup {\nkey header X-Id\nverify hmac {\nheader X-S\nsecret {env.A}\nalgorithm s3cret\n}\n}": "Testfile:6: verify: algorithm: argument 1 is not accepted; use sha256, sha1 or sha512",
		"dedup {\nkey header X-Id\nverify hmac {\nheader X-S s3cret\n}\n}":                            "Testfile:4: header takes one argument, the name of a header field; it has 2: [argument 1 argument 2]",
		"dedup {\nkey header X-Id\nverify hmac {\nheader X-S\nsecret {env.A}\nwithin s3cret\n}\n}":    "Testfile:6: within: argument 1 is not accepted; use a duration such as 5m, or off",
		"dedup {\nkey header X-Id\nverify hmac {\nheader \"s3 cret\"\nsecret {env.A}\n}\n}":           "Testfile:3: verify: header argument 1 is not",
	} {
		err := new(Handler).UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "cret") && strings.Contains(text, "verify") && !strings.Contains(err.Error(), "secret") {
			t.Errorf("%q:\n%v\nwant %q", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"dedup {\nstorage redis\n}":             `Testfile:2: the global option dedup: unknown word "storage"; write store redis {env.REDIS_URL}, store file or store memory`,
		"dedup {\nzzz 1\n}":                     `Testfile:2: the global option dedup: unknown word "zzz"; use encrypt, limits, local_copies, namespace or store`,
		"dedup {\nlimits {\nretention 5d\n}\n}": `Testfile:3: limits: unknown word "retention"; it belongs in the block of a site's dedup`,
	} {
		if _, err := parseGlobalOption(caddyfile.NewTestDispenser(text), nil); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q:\n%v\nwant %q", text, err, want)
		}
	}
}
