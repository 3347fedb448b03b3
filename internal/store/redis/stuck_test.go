package redis

import (
	"context"
	"errors"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// pipelines puts a function between a client and the pipelines that it sends.
type pipelines func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error

func (pipelines) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (pipelines) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

func (p pipelines) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error { return p(ctx, commands, next) }
}

// TestLateBody has the body of an earlier settlement come in the midst of a later one,
// as when a server that stood still reads from both connections. The two are not the
// same: each is sealed anew.
func TestLateBody(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	var late []any
	s.client.(*goredis.Client).AddHook(pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
		switch {
		case commands[0].Name() != "set":
			return next(ctx, commands)
		case late == nil:
			late = commands[0].Args()
			return errors.New("the body is stuck in a socket")
		}
		if err := next(ctx, commands[:1]); err != nil {
			return err
		}
		command(t, server, late...)
		return next(ctx, commands[1:])
	}))
	if err := s.Settle(ctx, c.Key, record, kept(large)); err == nil {
		t.Fatal("the first settlement was not stuck")
	}
	settlement := kept(large)
	settlement.Response.Body[0] = 'x'
	mustSettle(t, s, c, record, settlement)
	again := mustClaim(t, s, withToken(c, "again"), idempotency.ReplayKept)
	if got := again.Response.Body[0]; got != 'x' {
		t.Errorf("the body begins with %q, want that of the settlement that was executed", got)
	}
}
