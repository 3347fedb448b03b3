package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// settleMany keeps a response of this size for each key, concurrently.
func settleMany(t *testing.T, s *Store, size int, records map[string]*idempotency.Record) {
	var settling sync.WaitGroup
	for name, record := range records {
		settling.Go(func() {
			wantErr(t, s.Settle(ctx, keyOf(name), record, kept(size)), nil)
		})
	}
	settling.Wait()
}

// The replica has each kept response when Settle returns.
func TestWaitReplicas(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	s := openWith(t, Options{Addresses: []string{master.Addr}, Timeout: busyTimeout, WaitReplicas: 1})

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
	sent := count(only(s))
	d := claimOf("released", "token")
	ends(released())(t, s, d)
	storetest.Equal(t, sent.waits.Load(), 0, "flushes of a released run waited for replicas")
}

// replicas has the fake server report replicas, and wait for them with a function of what WAIT asks for.
func (f fake) replicas(connected *atomic.Int64, wait func(timeout time.Duration) (acknowledged int)) {
	f.on(func(command string, args ...string) (string, bool, bool) {
		switch {
		case command == "info":
			fields := []string{"role:master", "run_id:1"}
			for i := range connected.Load() {
				fields = append(fields, fmt.Sprintf("slave%d:ip=127.0.0.1,port=1,state=online,offset=1,lag=0", i))
			}
			return info(fields...), true, false
		case command == "wait" && args[0] != "0":
			limit, _ := strconv.Atoi(args[1])
			return fmt.Sprintf(":%d\r\n", wait(time.Duration(limit)*time.Millisecond)), true, false
		}
		return "", false, false
	})
}

// While a replica hangs, and there are more settlements than connections, few flushes wait for the
// replica, and claims go on. Each response is counted and logged.
func TestWaitReplicasStalled(t *testing.T) {
	for name, test := range map[string]struct {
		size  int
		wait  func(timeout time.Duration) int
		error string // in the log
	}{
		"small":                      {small, func(timeout time.Duration) int { time.Sleep(timeout); return 0 }, "0 of 1 replicas have it"},
		"large":                      {large, func(timeout time.Duration) int { time.Sleep(timeout); return 0 }, "0 of 1 replicas have it"},
		"the server does not answer": {small, func(time.Duration) int { time.Sleep(time.Minute); return 0 }, "the number of replicas that have it is unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				const settlements = 3 * poolSize
				var connected atomic.Int64
				connected.Store(1)
				server.replicas(&connected, test.wait)
				core, logs := observer.New(zap.WarnLevel)
				s, _ := server.open(t, Options{WaitReplicas: 1, Timeout: 4 * time.Second, Logger: zap.New(core)})
				records, sent := claimMany(t, s, "stalled ", settlements), count(only(s))
				s.countReplicas(ctx, only(s)) // so that they do not all ask
				start := time.Now()
				done := make(chan struct{})
				go func() { settleMany(t, s, test.size, records); close(done) }()
				synctest.Wait()
				claimMany(t, s, "meanwhile ", 20)
				if took := time.Since(start); took > 0 {
					t.Errorf("claims took %v meanwhile", took)
				}
				<-done
				if took := time.Since(start); took == 0 || took > s.limits.timeout()+tickInterval {
					t.Errorf("the settlements took %v; an operation's timeout is %v", took, s.limits.timeout())
				}
				if n := sent.waits.Load(); n > poolSize {
					t.Errorf("%d responses went out in %d flushes", settlements, n)
				}
				storetest.Equal(t, s.Unreplicated(), settlements, "responses are counted")
				storetest.Equal(t, logs.FilterMessageSnippet("before it is known to be on the replicas").FilterField(zap.Error(errors.New(test.error))).Len(), settlements, "responses are logged")
				for name := range records {
					mustClaim(t, s, claimOf(name, "again"), idempotency.ReplayKept)
				}
			})
		})
	}
}

// While fewer replicas than wait_replicas are connected, settlements do not wait, and the store logs only
// changes of the number.
func TestWaitReplicasTooFew(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		var connected atomic.Int64
		server.replicas(&connected, func(time.Duration) int { return int(connected.Load()) })
		core, logs := observer.New(zap.InfoLevel)
		s, _ := server.open(t, Options{WaitReplicas: 2, Logger: zap.New(core)})
		sent := count(only(s))
		for i, step := range []struct {
			connected int64
			waits     bool
			want      string // in the log
		}{{0, false, "[warn 0]"}, {0, false, "[]"}, {1, false, "[warn 1]"}, {2, true, "[info 2]"}, {2, true, "[]"}, {0, false, "[warn 0]"}} {
			const settlements = 5
			connected.Store(step.connected)
			if i == 5 { // the first one waits in vain
				s.countReplicas(ctx, only(s))
			}
			missed, waited := s.Unreplicated(), sent.waits.Load()
			for name, record := range claimMany(t, s, fmt.Sprint("step ", i, " "), settlements) {
				mustSettle(t, s, claimOf(name, "token"), record, kept(small))
			}
			missed, waited = s.Unreplicated()-missed, sent.waits.Load()-waited
			if step.waits && (missed != 0 || waited == 0) || !step.waits && (missed != settlements || waited != 0) {
				t.Errorf("step %d: %d of %d responses did not wait, in %d flushes", i, missed, settlements, waited)
			}
			var got []string
			for _, entry := range logs.TakeAll() {
				got = append(got, fmt.Sprint(entry.Level, " ", entry.ContextMap()["connected"]))
			}
			storetest.Equal(t, fmt.Sprint(got), step.want, "the log of step", i)
		}
	})
}

// A burst of settlements asks the server once how many replicas are connected, and takes no connection of others.
func TestReplicasAreCountedOnceAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		var asked atomic.Int64
		server.on(func(command string, args ...string) (string, bool, bool) {
			if command != "info" || len(args) == 0 { // without a section, a handshake asks
				return "", false, false
			}
			asked.Add(1)
			time.Sleep(time.Second)
			return info("role:master", "run_id:1"), true, false
		})
		s, _ := server.open(t, Options{WaitReplicas: 1, Timeout: 4 * time.Second})
		settleMany(t, s, small, claimMany(t, s, "burst ", 3*poolSize))
		storetest.Equal(t, asked.Load(), 1, "times that the server was asked")
		storetest.Equal(t, s.Unreplicated(), 3*poolSize, "responses that did not wait")
		storetest.Equal(t, s.client.PoolStats().WaitCount, 0, "commands that waited for a connection")

		// A caller with less time does not wait for the reply.
		c := claimOf("late", "token")
		record := mustClaim(t, s, c, idempotency.Proceed).Record
		wantErr(t, s.Settle(withTime(t, 100*time.Millisecond), c.Key, record, kept(small)), context.DeadlineExceeded)
	})
}

// Behind sentinels, the log has the address of the master.
func TestAddressBehindSentinels(t *testing.T) {
	d, master := newDialer(Options{}, new(limits), nil), "master:1"
	d.master.Store(&master)
	storetest.Equal(t, d.addressOf(sentinelClient)+" "+d.addressOf("a:1"), "master:1 a:1", "addresses")
}

// The user of the store may not use INFO, so the number of replicas is unknown.
func TestWaitReplicasUnknown(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		server.on(func(command string, args ...string) (string, bool, bool) {
			switch {
			case command == "info":
				return "-NOPERM this user has no permissions to run the 'info' command\r\n", true, false
			case command == "wait" && args[0] != "0":
				return ":1\r\n", true, false
			}
			return "", false, false
		})
		s, _ := server.open(t, Options{WaitReplicas: 1})
		sent := count(only(s))
		settleMany(t, s, small, claimMany(t, s, "unknown ", 5))
		if waits := sent.waits.Load(); waits == 0 || s.Unreplicated() != 0 {
			t.Errorf("%d flushes waited, and %d responses did not wait", waits, s.Unreplicated())
		}
	})
}
