package redis

import (
	"context"
	"errors"
	"strings"
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

// TestSettlementWithoutRoom has room for a body, and then none for the record. Redis lets a
// script go on that has begun to write, and so the body that is there is kept. Without room
// for the body, the run stays in flight, and nothing is left of the attempts.
func TestSettlementWithoutRoom(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)
	command(t, server, "CONFIG", "SET", "maxmemory", "1")
	for range 2 {
		if err := s.Settle(ctx, c.Key, claimed.Record, kept(large)); !hasCode(err, "OOM") {
			t.Errorf("settle: %v, want OOM", err)
		}
		if n := command(t, server, "DBSIZE"); n != int64(1) {
			t.Errorf("%v keys, want the record alone: %v", n, command(t, server, "KEYS", "*"))
		}
	}
	command(t, server, "CONFIG", "SET", "maxmemory", "0")
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
	mustSettle(t, s, c, claimed.Record, kept(large))
	if n := command(t, server, "DBSIZE"); n != int64(2) {
		t.Errorf("%v keys, want the record and its body: %v", n, command(t, server, "KEYS", "*"))
	}
	mustClaim(t, s, claimOf("a", "again"), idempotency.ReplayKept)
}

// TestSettlementRefusedInPart has a user who lacks the right to one of the commands of the
// script, from when the body is there. Redis takes back nothing of what a script did
// before that. The run must stay in flight until it is settled as a whole.
func TestSettlementRefusedInPart(t *testing.T) {
	bodyInAnswer := released()
	bodyInAnswer.Response.Body = make([]byte, large)
	for name, test := range map[string]struct {
		settlement idempotency.Settlement
		missing    []any // rights
	}{
		"a body keeps its first name":    {kept(large), []any{"-rename"}},
		"a body keeps its first expiry":  {kept(large), []any{"-pexpire"}},
		"a body without its record":      {kept(large), []any{"-set"}},
		"an answer keeps its first name": {bodyInAnswer, []any{"-rename"}},
		"an answer without its record":   {bodyInAnswer, []any{"-set"}},
	} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			username, password := allowed(server)
			s := closeAtEnd(t, openWith(t, Options{
				Addresses: []string{server.Addr}, Username: username, Password: password, Timeout: generous,
			}))
			c := claimOf("a", "token")
			claimed := mustClaim(t, s, c, idempotency.Proceed)
			refuses := true
			s.client.(*goredis.Client).AddHook(pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
				if !refuses {
					return next(ctx, commands)
				}
				if commands[0].Name() == "set" { // the body
					if err := next(ctx, commands[:1]); err != nil {
						return err
					}
					commands = commands[1:]
				}
				command(t, server, append([]any{"ACL", "SETUSER", username}, test.missing...)...)
				return next(ctx, commands)
			}))
			for range 2 {
				err := s.Settle(ctx, c.Key, claimed.Record, test.settlement)
				if err == nil || !strings.Contains(err.Error(), "needs the rules") {
					t.Errorf("settle: %v; want the rules that are needed", err)
				}
				if n := command(t, server, "DBSIZE"); n != int64(1) {
					t.Errorf("%v keys, want the record alone: %v", n, command(t, server, "KEYS", "*"))
				}
				if p := valueOf(t, server, c.Key); p.state != string(rune(inFlight)) {
					t.Fatalf("the record has the state %q; want it in flight", p.state)
				}
				allowed(server)
			}
			refuses = false
			mustSettle(t, s, c, claimed.Record, test.settlement)
			mustSettle(t, s, c, claimed.Record, test.settlement) // as after a lost reply
			if test.settlement.State == idempotency.Complete {
				mustClaim(t, s, claimOf("a", "again"), idempotency.ReplayKept)
			}
			answer, err := s.Response(ctx, c.Key, c.Token)
			if err != nil || answer == nil || len(answer.Body) != len(test.settlement.Response.Body) {
				t.Errorf("the response: %v, %v", answer != nil, err)
			}
		})
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
