package redis

import (
	"cmp"
	"fmt"
	"slices"
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
	var stores []*Store
	woken := make(map[*Store]chan idempotency.Key)
	records := make(map[*Store]*idempotency.Record)
	c, waiting := claimOf("a", "token"), claimOf("a", "waiting")
	for i, prefix := range []string{"", "dedup:shop:", "dedup:inbox:", "dedup", "~&+/ümläut"} {
		o := Options{Addresses: []string{server.Addr}, Prefix: prefix, Timeout: busyTimeout, Username: fmt.Sprint("user", i), Password: "s3cret"}
		allow(o.Username, o.Password, access(o.withDefaults().Prefix), server)
		s := openWith(t, o)
		heard := make(chan idempotency.Key, 100)
		t.Cleanup(s.Subscribe(func(key idempotency.Key) { heard <- key }))
		stores, woken[s] = append(stores, s), heard
		records[s] = mustClaim(t, s, c, idempotency.Proceed).Record
		awaitSubscription(t, s)
		mustWait(t, s, waiting)
	}
	for i, s := range stores {
		mustSettle(t, s, c, records[s], kept(large+i))
		mustBeWoken(t, woken[s], c.Key)
		for _, other := range stores {
			storetest.Equal(t, len(woken[other]), 0, "wake-ups", other.options.Prefix)
		}
		ends(kept(small))(t, s, claimOf(fmt.Sprint(i), "token"))
	}
	for i, s := range stores {
		replayed := mustClaim(t, s, withToken(c, "again"), idempotency.ReplayKept)
		storetest.Equal(t, len(replayed.Response.Body), large+i, "bytes replayed", s.options.Prefix)
		own := []idempotency.Key{c.Key, keyOf(fmt.Sprint(i))}
		if got := listAll(t, s); !sameKeys(got, own) {
			t.Errorf("%q lists %v, want %v", s.options.Prefix, got, own)
		}
		for _, key := range own {
			must(t, s.Forget(ctx, key, noPrecondition), s.options.Prefix)
		}
		storetest.Equal(t, len(listAll(t, s)), 0, "records that are left", s.options.Prefix)
	}
	storetest.Equal[any](t, command(t, server, "DBSIZE"), int64(0), "keys that are left")
}

// listAll returns all keys that a store lists, each once.
func listAll(t *testing.T, s *Store) []idempotency.Key {
	t.Helper()
	keys, err := allKeys(s)
	must(t, err)
	return keys
}

func allKeys(s *Store) (keys []idempotency.Key, err error) {
	for cursor, first := "", true; err == nil && (first || cursor != ""); first = false {
		var page []idempotency.Listed
		page, cursor, err = s.List(ctx, cursor, 10)
		for _, listed := range page {
			err = cmp.Or(err, listed.Unreadable)
			if !slices.Contains(keys, listed.Key) {
				keys = append(keys, listed.Key)
			}
		}
	}
	return keys, err
}

func sameKeys(a, b []idempotency.Key) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(key idempotency.Key) bool { return !slices.Contains(b, key) })
}
