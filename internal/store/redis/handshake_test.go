package redis

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// Another server behind the same name, as sentinels or a DNS record may cause, is probed like the
// first.
func TestNextServer(t *testing.T) {
	first := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	second := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
	var now atomic.Pointer[redistest.Server]
	now.Store(first)
	core, logs := observer.New(zap.InfoLevel)
	o := Options{Addresses: []string{"redis.test:6379"}, Timeout: busyTimeout, Logger: zap.New(core)}
	o.dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, now.Load().Addr)
	}
	s := closeAtEnd(t, openWith(t, o))
	mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
	now.Store(second)
	first.Kill()
	for _, name := range []string{"b", "c", "d"} {
		eventually(t, "a claim at the second server", func() bool {
			claimed, err := s.Claim(ctx, claimOf(name, "token"))
			return err == nil && claimed.Verdict == idempotency.Proceed
		})
	}
	var warned []any
	for _, entry := range logs.FilterMessageSnippet("may evict").All() {
		warned = append(warned, entry.ContextMap()["maxmemory_policy"])
	}
	if len(warned) != 2 || warned[0] != "allkeys-lru" || warned[1] != "volatile-lru" {
		t.Errorf("warned of %v; want both servers", warned)
	}
	storetest.Equal(t, logs.FilterMessageSnippet("another redis server than before").Len(), 1, "log lines of another server")
}
