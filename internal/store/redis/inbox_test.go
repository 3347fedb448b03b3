package redis

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// After its connection is killed, the inbox subscribes again.
func TestInboxComesBack(t *testing.T) {
	server, s := start(t)
	woken := make(chan idempotency.Key, 100)
	defer s.Subscribe(func(key idempotency.Key) { woken <- key })()
	waitFor := func(name string) {
		t.Helper()
		c := claimOf(name, "1")
		claimed := mustClaim(t, s, c, idempotency.Proceed)
		mustWait(t, s, claimOf(name, "2"))
		if reply := command(t, server, "PUBSUB", "NUMSUB", s.inbox.name).([]any); reply[1] != int64(1) {
			t.Fatalf("a claim waits, and the inbox has %v subscribers", reply[1])
		}
		mustSettle(t, s, c, claimed.Record, kept(small))
		mustBeWoken(t, woken, c.Key)
	}
	waitFor("a")
	subscription := func() *goredis.PubSub {
		s.inbox.mu.Lock()
		defer s.inbox.mu.Unlock()
		return s.inbox.current
	}
	before := subscription()
	if killed := command(t, server, "CLIENT", "KILL", "TYPE", "pubsub"); killed != int64(1) {
		t.Fatalf("%v subscriptions, want 1 for the whole store", killed)
	}
	eventually(t, "the store subscribes again", func() bool {
		if subscription() == before { // go-redis connects it again until the store has closed it
			return false
		}
		reply := command(t, server, "PUBSUB", "NUMSUB", s.inbox.name).([]any)
		return reply[1] == int64(1)
	})
	waitFor("b")
}

// mutable is a connection that can become silent, as if the server had vanished.
type mutable struct {
	net.Conn
	muted atomic.Bool
}

func (m *mutable) Read(b []byte) (int, error) {
	for {
		n, err := m.Conn.Read(b)
		if err != nil || !m.muted.Load() {
			return n, err
		}
	}
}

func (m *mutable) Write(b []byte) (int, error) {
	if m.muted.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// All connections become silent without being closed.
func TestSilentInbox(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		defer server.Close()
		var mu sync.Mutex
		var conns []*mutable
		o := Options{Addresses: []string{"pipe:1"}}
		o.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialMini(server)(ctx, network, address)
			if err != nil {
				return nil, err
			}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, &mutable{Conn: conn})
			return conns[len(conns)-1], nil
		}
		s := closeAtEnd(t, openWith(t, o))
		woken := make(chan idempotency.Key, 10)
		defer s.Subscribe(func(key idempotency.Key) { woken <- key })()

		run := claimOf("a", "1")
		claimed := mustClaim(t, s, run, idempotency.Proceed)
		mustWait(t, s, claimOf("a", "2"))
		mu.Lock()
		for _, conn := range conns {
			conn.muted.Store(true)
		}
		mu.Unlock()
		time.Sleep(2*silenceTimeout + 2*minPause)
		synctest.Wait()
		mustSettle(t, s, run, claimed.Record, kept(small))
		mustBeWoken(t, woken, run.Key)
	})
}

// While the server is unavailable for a quarter of an hour, the inbox logs only every few minutes.
func TestInboxLogsRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		defer server.Close()
		var unavailable atomic.Bool
		core, logs := observer.New(zap.InfoLevel)
		o := Options{Addresses: []string{"pipe:1"}, Logger: zap.New(core)}
		o.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if unavailable.Load() {
				return nil, syscall.ECONNREFUSED
			}
			return dialMini(server)(ctx, network, address)
		}
		s := closeAtEnd(t, openWith(t, o))
		defer s.Subscribe(func(idempotency.Key) {})()
		mustClaim(t, s, claimOf("a", "1"), idempotency.Proceed)
		mustWait(t, s, claimOf("a", "2"))

		unavailable.Store(true)
		s.inbox.mu.Lock()
		current := s.inbox.current
		s.inbox.mu.Unlock()
		must(t, current.Close())
		time.Sleep(14 * time.Minute)
		storetest.Equal(t, logs.FilterMessageSnippet("not subscribed").Len(), 3, "log entries in 14 minutes")
		unavailable.Store(false)
		time.Sleep(maxPause)
		synctest.Wait()
		storetest.Equal(t, logs.FilterMessageSnippet("subscribed to the ends of other replicas' runs again").Len(), 1, "log entries that it is subscribed again")
	})
}
