package redis

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// TestPrefixesShareNothing opens several stores in one Redis. Each has its own prefix, and a user with
// access to that prefix only. Some prefixes begin with others.
func TestPrefixesShareNothing(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cluster := redistest.StartCluster(t, 3, 0)
	for kind, test := range map[string]struct {
		servers []*redistest.Server
		o       Options
	}{
		"server":  {[]*redistest.Server{server}, Options{Addresses: []string{server.Addr}}},
		"cluster": {cluster.Masters, Options{Addresses: cluster.Addrs()}},
	} {
		t.Run(kind, func(t *testing.T) {
			var stores []*Store
			woken := make(map[*Store]chan idempotency.Key)
			for i, prefix := range []string{"", "dedup:shop:", "dedup:inbox:", "dedup", "~&+/ümläut"} {
				o := test.o
				o.Prefix, o.Timeout = prefix, busyTimeout
				o.Username, o.Password = fmt.Sprint("user", i), "s3cret"
				allow(o, test.servers...)
				s := closeAtEnd(t, openWith(t, o))
				heard := make(chan idempotency.Key, 100)
				t.Cleanup(s.Subscribe(func(key idempotency.Key) { heard <- key }))
				woken[s] = heard
				stores = append(stores, s)
			}
			c := claimOf("a", "token")
			waiting := claimOf("a", "waiting")
			waiting.Waits = true
			claimed := make(map[*Store]*idempotency.Record)
			for _, s := range stores {
				claimed[s] = mustClaim(t, s, c, idempotency.Proceed).Record
				mustClaim(t, s, waiting, idempotency.WaitForRun)
			}
			for i, s := range stores {
				mustSettle(t, s, c, claimed[s], kept(large+i))
				mustBeWoken(t, woken[s], c.Key)
				for _, other := range stores {
					if n := len(woken[other]); n != 0 {
						t.Errorf("the end of a run of %q woke %q, %d times", s.options.Prefix, other.options.Prefix, n)
					}
				}
			}
			for i, s := range stores {
				mustSettle(t, s, claimOf(fmt.Sprint(i), "token"), mustClaim(t, s, claimOf(fmt.Sprint(i), "token"), idempotency.Proceed).Record, kept(small))
			}
			for i, s := range stores {
				replayed := mustClaim(t, s, claimOf("a", "again"), idempotency.ReplayKept)
				storetest.Equal(t, len(replayed.Response.Body), large+i, "bytes replayed", s.options.Prefix)
				want := []idempotency.Key{c.Key, keyOf(fmt.Sprint(i))}
				if got := listAll(t, s); !sameKeys(got, want) {
					t.Errorf("%q lists %v, want %v", s.options.Prefix, got, want)
				}
			}
			for i, s := range stores {
				for _, key := range []idempotency.Key{c.Key, keyOf(fmt.Sprint(i))} {
					wantErr(t, s.Forget(ctx, key, idempotency.Precondition{}), nil, s.options.Prefix)
				}
				if got := listAll(t, s); len(got) != 0 {
					t.Errorf("%q lists %v, want nothing", s.options.Prefix, got)
				}
				if i+1 < len(stores) {
					mustClaim(t, stores[i+1], claimOf("a", "once more"), idempotency.ReplayKept)
				}
			}
			for _, server := range test.servers {
				if left := server.Do("KEYS", "*").([]any); len(left) != 0 {
					t.Errorf("keys are left: %v", left)
				}
			}
		})
	}
}

// listAll returns all keys that a store lists, each once.
func listAll(t *testing.T, s *Store) []idempotency.Key {
	t.Helper()
	var keys []idempotency.Key
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, next, err := s.List(ctx, cursor, 10)
		must(t, err)
		for _, listed := range page {
			if listed.Unreadable != nil {
				t.Fatal(listed.Unreadable)
			}
			if !slices.Contains(keys, listed.Key) {
				keys = append(keys, listed.Key)
			}
		}
		cursor = next
	}
	return keys
}

func sameKeys(a, b []idempotency.Key) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(key idempotency.Key) bool { return !slices.Contains(b, key) })
}

func TestPrefixes(t *testing.T) {
	for _, prefix := range []string{"dedup:", "a", "~&+:/-^\"'", "ü", strings.Repeat("a", 100)} {
		wantErr(t, (Options{Addresses: []string{"a:1"}, Prefix: prefix}).Check(), nil, prefix)
	}
	for prefix, want := range map[string]string{
		"a{":  `'{'`,
		"{a}": `'{'`,
		"a}b": `'}'`,
		"*":   `'*'`,
		"a?":  `'?'`,
		"[":   `'['`,
		"]":   `']'`,
		`a\`:  `'\\'`,
		" ":   `' '`,
		"a b": `' '`, "a\tb": `'\t'`, "a\nb": `'\n'`, "a\x00": `'\x00'`, "a\u00a0b": `'\u00a0'`, "a\u200bb": `'\u200b'`,
		"a\xff":                  "not UTF-8",
		strings.Repeat("a", 101): "101 bytes; it takes up to 100",
	} {
		err := (Options{Addresses: []string{"a:1"}, Prefix: prefix}).Check()
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "redis prefix") {
			t.Errorf("%q: %v; want an error with %s", prefix, err, want)
		}
	}
}
