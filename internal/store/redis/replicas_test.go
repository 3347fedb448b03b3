package redis

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// claimMany claims n keys.
func claimMany(t *testing.T, s *Store, prefix string, n int) map[string]*idempotency.Record {
	t.Helper()
	records := make(map[string]*idempotency.Record)
	for i := range n {
		name := fmt.Sprint(prefix, i)
		records[name] = mustClaim(t, s, claimOf(name, "token"), idempotency.Proceed).Record
	}
	return records
}

// settleMany keeps a response under each key, all at once, and returns how long
// the slowest settlement took.
func settleMany(t *testing.T, s *Store, records map[string]*idempotency.Record) (slowest time.Duration) {
	begun := time.Now()
	var settling sync.WaitGroup
	for name, record := range records {
		settling.Go(func() {
			if err := s.Settle(ctx, keyOf(name), record, kept(small)); err != nil {
				t.Errorf("settle: %v", err)
			}
		})
	}
	settling.Wait()
	return time.Since(begun)
}

// TestWaitReplicas pauses the replica, so that it has a response only if Settle waited
// for it.
func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{master.Addr}, Timeout: generous, WaitReplicas: 1}))

	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	replica.Pause()
	settled := make(chan error, 1)
	go func() { settled <- s.Settle(ctx, c.Key, record, kept(small)) }()
	eventually(t, "the response is kept, and the replica is waited for", func() bool {
		record, _, err := s.Lookup(ctx, c.Key)
		return err == nil && record.State == idempotency.Complete && master.Info("clients", "blocked_clients") == "1"
	})
	select {
	case err := <-settled:
		t.Fatalf("the settlement did not wait for the replica: %v", err)
	default:
	}
	replica.Resume()
	if err := <-settled; err != nil {
		t.Fatalf("settle: %v", err)
	}
	if v := fmt.Sprint(replica.Do("HGET", named.record(c.Key), "l")); v != "0" {
		t.Errorf("the replica has a record whose lease ends at %q; want the settled one", v)
	}

	settleMany(t, s, claimMany(t, s, "many ", 50))
	if n := s.Unreplicated(); n != 0 {
		t.Errorf("%d responses were answered without their replica", n)
	}
	// A settlement that keeps no response does not wait.
	waits := calls(t, master)["wait"]
	d := claimOf("released", "token")
	mustSettle(t, s, d, mustClaim(t, s, d, idempotency.Proceed).Record, released())
	if n := calls(t, master)["wait"]; n != waits {
		t.Error("a released run waited for replicas")
	}
}

// TestWaitReplicasWithout has no replica at all, and then one that hangs. More
// settle at once than there are connections, and claims go on meanwhile.
func TestWaitReplicasWithout(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	core, logs := observer.New(zap.WarnLevel)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{master.Addr}, WaitReplicas: 1, Timeout: 2 * time.Second, Logger: zap.New(core),
	}))
	const settlements = 3 * poolSize
	mustTake := func(what string) {
		t.Helper()
		before := s.Unreplicated()
		records := claimMany(t, s, what, settlements)
		took := make(chan time.Duration, 1)
		go func() { took <- settleMany(t, s, records) }()
		eventually(t, "replicas are waited for", func() bool { return master.Info("clients", "blocked_clients") == "1" })
		claimMany(t, s, "meanwhile, "+what, 20)
		if took := <-took; took > s.timeout+overtime {
			t.Errorf("%s: it took %s; an operation's timeout is %s", what, took, s.timeout)
		}
		if n := s.Unreplicated() - before; n != settlements {
			t.Errorf("%s: %d of %d responses are counted", what, n, settlements)
		}
		if n := logs.FilterMessageSnippet("before it is known to be on the replicas").Len(); n != settlements {
			t.Errorf("%s: %d of %d responses are logged", what, n, settlements)
		}
		logs.TakeAll()
		for name := range records {
			mustClaim(t, s, claimOf(name, "again"), idempotency.ReplayKept)
		}
	}
	mustTake("no replica ")
	replica := redistest.StartReplica(t, master)
	replica.Pause()
	mustTake("a stalled replica ")
}

// TestReadOnlyReplica has the address of a replica, which then becomes a master.
func TestReadOnlyReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{replica.Addr}, Timeout: generous}))
	claimed, err := s.Claim(ctx, claimOf("a", "token"))
	if err == nil || !strings.Contains(err.Error(), replica.Addr) || !strings.Contains(err.Error(), "the server is a replica; set the address of the master") {
		t.Errorf("claim: %v; want it to say that this is a replica", err)
	}
	if claimed.Record != nil {
		t.Error("a claim that a replica refused may have been executed")
	}
	replica.Do("REPLICAOF", "NO", "ONE")
	c := claimOf("a", "token")
	mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(large))
	mustClaim(t, s, claimOf("a", "again"), idempotency.ReplayKept)
}
