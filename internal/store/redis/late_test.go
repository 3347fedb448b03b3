package redis

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// recorder keeps the arguments of the last SET that went out.
type recorder struct{ set []any }

func (*recorder) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (*recorder) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (r *recorder) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error {
		err := next(ctx, commands)
		for _, command := range commands {
			if command.Name() == "set" {
				r.set = nil
				for _, arg := range command.Args() {
					r.set = append(r.set, asSent(arg))
				}
			}
		}
		return err
	}
}

// asSent returns what goes out for an argument, which may be used again after that.
func asSent(arg any) any {
	switch arg := arg.(type) {
	case *bytesArg:
		return string(*arg)
	case *int64:
		return *arg
	default:
		return arg
	}
}

// TestLateClaim executes a claim once more than its caller knows of: it waited in a
// socket of a server that hung, or on the way. Nobody runs under it.
func TestLateClaim(t *testing.T) {
	for name, test := range map[string]struct {
		// before is what happens before the copy comes, to a key without a record.
		before func(t *testing.T, s *Store, c idempotency.Claim, record *idempotency.Record)
		// executed says that the copy is written, and locks that another claim waits
		// then. Without it, another one proceeds.
		executed, locks bool
	}{
		"at once": {func(*testing.T, *Store, idempotency.Claim, *idempotency.Record) {}, true, true},
		"just before its lease ends": {func(_ *testing.T, _ *Store, c idempotency.Claim, _ *idempotency.Record) {
			time.Sleep(c.Lease - time.Second)
		}, true, true},
		"after its lease": {func(_ *testing.T, _ *Store, c idempotency.Claim, _ *idempotency.Record) {
			time.Sleep(c.Lease)
		}, true, false},
		"withdrawn": {mustWithdraw, false, false},
		"withdrawn, just before its lease ends": {func(t *testing.T, s *Store, c idempotency.Claim, record *idempotency.Record) {
			mustWithdraw(t, s, c, record)
			time.Sleep(c.Lease - time.Second)
		}, false, false},
		"withdrawn, after its lease": {func(t *testing.T, s *Store, c idempotency.Claim, record *idempotency.Record) {
			mustWithdraw(t, s, c, record)
			time.Sleep(c.Lease)
		}, true, false},
		"withdrawn, and the key claimed": {func(t *testing.T, s *Store, c idempotency.Claim, record *idempotency.Record) {
			mustWithdraw(t, s, c, record)
			mustClaim(t, s, withToken(c, "another"), idempotency.Proceed)
		}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := miniredis.NewMiniRedis()
				server.ClockTTL(true)
				t.Cleanup(server.Close)
				s := closeAtEnd(t, openMini(server))
				client, sent := s.client.(*goredis.Client), new(recorder)
				client.AddHook(sent)
				c := claimOf("a", "late")
				c.Lease = time.Minute
				record := mustClaim(t, s, c, idempotency.Proceed).Record
				if err := client.Del(ctx, named.record(c.Key)).Err(); err != nil { // it was not executed yet
					t.Fatal(err)
				}
				test.before(t, s, c, record)
				err := client.Do(ctx, sent.set...).Err()
				if executed := errors.Is(err, goredis.Nil); executed != test.executed {
					t.Errorf("the copy is written: %v, want %v; %v", executed, test.executed, err)
				}
				want := idempotency.Proceed
				if test.locks {
					want = idempotency.WaitForRun
				}
				next := mustClaim(t, s, withToken(c, "next"), want)
				if left := next.Record.LeaseUntil.Sub(next.Now); left > c.Lease {
					t.Errorf("the key is locked for %v, longer than the lease", left)
				}
				if name != "withdrawn" {
					return
				}
				if next.Record.Attempt != 1 {
					t.Errorf("the next claim is attempt %d, want 1", next.Record.Attempt)
				}
				mustSettle(t, s, withToken(c, "next"), next.Record, kept(small))
				mustClaim(t, s, withToken(c, "again"), idempotency.ReplayKept)
			})
		})
	}
}

// TestWithdrawnClaimIsNoOwner has a server that has lost a claim whose run goes on, and then
// hears that another claim is withdrawn, which it has never executed: both happen in one
// failover. The mark that is left says that nobody runs under that other claim. It must not
// take the key from the run, which claims it anew.
func TestWithdrawnClaimIsNoOwner(t *testing.T) {
	for name, settlement := range map[string]idempotency.Settlement{"small": kept(small), "large": kept(large)} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			s := closeAtEnd(t, openAt(t, server.Addr))
			running, doubtful := claimOf("a", "running"), claimOf("a", "doubtful")
			record := mustClaim(t, s, running, idempotency.Proceed).Record
			command(t, server, "FLUSHALL")
			mustWithdraw(t, s, doubtful, doubtful.Record(nil, processTime()))
			if err := s.Renew(ctx, running); !errors.Is(err, idempotency.ErrGone) {
				t.Errorf("renew: %v, want ErrGone", err)
			}
			if err := s.Settle(ctx, running.Key, record, settlement); !errors.Is(err, idempotency.ErrGone) {
				t.Errorf("settle: %v, want ErrGone", err)
			}
			mustClaim(t, s, running, idempotency.Proceed)
			mustClaim(t, s, doubtful, idempotency.WaitForRun) // a late copy of it
			if err := s.Renew(ctx, running); err != nil {
				t.Errorf("renew: %v", err)
			}
			mustSettle(t, s, running, record, settlement)
			mustClaim(t, s, doubtful, idempotency.ReplayKept)
		})
	}
}

// mustWithdraw withdraws a claim as the engine does, and then the claim itself finds that.
func mustWithdraw(t *testing.T, s *Store, c idempotency.Claim, record *idempotency.Record) {
	t.Helper()
	for range 2 {
		err := s.Settle(ctx, c.Key, record, idempotency.Settlement{
			State: idempotency.Released, Retention: c.Retention, AnswerFor: c.Lease, Withdraws: true,
		})
		if !errors.Is(err, idempotency.ErrGone) {
			t.Fatalf("withdraw: %v, want ErrGone", err)
		}
	}
	mustClaim(t, s, c, idempotency.WaitForRun)
}
