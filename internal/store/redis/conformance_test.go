package redis

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency/storetest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/redis/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestConformanceMiniredis runs the suite in bubbles: time is the bubble's, for
// the server as for the store.
func TestConformanceMiniredis(t *testing.T) {
	var server *miniredis.Miniredis
	open := func(t *testing.T) idempotency.Store {
		server = miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		return openMini(server)
	}
	storetest.Run(t, open, storetest.Options{
		Around:  synctest.Test,
		Advance: time.Sleep,
		Peer:    func(*testing.T, idempotency.Store) idempotency.Store { return openMini(server) },
	})
}

// openMini opens a store over a pipe to an in-process server: a bubble takes no
// sockets.
func openMini(server *miniredis.Miniredis) *Store {
	o := Options{Addresses: []string{"pipe:0"}}.withDefaults()
	c := clientOptions(o)
	c.Dialer = func(context.Context, string, string) (net.Conn, error) {
		conn, err := server.Dial()
		if err != nil {
			return nil, err
		}
		return newBufferedPipe(conn), nil
	}
	return newStore(goredis.NewClient(c), o)
}

func TestConformanceRedis(t *testing.T) {
	server := redistest.Start(t)
	open := func(t *testing.T) idempotency.Store {
		command(t, server, "FLUSHALL")
		return openAt(t, server.Addr)
	}
	storetest.Run(t, open, storetest.Options{
		Peer: func(t *testing.T, _ idempotency.Store) idempotency.Store { return openAt(t, server.Addr) },
	})
}
