package redis

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestDoubtOutlivesLaterAttempts makes several attempts at one claim, as go-redis does
// by itself. The error of the last attempt says nothing about those before.
func TestDoubtOutlivesLaterAttempts(t *testing.T) {
	refused := &dialError{errors.New("refused")}
	moved := goredis.ErrCrossSlot // stands for any answer of a server
	for _, test := range []struct {
		attempts []error
		doubt    bool
	}{
		{[]error{io.EOF, refused}, true},
		{[]error{io.EOF, moved}, true},
		{[]error{moved, context.DeadlineExceeded}, true},
		{[]error{refused, refused}, false},
		{[]error{moved, refused, goredis.ErrPoolTimeout}, false},
	} {
		c := &contact{servers: make(map[string]*server), log: zap.NewNop()}
		c.connected("a:1")
		c.current.Load().greeted.Store(true)
		claim := newScript(ctx, claimScript, false, []string{"key"}, "token")
		for i, err := range test.attempts {
			_ = c.ProcessHook(func(context.Context, goredis.Cmder) error { return err })(ctx, claim)
			if i > 0 {
				continue
			}
			// After an ASK redirect, go-redis sends it in a pipeline.
			_ = c.ProcessPipelineHook(func(context.Context, []goredis.Cmder) error {
				claim.SetErr(err)
				return err
			})(ctx, []goredis.Cmder{goredis.NewCmd(ctx, "asking"), claim})
		}
		if claim.doubt != test.doubt {
			t.Errorf("after %v: in doubt %v, want %v", test.attempts, claim.doubt, test.doubt)
		}
	}
}

// TestNoTimeFromARefusedConnection has go-redis tell the commands of a pipeline nothing of
// a connection that the server refuses. The estimate of its clock stays, and so do the
// times that are written by it.
func TestNoTimeFromARefusedConnection(t *testing.T) {
	c := &contact{servers: make(map[string]*server), log: zap.NewNop()}
	c.connected("a:1")
	s := c.current.Load()
	s.greeted.Store(true)
	now := time.Now()
	s.clock.learn(now.UnixMilli(), now)
	refused := errors.New("refused")
	asked, claim := goredis.NewTimeCmd(ctx, "time"), newRequest(ctx, "set")
	_ = c.ProcessPipelineHook(func(context.Context, []goredis.Cmder) error { return refused })(ctx, []goredis.Cmder{asked, claim})
	if !errors.Is(claim.Err(), refused) || claim.now != 0 {
		t.Errorf("the claim has the error %v and the server's time %d; want %v and none", claim.Err(), claim.now, refused)
	}
	if wrong := s.clock.at(now) - now.UnixMilli(); wrong < -1000 || wrong > 1000 {
		t.Errorf("the estimate is wrong by %d ms", wrong)
	}
}

// TestNextServer puts another server behind the same name, as sentinels or a DNS
// record do. It is greeted like the first.
func TestNextServer(t *testing.T) {
	first := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
	second := redistest.Start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru")
	var now atomic.Pointer[redistest.Server]
	now.Store(first)
	core, logs := observer.New(zap.InfoLevel)
	o := Options{Addresses: []string{"redis.test:6379"}, Timeout: generous, Logger: zap.New(core)}.withDefaults()
	c := clientOptions(o)
	c.Dialer = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, now.Load().Addr)
	}
	s := closeAtEnd(t, newStore(watched(goredis.NewClient(c), o), o))
	mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
	now.Store(second)
	first.Kill()
	for _, name := range []string{"b", "c", "d"} {
		eventually(t, "a claim at the second server", func() bool {
			claimed, err := s.Claim(ctx, claimOf(name, "token"))
			return err == nil && claimed.Verdict == idempotency.Proceed
		})
	}
	var warned []any
	for _, entry := range logs.FilterMessageSnippet("may evict").All() {
		warned = append(warned, entry.ContextMap()["maxmemory_policy"])
	}
	if len(warned) != 2 || warned[0] != "allkeys-lru" || warned[1] != "volatile-lru" {
		t.Errorf("warned of %v; want both servers", warned)
	}
	if n := logs.FilterMessageSnippet("another redis than before").Len(); n != 1 {
		t.Errorf("%d log lines of another server, want 1", n)
	}
}
