package redis

import (
	"context"
	"flag"
	"net"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func TestMain(m *testing.M) {
	// The parallel tests spend most of their time waiting for leases, failovers and
	// replicas. So more of them may run than there are processors.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// damage overwrites the value of a key.
func damage(t *testing.T, store idempotency.Store, key idempotency.Key) {
	s := store.(*Store)
	client, name := s.client.(goredis.Cmdable), s.names.record(key)
	value, err := client.Get(t.Context(), name).Result()
	must(t, err)
	p := readWritable(t, value)
	p.record = "damaged"
	must(t, client.Set(t.Context(), name, p.String(), goredis.KeepTTL).Err())
}

// TestConformanceMiniredis runs the suite in bubbles of synctest, whose clock both the server and the
// store use.
func TestConformanceMiniredis(t *testing.T) {
	var server *miniredis.Miniredis
	open := func(t *testing.T) idempotency.Store {
		server = miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		return openMini(server)
	}
	storetest.Run(t, open, storetest.Options{
		Bubble: true,
		// miniredis returns everything in one step.
		LongPages: true,
		Peer:      func(*testing.T, idempotency.Store) idempotency.Store { return openMini(server) },
		Damage:    damage,
	})
}

// openMini opens a store over a pipe to a server in this process: sockets do not work
// in a bubble.
func openMini(server *miniredis.Miniredis) *Store {
	return must1(Open(Options{Addresses: []string{"pipe:1"}, dial: dialMini(server)}))
}

func dialMini(server *miniredis.Miniredis) dialFunc {
	return func(context.Context, string, string) (net.Conn, error) {
		conn, err := server.Dial()
		if err != nil {
			return nil, err
		}
		return newBufferedPipe(conn), nil
	}
}

// conform runs the suite over a real server. Each subtest has a prefix of its own, and so has its peer.
func conform(t *testing.T, o Options) {
	next := counting("conformance")
	o.Timeout = busyTimeout
	storetest.Run(t, func(*testing.T) idempotency.Store {
		o := o
		o.Prefix = strings.ReplaceAll(next(), " ", ":") + ":"
		return must1(Open(o))
	}, storetest.Options{
		Damage: damage, LongPages: true,
		Peer: func(_ *testing.T, s idempotency.Store) idempotency.Store { return must1(Open(s.(*Store).options)) },
	})
}

func TestConformanceRedis(t *testing.T) {
	t.Parallel()
	conform(t, Options{Addresses: []string{redistest.Start(t).Addr}})
}

func TestConformanceCluster(t *testing.T) {
	t.Parallel()
	conform(t, Options{Addresses: redistest.StartCluster(t, 3, 0).Addrs()})
}
