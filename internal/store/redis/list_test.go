package redis

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestLapsedForcedRunOverAnExpiredRecord has a value in Redis under a key that has no
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
			t.Fatal("the value has expired with the record that was to be replaced")
		}
		mustBeAbsent(t, s, c.Key)
		if page, _, err := s.List(ctx, "", 10); err != nil || len(page) != 0 {
			t.Errorf("list: %+v, %v; want nothing", page, err)
		}
		if _, err := s.Free(ctx, c.Key, "operator", idempotency.Seen{}); !errors.Is(err, idempotency.ErrGone) {
			t.Errorf("free: %v, want ErrGone", err)
		}
		mustClaim(t, s, withToken(c, "next"), idempotency.Proceed)
	})
}

// TestFindAsksInSteps looks for one record among very many keys: no command takes the
// server long, and none asks about the others.
func TestFindAsksInSteps(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	const others = 10 * findAtOnce
	command(t, server, "EVAL", `
		for i = 1, tonumber(ARGV[1]) do
			local half = redis.sha1hex(i)
			redis.call('SET', 'dedup:{' .. half .. string.sub(half, 1, 24) .. '}', '1')
		end
		return 1`, 0, others)
	c := claimOf("wanted", "token")
	mustClaim(t, s, c, idempotency.Proceed)
	for name, test := range map[string]struct {
		of     []idempotency.Beginning
		atOnce int // how many names the server looks at in one step
	}{
		"one":  {[]idempotency.Beginning{c.Key.Beginning()}, findAtOnce},
		"many": {[]idempotency.Beginning{c.Key.Beginning(), keyOf("missing").Beginning()}, findSeveralAtOnce},
	} {
		before := calls(t, server)
		var found []idempotency.Listed
		steps := 0
		for cursor := ""; steps == 0 || cursor != ""; steps++ {
			page, next, err := s.Find(ctx, test.of, cursor, 10)
			if err != nil {
				t.Fatal(err)
			}
			found, cursor = append(found, page...), next
		}
		if len(found) != 1 || found[0].Key != c.Key {
			t.Errorf("%s: found %+v, want the record", name, found)
		}
		after := calls(t, server)
		// SCAN may look at a few more than it was asked for.
		if scans := after["scan"] - before["scan"]; scans != steps || scans < others/test.atOnce-1 || scans > others/test.atOnce+2 {
			t.Errorf("%s: %d SCAN in %d steps for %d keys", name, scans, steps, others)
		}
		if scripts := after["evalsha"] + after["eval"] - before["evalsha"] - before["eval"]; scripts > 2 {
			t.Errorf("%s: %d records were looked up for one", name, scripts)
		}
	}
	if pattern, want := named.beginning(c.Key.Beginning()), fmt.Sprintf("dedup:{%.16s*}", c.Key); pattern != want {
		t.Errorf("the pattern is %q, want %q", pattern, want)
	}
}
