package redis

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func TestRoundTrips(t *testing.T) {
	server, s := start(t)
	defer s.Subscribe(func(idempotency.Key) {})()
	for _, warm := range []string{"warm", "warmer"} { // the connection is made, and the time and the scripts are known
		c := claimOf(warm, warm)
		c.Waits = true
		claimed := mustClaim(t, s, c, idempotency.Proceed)
		must(t, s.Renew(ctx, c))
		c.Token += " waits"
		mustClaim(t, s, c, idempotency.WaitForRun)
		mustSettle(t, s, claimOf(warm, warm), claimed.Record, kept(large))
	}
	if _, _, err := s.List(ctx, "", 10); err != nil {
		t.Fatal(err)
	}
	sent := count(only(s), bodyClient(s))
	settleScripts := 1
	if s.dialer.comparesValues.Load() {
		settleScripts = 0
	}

	var claimed idempotency.Claimed
	claim := func(name, token string, want idempotency.Verdict) func() {
		return func() {
			c := claimOf(name, token)
			c.Waits = true
			claimed = mustClaim(t, s, c, want)
		}
	}
	settle := func(name, token string, settlement idempotency.Settlement) func() {
		return func() { mustSettle(t, s, claimOf(name, token), claimed.Record, settlement) }
	}
	for _, step := range []struct {
		what     string
		do       func()
		trips    int64
		evalshas int
	}{
		{"claim", claim("a", "1", idempotency.Proceed), 1, 0},
		{"claim in flight", claim("a", "2", idempotency.WaitForRun), 2, 1},
		{"renew", func() {
			must(t, s.Renew(ctx, claimOf("a", "1")))
		}, 1, 1},
		{"claim b", claim("b", "1", idempotency.Proceed), 1, 0},
		{"settle small", settle("b", "1", kept(small)), 1, settleScripts},
		{"replay small", claim("b", "2", idempotency.ReplayKept), 1, 0},
		{"claim c", claim("c", "1", idempotency.Proceed), 1, 0},
		{"settle large", settle("c", "1", kept(large)), 1, 1},
		{"replay large", claim("c", "2", idempotency.ReplayKept), 3, 0}, // the record, how large its response is, and that
		{"claim d", claim("d", "1", idempotency.Proceed), 1, 0},
		{"release", settle("d", "1", released()), 1, 1},
		{"claim after release", claim("d", "2", idempotency.Proceed), 2, 1},
		{"response", func() {
			if r, err := s.Response(ctx, keyOf("d"), "1"); err != nil || r == nil {
				t.Fatalf("%v, %v", r, err)
			}
		}, 1, 0},
		{"list", func() {
			if page, _, err := s.List(ctx, "", 10); err != nil || len(page) != 6 {
				t.Fatalf("%d records, %v", len(page), err)
			}
		}, 2, 0},
	} {
		tripsBefore, callsBefore := sent.trips.Load(), calls(t, server)
		step.do()
		callsAfter := calls(t, server)
		storetest.Equal(t, sent.trips.Load()-tripsBefore, step.trips, "round trips", step.what)
		storetest.Equal(t, callsAfter["evalsha"]-callsBefore["evalsha"], step.evalshas, "EVALSHA", step.what)
		storetest.Equal(t, callsAfter["eval"]-callsBefore["eval"], 0, "EVAL", step.what)
		storetest.Equal(t, callsAfter["publish"]-callsBefore["publish"], 0, "PUBLISH, for runs without waiting requests", step.what)
	}
}
