package caddymodule

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// A lease must outlast three operations of a shared store. Local stores have no such rule.
func TestLeaseAndTheTimeoutOfItsStore(t *testing.T) {
	redis := func(settings string) storepool.Config {
		t.Helper()
		s, err := provisioned(t, settings)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	for _, test := range []struct {
		store storepool.Config
		lease time.Duration
		says  []string
	}{
		{new(FileStore), minLease, nil},
		{new(MemoryStore), minLease, nil},
		{redis(`{"addresses": ["localhost:6379"]}`), 30 * time.Second, nil},
		{redis(`{"addresses": ["localhost:6379"]}`), 1500 * time.Millisecond, nil},
		{redis(`{"addresses": ["localhost:6379"]}`), 1499 * time.Millisecond, []string{"lease: 1.499s", "redis at localhost:6379", "timeout of 500ms", "at least 1.5s", "at most 499.666666ms"}},
		{redis(`{"addresses": ["localhost:6379"]}`), time.Second, []string{"lease: 1s", "at least 1.5s"}},
		{redis(`{"url": "redis://a", "timeout": "100ms"}`), 300 * time.Millisecond, nil},
		{redis(`{"url": "redis://a", "timeout": "10s"}`), 30 * time.Second, nil},
		{redis(`{"url": "redis://a", "timeout": "11s"}`), 30 * time.Second, []string{"lease: 30s", "timeout of 11s", "at least 33s", "at most 10s"}},
		{redis(`{"url": "redis://a", "timeout": "36500d"}`), 30 * time.Second, []string{"lease: 30s", "at most 10s"}},
	} {
		err := checkLease(test.store, test.lease)
		if (err == nil) != (test.says == nil) {
			t.Errorf("%s with a lease of %s: %v", test.store.Describe(), test.lease, err)
			continue
		}
		for _, part := range test.says {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in %q", part, err)
			}
		}
	}
}
