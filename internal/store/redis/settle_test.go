package redis

import (
	"context"
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestRefusedSettlementLeavesNothing counts the keys after settlements that
// came with a response beside the record and were refused.
func TestRefusedSettlementLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	keys := func(when string, want int64) {
		t.Helper()
		if n := command(t, server, "DBSIZE"); n != want {
			t.Fatalf("%s: %v keys, want %d: %v", when, n, want, command(t, server, "KEYS", "*"))
		}
	}
	late := claimOf("a", "late")
	claimed := mustClaim(t, s, late, idempotency.Proceed)
	mustSettle(t, s, late, claimed.Record, released())
	keys("released", 2)
	mustSettle(t, s, late, claimed.Record, kept(large))
	keys("settled again", 2)

	next := claimOf("a", "next")
	nextClaimed := mustClaim(t, s, next, idempotency.Proceed)
	if err := s.Settle(ctx, late.Key, claimed.Record, kept(large)); !errors.Is(err, idempotency.ErrFenced) {
		t.Fatalf("settle: %v, want ErrFenced", err)
	}
	keys("fenced", 2)
	if answer, err := s.Response(ctx, late.Key, late.Token); err != nil || answer == nil || answer.Status != 503 {
		t.Errorf("the released answer: %+v, %v", answer, err)
	}

	command(t, server, "FLUSHALL") // the server loses everything
	if err := s.Settle(ctx, next.Key, nextClaimed.Record, kept(large)); !errors.Is(err, idempotency.ErrGone) {
		t.Fatalf("settle: %v, want ErrGone", err)
	}
	keys("gone", 0)
}

// TestSettleWithoutItsResponse runs the script without the response, as if that had
// been evicted.
func TestSettleWithoutItsResponse(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)
	call, err := newSettleCall(s, c.Key, claimed.Record, kept(large))
	if err != nil {
		t.Fatal(err)
	}
	answer, _, _, err := s.runScript(ctx, settleScript, call.keys, nil, call.args...)
	if err != nil || answer.word != replyNoResponse {
		t.Fatalf("settle: %+v, %v; want %q", answer, err, replyNoResponse)
	}
	if record, _, err := s.Lookup(ctx, c.Key); err != nil || record.State != idempotency.InFlight {
		t.Errorf("the record: %+v, %v; want it in flight", record, err)
	}
}

func TestCompleteNeedsResponse(t *testing.T) {
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{"127.0.0.1:1"}}))
	err := s.Settle(ctx, keyOf("a"), &idempotency.Record{Token: "token"}, idempotency.Settlement{State: idempotency.Complete})
	if err == nil || errors.Is(err, idempotency.ErrGone) || errors.Is(err, idempotency.ErrFenced) {
		t.Errorf("complete without a response: %v", err)
	}
}

// TestForgetRemovesEarlierAnswers forgets a key that was released more often
// than a record remembers.
func TestForgetRemovesEarlierAnswers(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	const runs = 12
	for i := range runs {
		c := claimOf("a", string(rune('a'+i)))
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, released())
	}
	if err := s.Forget(ctx, keyOf("a"), idempotency.Seen{}); err != nil {
		t.Fatalf("forget: %v", err)
	}
	// The last one and eight before it are gone with the record; older answers
	// expire by themselves.
	if n := command(t, server, "DBSIZE"); n != int64(runs-9) {
		t.Errorf("%v keys left, want %d", n, runs-9)
	}
}

// TestSettlementWithoutRoomLeavesNothing has room for a body, and then none for the
// record: each attempt would leave a body under another name.
func TestSettlementWithoutRoomLeavesNothing(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)
	s.client.(*goredis.Client).AddHook(pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
		if commands[0].Name() != "set" {
			return next(ctx, commands)
		}
		if err := next(ctx, commands[:1]); err != nil {
			return err
		}
		command(t, server, "CONFIG", "SET", "maxmemory", "1")
		return next(ctx, commands[1:])
	}))
	for range 2 {
		if err := s.Settle(ctx, c.Key, claimed.Record, kept(large)); !hasCode(err, "OOM") {
			t.Errorf("settle: %v, want OOM", err)
		}
		if n := command(t, server, "DBSIZE"); n != int64(1) {
			t.Errorf("%v keys, want the record alone: %v", n, command(t, server, "KEYS", "*"))
		}
		command(t, server, "CONFIG", "SET", "maxmemory", "0")
	}
}

// TestRenewalWithoutRoom has a server that is full. A run in flight keeps its lease:
// otherwise another one would begin beside it as soon as there is room.
func TestRenewalWithoutRoom(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)
	command(t, server, "CONFIG", "SET", "maxmemory", "1")
	longer := c
	longer.Lease *= 2
	if err := s.Renew(ctx, longer); err != nil {
		t.Fatal(err)
	}
	if found := mustFind(t, s, c.Key); found.LeaseUntil.Sub(claimed.Record.LeaseUntil) < c.Lease/2 {
		t.Errorf("the lease ends at %v, after it was renewed for %v; it ended at %v", found.LeaseUntil, longer.Lease, claimed.Record.LeaseUntil)
	}
	if err := s.Renew(ctx, withToken(c, "another")); !errors.Is(err, idempotency.ErrFenced) {
		t.Errorf("with another token: %v, want ErrFenced", err)
	}
	if _, err := s.Claim(ctx, claimOf("b", "token")); !hasCode(err, "OOM") {
		t.Errorf("a new claim: %v, want OOM", err)
	}
}
