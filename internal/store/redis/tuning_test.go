package redis

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// The server is slower than the timeout of the store, until Tune sets a longer one.
func TestTimeoutChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		defer server.Close()
		slow := time.Duration(0)
		t.Cleanup(func() { time.Sleep(slow) }) // for a reply that is under way when the store is closed
		o := Options{Addresses: []string{"pipe:1"}, Timeout: time.Second}
		o.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialMini(server)(ctx, network, address)
			return slowReads{conn, &slow}, err
		}
		s := closeAtEnd(t, openWith(t, o))
		mustClaim(t, s, claimOf("fast", "token"), idempotency.Proceed)
		slow = time.Second / 2
		for _, step := range []struct {
			timeout time.Duration
			fails   bool
		}{{0, true}, {time.Minute, false}, {time.Second, true}} {
			if step.timeout > 0 {
				s.Tune(step.timeout, 0)
			}
			start := time.Now()
			claimed, err := s.Claim(ctx, claimOf(step.timeout.String(), "token"))
			if (err != nil) != step.fails || err == nil && claimed.Verdict != idempotency.Proceed {
				t.Errorf("with %s: %v, %v", s.limits.timeout(), claimed.Verdict, err)
			}
			if took := time.Since(start); took > s.limits.timeout()+tickInterval {
				t.Errorf("with %s it took %s", s.limits.timeout(), took)
			}
		}
	})
}

// slowReads is a connection over which replies arrive late.
type slowReads struct {
	net.Conn
	delay *time.Duration
}

func (c slowReads) Read(b []byte) (int, error) {
	time.Sleep(*c.delay)
	return c.Conn.Read(b)
}

// Tune makes a store wait for a replica, and no longer wait.
func TestWaitReplicasChanges(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.StartReplica(t, master)
	s := closeAtEnd(t, openAt(t, master.Addr))
	for i, replicas := range []int{0, 1, 0} {
		s.Tune(busyTimeout, replicas)
		before := s.waitingFlushes()
		settleMany(t, s, small, claimMany(t, s, string(rune('a'+i)), 1))
		storetest.Equal(t, s.waitingFlushes()-before, int64(replicas), "flushes waited for replicas", replicas)
	}
	storetest.Equal(t, s.Unreplicated(), 0, "responses are on no replica")
}
