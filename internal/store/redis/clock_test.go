package redis

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestServerClockJumps is what a failover to a server with another time looks like.
func TestServerClockJumps(t *testing.T) {
	server := redistest.Start(t)
	o := Options{Addresses: []string{server.Addr}, Timeout: generous}.withDefaults()
	client := goredis.NewClient(clientOptions(o))
	watching := newContact(client, o.Logger)
	s := closeAtEnd(t, newStore(client, o))
	mustClaim(t, s, claimOf("warm", "warm"), idempotency.Proceed)
	for name, jump := range map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour} {
		// When our estimate jumps one way, the server's clock seems to jump the other way.
		watching.current.Load().clock.ahead.Add(-jump.Milliseconds())
		before := calls(t, server)["evalsha"]
		mustClaim(t, s, claimOf(name, name), idempotency.Proceed)
		want := 1
		if jump > 0 {
			want = 2 // refused as overdue, then with the time learnt from that
		}
		if n := calls(t, server)["evalsha"] - before; n != want {
			t.Errorf("%s: %d claims sent, want %d", name, n, want)
		}
		mustClaim(t, s, claimOf(name+" again", name), idempotency.Proceed)
		if n := calls(t, server)["evalsha"] - before; n != want+1 {
			t.Errorf("%s: the next claim was not sent once", name)
		}
	}
}

// TestOverdueClaim has no patience at all: the server refuses every claim.
func TestOverdueClaim(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	s.patience = -time.Minute
	claimed, err := s.Claim(ctx, claimOf("a", "token"))
	if err == nil || claimed.Record != nil {
		t.Fatalf("an overdue claim: %+v, %v; want an error, and nothing in doubt", claimed, err)
	}
	mustBeAbsent(t, s, keyOf("a"))
}
