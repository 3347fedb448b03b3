package redis

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
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

// settleMany keeps a response of this size for each key, concurrently, and returns how long the slowest
// settlement took.
func settleMany(t *testing.T, s *Store, size int, records map[string]*idempotency.Record) (slowest time.Duration) {
	start := time.Now()
	var settling sync.WaitGroup
	for name, record := range records {
		settling.Go(func() {
			wantErr(t, s.Settle(ctx, keyOf(name), record, kept(size)), nil)
		})
	}
	settling.Wait()
	return time.Since(start)
}

// The replica has each kept response when Settle returns.
func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{master.Addr}, Timeout: busyTimeout, WaitReplicas: 1}))

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
	must(t, <-settled)
	if p := valueOf(t, replica, c.Key); p.state != string(rune(ended)) {
		t.Errorf("the replica has a record %+v; want the settled one", p)
	}

	settleMany(t, s, small, claimMany(t, s, "many ", 50))
	storetest.Equal(t, s.Unreplicated(), 0, "responses were answered without their replica")
	// A settlement that keeps no response does not wait.
	waits := s.waitingFlushes()
	d := claimOf("released", "token")
	mustSettle(t, s, d, mustClaim(t, s, d, idempotency.Proceed).Record, released())
	if s.waitingFlushes() != waits {
		t.Error("a released run waited for replicas")
	}
}

// waitingFlushes returns how many flushes of a store with one server waited for replicas.
func (s *Store) waitingFlushes() int64 {
	p := s.pipes.to(target{s.client.(*goredis.Client), true})
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.flushCount
}

// While a replica hangs, and there are more settlements than connections, few flushes wait for the
// replica, and claims go on.
func TestWaitReplicasStalled(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small": small, "large": large} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stalled(t, size)
		})
	}
}

func stalled(t *testing.T, size int) {
	t.Helper()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	core, logs := observer.New(zap.WarnLevel)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{master.Addr}, WaitReplicas: 1, Timeout: 4 * time.Second, Logger: zap.New(core),
	}))
	const settlements = 3 * poolSize
	settleMany(t, s, size, claimMany(t, s, "script ", 1)) // the server knows it from then on
	replica.Pause()
	records := claimMany(t, s, "stalled ", settlements)
	took := make(chan time.Duration, 1)
	go func() { took <- settleMany(t, s, size, records) }()
	eventually(t, "replicas are waited for", func() bool { return master.Info("clients", "blocked_clients") != "0" })
	claimMany(t, s, "meanwhile ", 20)
	if took := <-took; took > s.limits.timeout()+timeoutSlack {
		t.Errorf("it took %s; an operation's timeout is %s", took, s.limits.timeout())
	}
	if n := s.waitingFlushes(); n > poolSize {
		t.Errorf("%d responses went out in %d flushes", settlements, n)
	}
	storetest.Equal(t, s.Unreplicated(), settlements, "responses are counted")
	storetest.Equal(t, logs.FilterMessageSnippet("before it is known to be on the replicas").Len(), settlements, "responses are logged")
	for name := range records {
		mustClaim(t, s, claimOf(name, "again"), idempotency.ReplayKept)
	}
}

// endlessWait makes the server wait for replicas without a timeout.
type endlessWait struct{ net.Conn }

func (c endlessWait) Write(b []byte) (int, error) {
	const wait = "\r\nwait\r\n$1\r\n1\r\n"
	sent := b
	if before, _, found := strings.Cut(string(b), wait); found {
		sent = []byte(before + wait + "$1\r\n0\r\n")
	}
	_, err := c.Conn.Write(sent)
	return len(b), err
}

// A server keeps a response, but does not answer the WAIT in time. The response counts as kept and as
// not replicated.
func TestWaitReplicasWithoutReply(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{master.Addr}, WaitReplicas: 1, Timeout: 2 * time.Second,
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, address)
			return endlessWait{c}, err
		},
	}))
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	replica.Pause()
	mustSettle(t, s, c, record, kept(small))
	storetest.Equal(t, s.Unreplicated(), 1, "responses are counted")
	storetest.Equal(t, calls(t, master)["set"], 2, "SET, of the claim and of the settlement")
}

// While fewer replicas than wait_replicas are connected, settlements do not wait, and the store logs only
// changes of the number.
func TestWaitReplicasTooFew(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	core, logs := observer.New(zap.InfoLevel)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{master.Addr}, WaitReplicas: 2, Timeout: busyTimeout, Logger: zap.New(core),
	}))
	keeps := func(what string, waits bool, want ...string) {
		t.Helper()
		const settlements = 5
		missed, waited := s.Unreplicated(), s.waitingFlushes()
		for name, record := range claimMany(t, s, what, settlements) {
			mustSettle(t, s, claimOf(name, "token"), record, kept(small))
		}
		missed, waited = s.Unreplicated()-missed, s.waitingFlushes()-waited
		if waits && (missed != 0 || waited == 0) || !waits && (missed != settlements || waited != 0) {
			t.Errorf("%s: %d of %d responses did not wait, in %d flushes", what, missed, settlements, waited)
		}
		var got []string
		for _, entry := range logs.TakeAll() {
			got = append(got, fmt.Sprint(entry.Level, " ", entry.ContextMap()["connected"]))
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: the log has %v, want %v", what, got, want)
		}
	}
	keeps("none", false, "warn 0")
	keeps("none still", false)
	one := redistest.StartReplica(t, master)
	keeps("one", false, "warn 1")
	two := redistest.StartReplica(t, master)
	keeps("two", true, "info 2")
	keeps("two still", true)
	one.Kill()
	two.Kill()
	eventually(t, "the master has lost its replicas", func() bool { return master.Info("replication", "connected_slaves") == "0" })
	// The first one waits in vain.
	s.countReplicas(ctx, s.client.(*goredis.Client))
	keeps("none again", false, "warn 0")
}

// Behind sentinels, the log has the address of the master with too few replicas, also after a failover.
func TestWaitReplicasSaysWhichMaster(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	sentinels := redistest.StartSentinels(t, master, 1, 1)
	core, logs := observer.New(zap.WarnLevel)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{sentinels[0].Addr}, Sentinel: redistest.MasterName,
		WaitReplicas: 2, Timeout: busyTimeout, Logger: zap.New(core),
	}))
	wantLines := func(n int, address string) {
		t.Helper()
		lines := logs.FilterMessageSnippet("fewer replicas than wait_replicas are connected").All()
		if len(lines) != n || lines[n-1].ContextMap()["address"] != address {
			t.Errorf("the log has %+v; want %d lines, the last one of %s", lines, n, address)
		}
	}
	settleMany(t, s, small, claimMany(t, s, "before ", 2))
	wantLines(1, master.Addr)
	master.Kill()
	eventually(t, "the replica is the master", replica.IsMaster)
	var record *idempotency.Record
	eventually(t, "the store has the new master", func() bool {
		claimed, err := s.Claim(ctx, claimOf("after", "token"))
		record = claimed.Record
		return err == nil
	})
	mustSettle(t, s, claimOf("after", "token"), record, kept(small))
	wantLines(2, replica.Addr)
}

// The user of the store may not use INFO, so the number of replicas is unknown.
func TestWaitReplicasUnknown(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	redistest.StartReplica(t, master)
	master.Do("ACL", "SETUSER", "dedup", "on", ">secret", "~*", "&*", "+@all", "-info")
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{master.Addr}, Username: "dedup", Password: "secret", WaitReplicas: 1, Timeout: busyTimeout,
	}))
	settleMany(t, s, small, claimMany(t, s, "unknown ", 5))
	if waits := s.waitingFlushes(); waits == 0 || s.Unreplicated() != 0 {
		t.Errorf("%d flushes waited, and %d responses did not wait", waits, s.Unreplicated())
	}
}
