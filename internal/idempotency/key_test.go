package idempotency_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

var someIdentity = idempotency.Identity{
	Namespace: "default",
	Scope:     []string{"POST", "example.com", "/payments"},
	Kind:      "header",
	Prefix:    "idempotency-key",
	ID:        "8e03978e",
}

// If a new version derived keys in another way under the same label, a running installation would
// lose all its keys. So this test spells out the bytes that are hashed.
func TestKeyDerivation(t *testing.T) {
	const text = "" +
		"\x00\x00\x00\x00\x00\x00\x00\x12caddy-dedup key v1" +
		"\x00\x00\x00\x00\x00\x00\x00\x07default" +
		"\x00\x00\x00\x00\x00\x00\x00\x03" +
		"\x00\x00\x00\x00\x00\x00\x00\x04POST" +
		"\x00\x00\x00\x00\x00\x00\x00\x0bexample.com" +
		"\x00\x00\x00\x00\x00\x00\x00\x09/payments" +
		"\x00\x00\x00\x00\x00\x00\x00\x06header" +
		"\x00\x00\x00\x00\x00\x00\x00\x0fidempotency-key" +
		"\x00\x00\x00\x00\x00\x00\x00\x088e03978e"
	const alone = "" +
		"\x00\x00\x00\x00\x00\x00\x00\x11caddy-dedup ID v1" +
		"\x00\x00\x00\x00\x00\x00\x00\x07default" +
		"\x00\x00\x00\x00\x00\x00\x00\x088e03978e"
	want := fmt.Sprintf("%x%x", sha256.Sum256([]byte(alone)), sha256.Sum256([]byte(text)))
	if got := someIdentity.Key().String(); got != want[:16]+want[64:112] {
		t.Errorf("got %s; want the first 16 and 48 digits of %s and %s", got, want[:64], want[64:])
	}
}

// A tuple replaces the ID in the hash that separates keys, but not in the prefix by which operators
// find them.
func TestKeyWithTuple(t *testing.T) {
	one, other, plain := someIdentity, someIdentity, someIdentity
	one.Tuple, other.Tuple, plain.ID = "sha256:1", "sha256:2", "sha256:1"
	if one.Key() == other.Key() || one.Key() == someIdentity.Key() {
		t.Error("two tuples with one ID have the same key")
	}
	if one.Key().String()[:16] != someIdentity.Key().String()[:16] {
		t.Error("a tuple changes how the key begins")
	}
	if one.Key().String()[16:] != plain.Key().String()[16:] {
		t.Error("the tuple does not replace the ID")
	}
}

// Each row is a pair of identities that would be hashed from the same text if
// lengths and counts were not hashed too.
func TestKeySeparatesParts(t *testing.T) {
	type identity = idempotency.Identity
	for name, pair := range map[string][2]identity{
		"namespace and scope":        {{Namespace: "ab", Scope: []string{"c"}}, {Namespace: "a", Scope: []string{"bc"}}},
		"scope and scope":            {{Scope: []string{"ab", "c"}}, {Scope: []string{"a", "bc"}}},
		"two parts or one":           {{Scope: []string{"a", "b"}}, {Scope: []string{"ab"}}},
		"no scope or an empty part":  {{}, {Scope: []string{""}}},
		"one empty part or two":      {{Scope: []string{""}}, {Scope: []string{"", ""}}},
		"order of the scope":         {{Scope: []string{"a", "b"}}, {Scope: []string{"b", "a"}}},
		"scope and kind":             {{Scope: []string{"a"}}, {Kind: "a"}},
		"kind and prefix":            {{Kind: "ab", Prefix: "c"}, {Kind: "a", Prefix: "bc"}},
		"prefix and ID":              {{Prefix: "ab", ID: "c"}, {Prefix: "a", ID: "bc"}},
		"prefix or ID":               {{Prefix: "a"}, {ID: "a"}},
		"namespace or ID":            {{Namespace: "a"}, {ID: "a"}},
		"a separator of one's own":   {{Prefix: "a:", ID: "b"}, {Prefix: "a", ID: ":b"}},
		"a length of one's own":      {{Prefix: "a", ID: "b"}, {Prefix: "a\x00\x00\x00\x00\x00\x00\x00\x01b"}},
		"case":                       {{ID: "a"}, {ID: "A"}},
		"white space":                {{ID: "a"}, {ID: "a "}},
		"another provider's same ID": {{Prefix: "github", ID: "1"}, {Prefix: "gitlab", ID: "1"}},
	} {
		if pair[0].Key() == pair[1].Key() {
			t.Errorf("%s: %+v and %+v have the same key", name, pair[0], pair[1])
		}
	}
	if (identity{}).Key() != (identity{Scope: []string{}}).Key() {
		t.Error("a scope that is nil and one of no parts have different keys")
	}
}

func TestParseKey(t *testing.T) {
	key := someIdentity.Key()
	text := key.String()
	if text != hex.EncodeToString(key[:]) {
		t.Errorf("%v is not the key's hex", key)
	}
	if got, err := idempotency.ParseKey(text); err != nil || got != key {
		t.Errorf("ParseKey(%q) is %v, %v", text, got, err)
	}
	for _, wrong := range []string{
		"", "ab", text[1:], text + "0", text + text, " " + text[1:], "dedup:" + text,
		"g" + text[1:], text[:63] + "\x00", strings.Repeat("é", 32),
	} {
		got, err := idempotency.ParseKey(wrong)
		if err == nil {
			t.Errorf("%q was taken for a key", wrong)
			continue
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("%q", wrong)) || !strings.Contains(err.Error(), "hex") {
			t.Errorf("%q: %q names neither the value nor what is right", wrong, err)
		}
		if got != (idempotency.Key{}) {
			t.Errorf("%q: the key %v came with the error", wrong, got)
		}
	}
}

// Namespace and ID determine the prefix of the keys.
func TestPrefixFor(t *testing.T) {
	key := someIdentity.Key()
	begins := idempotency.PrefixFor(someIdentity.Namespace, someIdentity.ID)
	if begins != key.Prefix() || begins.String() != key.String()[:16] {
		t.Errorf("the keys begin with %s, want that of %s", begins, key)
	}
	a, b, c := idempotency.KeyPrefix{1, 2}, idempotency.KeyPrefix{1, 3}, idempotency.KeyPrefix{2}
	of := []idempotency.KeyPrefix{c, a, b, a, c}
	if got := idempotency.SortPrefixes(of); !slices.Equal(got, []idempotency.KeyPrefix{a, b, c}) {
		t.Errorf("sorted they are %v", got)
	}
	if of[0] != c {
		t.Error("sorting has changed the given ones")
	}
}
