package redis

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestOtherReplicasHearOfChanges has a replica that waits for nothing. It hears of each
// response that nobody may have a copy of any more, and of nothing else.
func TestOtherReplicasHearOfChanges(t *testing.T) {
	server := redistest.Start(t)
	s, other := closeAtEnd(t, openAt(t, server.Addr)), closeAtEnd(t, openAt(t, server.Addr))
	heard := make(chan idempotency.Key, 100)
	defer other.Subscribe(func(key idempotency.Key) { heard <- key })()
	mustClaim(t, other, claimOf("used", "token"), idempotency.Proceed)
	<-other.inbox.tried
	eventually(t, "the replica listens", func() bool {
		return command(t, server, "PUBSUB", "NUMSUB", named.copies()).([]any)[1] == int64(1)
	})
	for name, change := range map[string]func(c idempotency.Claim) error{
		"freed":     func(c idempotency.Claim) error { _, err := s.Free(ctx, c.Key, "operator"); return err },
		"forgotten": func(c idempotency.Claim) error { return s.Forget(ctx, c.Key) },
		"forced": func(c idempotency.Claim) error {
			c = withToken(c, "forced")
			c.Force = true
			return s.Settle(ctx, c.Key, mustClaim(t, s, c, idempotency.Proceed).Record, kept(large))
		},
	} {
		c := claimOf(name, "token")
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(small))
		mustClaim(t, s, withToken(c, "again"), idempotency.ReplayKept)
		leaves := withToken(c, "leaves")
		leaves.Force = true
		mustSettle(t, s, leaves, mustClaim(t, s, leaves, idempotency.Proceed).Record, released())
		if err := change(c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		mustBeWoken(t, heard, c.Key)
		if n := len(heard); n != 0 {
			t.Errorf("%s: heard %d times more", name, n)
		}
	}
}

// TestChangesCostNothingOnTheCommonWay counts what the server publishes.
func TestChangesCostNothingOnTheCommonWay(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	defer s.Subscribe(func(idempotency.Key) {})()
	for _, size := range []int{small, large} {
		c := claimOf("a", "token")
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(size))
		command(t, server, "DEL", named.record(c.Key))
	}
	if n := calls(t, server)["publish"]; n != 0 {
		t.Errorf("%d PUBLISH for runs that nobody waits for", n)
	}
}
