package redis

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// TestLapsedForcedRunOverAnExpiredRecord has a hash in Redis under a key that has no
// record: a forced run lapsed, and what it was to replace has expired.
func TestLapsedForcedRunOverAnExpiredRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := miniredis.NewMiniRedis()
		server.ClockTTL(true)
		t.Cleanup(server.Close)
		s := closeAtEnd(t, openMini(server))
		c := claimOf("a", "token")
		settlement := kept(small)
		settlement.Retention = time.Minute
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, settlement)
		forced := withToken(c, "forced")
		forced.Force, forced.Lease = true, time.Second
		mustClaim(t, s, forced, idempotency.Proceed)
		time.Sleep(2 * time.Minute)
		if !server.Exists(named.record(c.Key)) {
			t.Fatal("the hash has expired with the record that was to be replaced")
		}
		mustBeAbsent(t, s, c.Key)
		if page, _, err := s.List(ctx, "", 10); err != nil || len(page) != 0 {
			t.Errorf("list: %+v, %v; want nothing", page, err)
		}
		if _, err := s.Free(ctx, c.Key, "operator"); !errors.Is(err, idempotency.ErrGone) {
			t.Errorf("free: %v, want ErrGone", err)
		}
		mustClaim(t, s, withToken(c, "next"), idempotency.Proceed)
	})
}
