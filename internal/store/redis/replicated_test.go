package redis

import (
	"context"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestWaitReplicasOfAnotherMaster has an address that leads to another master, which never
// got the settlement, just before its replicas are waited for.
func TestWaitReplicasOfAnotherMaster(t *testing.T) {
	t.Parallel()
	first, second := redistest.Start(t), redistest.Start(t)
	redistest.StartReplica(t, first)
	redistest.StartReplica(t, second)
	p := startProxy(t, listen(t), first.Addr)
	core, logs := observer.New(zap.WarnLevel)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{p.addr}, WaitReplicas: 1, Timeout: generous, Logger: zap.New(core)}))
	settleMany(t, s, claimMany(t, s, "before ", 5))
	if n := s.Unreplicated(); n != 0 {
		t.Fatalf("%d responses are on no replica", n)
	}
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	client := s.client.(*goredis.Client)
	failsOver := true
	client.AddHook(pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
		err := next(ctx, commands)
		if failsOver {
			failsOver = false
			p.leadTo(second.Addr)
			p.cut()
			for ctx.Err() == nil && infoField(client.Info(ctx, "server").Val(), "tcp_port") != second.Port() {
				// The client notices one connection after the other.
			}
		}
		return err
	}))
	mustSettle(t, s, c, record, kept(small))
	if failsOver {
		t.Fatal("there was no failover")
	}
	if n := s.Unreplicated(); n != 1 {
		t.Errorf("%d responses are counted, want the one that is on no replica of the new master", n)
	}
	if n := logs.FilterMessageSnippet("before it is known to be on the replicas").Len(); n != 1 {
		t.Errorf("%d responses are logged, want 1", n)
	}
	settleMany(t, s, claimMany(t, s, "after ", 5))
	if n := s.Unreplicated(); n != 1 {
		t.Errorf("%d responses are counted after five more; want still 1", n)
	}
}

// TestWaitReplicasLooksForEachResponse has one of two responses lost before the round that
// is for both of them.
func TestWaitReplicasLooksForEachResponse(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{master.Addr}, WaitReplicas: 1, Timeout: generous}))
	records := claimMany(t, s, "", 3)
	replica.Pause()
	settled := make(chan error, 3)
	settle := func(name string, joined func(executor) bool) {
		t.Helper()
		go func() { settled <- s.Settle(ctx, keyOf(name), records[name], kept(small)) }()
		eventually(t, name+" waits for its round", func() bool {
			s.replicas.mu.Lock()
			defer s.replicas.mu.Unlock()
			for master := range s.replicas.next {
				return joined(master)
			}
			return false
		})
	}
	inNext := func(n int) func(executor) bool {
		return func(master executor) bool {
			next := s.replicas.next[master]
			return next != nil && len(next.of) == n
		}
	}
	settle("0", func(executor) bool { return true })
	settle("1", inNext(1))
	settle("2", inNext(2))
	command(t, master, "DEL", named.record(keyOf("2")))
	replica.Resume()
	for range records {
		if err := <-settled; err != nil {
			t.Errorf("settle: %v", err)
		}
	}
	if n := s.Unreplicated(); n != 1 {
		t.Errorf("%d responses are counted, want the one that is gone", n)
	}
}
