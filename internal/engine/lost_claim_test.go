package engine_test

import (
	"context"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// replicate copies the record of the key, which must be released, to the stale server.
func (s *stage) replicate(req engine.Request) {
	ctx := context.Background()
	record, _, err := s.store.Lookup(ctx, req.Key)
	if err != nil || record == nil || record.State != idempotency.Released {
		s.t.Fatalf("the master has %+v, %v", record, err)
	}
	claimed, err := s.behind.Claim(ctx, idempotency.Claim{Key: req.Key, Token: record.Token, ExecutionID: record.ExecutionID, Terms: req.Policy.Terms})
	must(s.t, err)
	must(s.t, s.behind.Settle(ctx, req.Key, claimed.Record, idempotency.Settlement{State: idempotency.Released, Counted: true, Retention: time.Hour}))
}

// The store has lost a claim whose run is in flight, as a server without persistence does in a restart.
func TestLostClaims(t *testing.T) {
	play(t, []scene{
		{"a renewal writes it again", "", `
			a runs run; lose; sleep 10s; a has in_flight 1; b refuses in_flight run after=5s; sleep 5m; b refuses in_flight run after=5s
			run ends 201 kept; b replays run`},
		{"its response is stored", "", `
			a runs run; lose; a store {works|refused}; run ends 201 {kept|trying}; sleep 1m; a store works; a drains
			a has complete 1; b replays run`},
		{"a run that releases leaves nothing", "", `
			a runs run; a asks w; lose; run ends 500 lost; w shares run; a drains; a has nothing`},
		// Under hold, the key of a claim that stays without a run would be held.
		{"a renewal writes it again while the run releases", "hold", `
			a runs run; lose; a pauses claim; a store {works|late} claim; sleep 10s; run ends 500 lost; a resumes claim; sleep 4s
			a store works; a drains; a runs next attempt=1`},
		{"a renewal finds it lost after the run has released: it writes nothing", "hold", `
			a runs run; lose; a pauses renew; sleep 10s; run ends 500 lost; a resumes renew; a has nothing`},
		{"another claim came first", "", `
			a runs first; lose; b runs run; {|sleep 1m; a asked renew 1}; first ends 201 fenced; run ends 201 kept; a replays run`},
		{"another claim came while a renewal wrote it again", "", `
			a runs first; lose; a pauses claim; sleep 10s; b runs run; a resumes claim; sleep 30s; a asked renew 1
			first ends 201 fenced; run ends 201 kept`},
		{"another claim came while the end wrote it again", "", `
			a runs first; lose; a pauses claim; first ending 201; b runs run; a resumes claim; first ended fenced; a asked settle 1
			run ends 201 kept; a replays run`},
		{"those that waited elsewhere ask again", "", `
			a runs run; b asks w; lose; w runs next attempt=1; run ends 201 fenced; next ends 201 kept; a replays next`},
	})
}

// A stale replica of the store, which has the record of the previous run only, is promoted.
func TestFailoverToAStaleServer(t *testing.T) {
	const failover = "a runs old; old ends 500 released; replicate; a runs run attempt=2; failover; "
	play(t, []scene{
		{"the run in flight loses nothing", "wait=1h", failover + `
			a asks w n=2; sleep {0s|15s|5m}; {|b refuses in_flight run now|b refuses in_flight run now}; run ends 201 kept
			w shares run; b replays run; a has complete 2`},
		{"its release is lost: the record says so already", "", failover + "run ends 500 lost; a has released 1"},
		{"it holds the key", "hold", failover + "run ends unknown held; a has held 2; b refuses held run"},
		{"once another request has claimed the key, it is lost, whatever becomes of that", "", failover + `
			b runs next; {|next ends 500 released|next ends silent unsent|next ends 201 kept}
			run ends 201 fenced; b has {in_flight 2|released 2|released 1|complete 2}; {next ends 201 kept|||b replays next}`},
	})
}
