package redis

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// unhurried is a timeout that operations on a busy machine seldom reach, and that is
// still much shorter than an operation that hangs.
const unhurried = 2 * time.Second

// overtime is how much longer than its timeout an operation may take on a busy
// machine. One that hangs takes seconds more.
const overtime = 2 * time.Second

// mustRecover has several callers claim fresh keys until each has got one. It fails
// if an operation takes longer than the store's timeout, or if a fresh key is answered
// with anything but a claim.
func mustRecover(t *testing.T, s *Store, freshKey func() string) {
	t.Helper()
	var callers sync.WaitGroup
	var failed atomic.Int64
	since := time.Now()
	for range 8 {
		callers.Go(func() {
			for deadline := time.Now().Add(30 * time.Second); ; {
				name := freshKey()
				begun := time.Now()
				claimed, err := s.Claim(ctx, claimOf(name, "token of "+name))
				if took := time.Since(begun); took > s.timeout+overtime {
					t.Errorf("a claim took %s; its timeout is %s", took, s.timeout)
				}
				switch {
				case err == nil && claimed.Verdict != idempotency.Proceed:
					t.Errorf("a fresh key: %v", claimed.Verdict)
					return
				case err == nil:
					return
				case time.Now().After(deadline):
					t.Errorf("the store does not recover: %v", err)
					return
				}
				failed.Add(1)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	callers.Wait()
	t.Logf("%d claims failed in %s", failed.Load(), time.Since(since).Round(time.Millisecond))
}

// keep keeps a small and a large response, on a replica too.
func keep(t *testing.T, s *Store, freshKey func() string) (names [2]string) {
	t.Helper()
	for i, size := range []int{small, large} {
		names[i] = freshKey()
		c := claimOf(names[i], "token")
		mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(size))
	}
	if n := s.Unreplicated(); n != 0 {
		t.Fatalf("%d responses are on no replica", n)
	}
	return names
}

// mustReplay replays what was kept before a failover.
func mustReplay(t *testing.T, s *Store, names [2]string) {
	t.Helper()
	for i, size := range []int{small, large} {
		replayed := mustClaim(t, s, claimOf(names[i], "again"), idempotency.ReplayKept)
		if n := len(replayed.Response.Body); n != size {
			t.Errorf("%s: %d bytes replayed, want %d", names[i], n, size)
		}
	}
}

// counting makes names that were not there before.
func counting(prefix string) func() string {
	var n atomic.Int64
	return func() string { return fmt.Sprintf("%s %d", prefix, n.Add(1)) }
}

// The ways in which a master goes away: it dies, or it hangs. One that hangs comes
// back when another has taken its place.
var outages = map[string]func(master *redistest.Server) (end func()){
	"killed": func(master *redistest.Server) func() {
		master.Kill()
		return func() {}
	},
	"stalled": func(master *redistest.Server) func() {
		master.Pause()
		return master.Resume
	},
}

// TestSentinelFailover loses the master together with the only sentinel that the
// store was told of. That happens when both run on one machine.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	for name, lose := range outages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master := redistest.Start(t)
			replica := redistest.StartReplica(t, master)
			sentinels := redistest.StartSentinels(t, master, 1, 3)
			s := closeAtEnd(t, openWith(t, Options{
				Addresses: []string{sentinels[0].Addr}, Sentinel: redistest.MasterName, WaitReplicas: 1, Timeout: unhurried,
			}))
			before := keep(t, s, counting("before"))
			endMaster, endSentinel := lose(master), lose(sentinels[0])
			mustRecover(t, s, counting("fresh"))
			if !replica.IsMaster() {
				t.Error("the replica was not promoted, and yet claims were taken")
			}
			if n := calls(t, replica)["eval"]; n == 0 {
				t.Error("the new master had the scripts; want it to get them from the store")
			}
			mustReplay(t, s, before)
			endSentinel()
			endMaster()
			mustRecover(t, s, counting("after"))
			mustReplay(t, s, before)
		})
	}
}

// TestClusterFailover loses one master of three, twice.
func TestClusterFailover(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 1)
	master, replica := cluster.Masters[0], cluster.Replicas[0]
	s := closeAtEnd(t, openWith(t, Options{Addresses: cluster.Addrs()[:2], WaitReplicas: 1, Timeout: unhurried}))
	for _, how := range []string{"killed", "stalled"} {
		lost, others := namesOn(0, 3, how), namesOn(1, 3, how+", of others")
		before := keep(t, s, lost)
		end := outages[how](master)
		mustRecover(t, s, others)
		if replica.IsMaster() {
			t.Fatal("the replica is promoted already: nothing was lost")
		}
		mustRecover(t, s, lost)
		if !replica.IsMaster() {
			t.Errorf("%s: the replica was not promoted, and yet claims were taken", how)
		}
		if n := calls(t, replica)["eval"]; n == 0 {
			t.Errorf("%s: the new master had the scripts; want it to get them from the store", how)
		}
		mustReplay(t, s, before)
		end()
		if how == "killed" {
			master.Restart()
		}
		master.AwaitMaster(replica)
		mustRecover(t, s, lost)
		mustReplay(t, s, before)
		master, replica = replica, master
	}
}
