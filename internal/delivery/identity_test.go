package delivery_test

import (
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// keyOf derives the key from what was found, as a handler does.
func keyOf(found delivery.Found) idempotency.Key {
	return idempotency.Identity{
		Namespace: "default",
		Scope:     found.Scope,
		Kind:      found.Kind,
		Prefix:    found.Prefix,
		ID:        found.ID,
		Tuple:     found.Tuple,
	}.Key()
}

// Two requests have the same key exactly if they have the same prefix and the same
// ID. The texts are short and of few characters, so that different pairs are often
// equal once their texts are joined.
func TestDifferentPrefixAndIDNeverMeet(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		var b strings.Builder
		for range 1 + random.IntN(4) {
			b.WriteByte("ab:\"\\ 1"[random.IntN(7)])
		}
		return b.String()
	}
	type tuple struct{ prefix, id string }
	tuples, keys := map[idempotency.Key]tuple{}, map[tuple]idempotency.Key{}
	met := 0
	for range 50_000 {
		want := tuple{text(), text()}
		found := find(t, http.Header{"Idempotency-Key": {quoted(want.id)}},
			delivery.Source{Kind: delivery.KindHeader, Header: "Idempotency-Key", Prefix: want.prefix})
		key := keyOf(found)
		if other, ok := tuples[key]; ok && other != want {
			t.Fatalf("%q and %q have the same key", other, want)
		}
		if other, ok := keys[want]; ok {
			met++
			if other != key {
				t.Fatalf("%q has two keys", want)
			}
		}
		tuples[key], keys[want] = want, key
	}
	if met == 0 || len(keys) < 10_000 {
		t.Fatalf("%d tuples, %d of them met again: the alphabet is wrong", len(keys), met)
	}
}

func TestQuotedAndBareHaveOneKey(t *testing.T) {
	bare := find(t, http.Header{"Idempotency-Key": {"abc"}}, keyHeader)
	in := find(t, http.Header{"Idempotency-Key": {`"abc"`}}, keyHeader)
	if keyOf(bare) != keyOf(in) {
		t.Fatal("abc and \"abc\" have different keys")
	}
}
