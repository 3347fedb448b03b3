package redis

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// movedSlots is small by default; a long test sets thousands.
var movedSlots = flag.Int("redis.slots", 30, "how many slots of a cluster are moved under load, there and back, up to 5000")

// claimIn is a claim of a fresh key in one of the slots.
func claimIn(slots []int, fresh func() string) idempotency.Claim {
	for {
		name := fresh()
		if slices.Contains(slots, slotOf(name)) {
			return claimOf(name, "token")
		}
	}
}

func slotIn(c idempotency.Claim) int { return redistest.Slot(named.record(c.Key)) }

func withToken(c idempotency.Claim, token string) idempotency.Claim {
	c.Token, c.ExecutionID = token, "execution of "+token
	return c
}

// testHalfMovedSlot uses a slot of which each of two masters has a part. Operations on
// one Redis key go on, and those on several wait until the slot has moved.
func testHalfMovedSlot(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	from, to := cluster.Masters[0], cluster.Masters[2]
	first := claimOf(namesOn(0, 3, "half")(), "token")
	slot := slotIn(first)
	next := counting("in the slot")
	old, bulky, fresh := first, claimIn([]int{slot}, next), claimIn([]int{slot}, next)
	oldRecord := mustClaim(t, s, old, idempotency.Proceed).Record
	bulkyRecord := mustClaim(t, s, bulky, idempotency.Proceed).Record
	freed := claimIn([]int{slot}, next)
	mustSettle(t, s, freed, mustClaim(t, s, freed, idempotency.Proceed).Record, kept(small))

	cluster.BeginMove(slot, from, to)
	freshRecord := mustClaim(t, s, fresh, idempotency.Proceed).Record
	for _, c := range []idempotency.Claim{old, fresh} {
		mustClaim(t, s, withToken(c, "other"), idempotency.WaitForRun)
		if err := s.Renew(ctx, c); err != nil {
			t.Fatalf("renew: %v", err)
		}
	}
	mustSettle(t, s, old, oldRecord, kept(small))
	mustSettle(t, s, fresh, freshRecord, kept(small))
	mustClaim(t, s, withToken(old, "again"), idempotency.ReplayKept)
	mustClaim(t, s, withToken(fresh, "again"), idempotency.ReplayKept)
	for what, c := range map[string]idempotency.Claim{"old": freed, "fresh": claimIn([]int{slot}, next)} {
		if what == "fresh" {
			mustSettle(t, s, c, mustClaim(t, s, c, idempotency.Proceed).Record, kept(small))
		}
		if found, err := s.Free(ctx, c.Key, "operator"); err != nil || found.State != idempotency.Complete {
			t.Errorf("free, %s: %+v, %v", what, found, err)
		}
		mustClaim(t, s, withToken(c, "again"), idempotency.Proceed)
	}

	var settled error
	var background sync.WaitGroup
	background.Go(func() { settled = s.Settle(ctx, bulky.Key, bulkyRecord, kept(large)) })
	eventually(t, "a settlement on three Redis keys is refused", func() bool {
		return strings.Contains(fmt.Sprint(from.Do("INFO", "errorstats")), "errorstat_TRYAGAIN")
	})
	cluster.EndMove(slot, from, to)
	background.Wait()
	if settled != nil {
		t.Fatalf("the settlement: %v", settled)
	}
	for _, c := range []idempotency.Claim{old, fresh, bulky} {
		mustClaim(t, s, withToken(c, "at last"), idempotency.ReplayKept)
		if n := to.Do("EXISTS", named.record(c.Key)); n != int64(1) {
			t.Errorf("%s is not where its slot is", named.record(c.Key))
		}
	}
	cluster.BeginMove(slot, to, from)
	cluster.EndMove(slot, to, from)
}

// testClusterResharding moves slots to another master and back, while several
// callers take fresh keys in them through all their states.
func testClusterResharding(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	slots := make([]int, *movedSlots)
	for i := range slots {
		slots[i] = i
	}
	var moved atomic.Bool
	var keys atomic.Int64
	var callers sync.WaitGroup
	for caller := range 4 {
		next := counting(fmt.Sprint("caller ", caller))
		callers.Go(func() {
			for !moved.Load() && !t.Failed() {
				useKey(t, s, claimIn(slots, next), int(keys.Add(1)))
			}
		})
	}
	from, to := cluster.Masters[0], cluster.Masters[2]
	for range 2 {
		for _, slot := range slots {
			cluster.BeginMove(slot, from, to)
			cluster.EndMove(slot, from, to)
		}
		from, to = to, from
	}
	moved.Store(true)
	callers.Wait()
	t.Logf("%d keys while %d slots moved", keys.Load(), 2*len(slots))
	if keys.Load() == 0 {
		t.Error("nothing went on while the slots moved")
	}
}

// useKey takes a fresh key through a released and a kept run. The replay has to
// be of that run.
func useKey(t *testing.T, s *Store, c idempotency.Claim, n int) {
	step := func(c idempotency.Claim, want idempotency.Verdict) (idempotency.Claimed, bool) {
		claimed, err := s.Claim(ctx, c)
		if err != nil || claimed.Verdict != want {
			t.Errorf("claim %s of key %d: %v, %v; want %v", c.Token, n, claimed.Verdict, err, want)
			return claimed, false
		}
		return claimed, true
	}
	settle := func(c idempotency.Claim, claimed idempotency.Claimed, settlement idempotency.Settlement) bool {
		err := s.Settle(ctx, c.Key, claimed.Record, settlement)
		if err != nil {
			t.Errorf("settle %s of key %d: %v", c.Token, n, err)
		}
		return err == nil
	}
	first, ok := step(c, idempotency.Proceed)
	if !ok || !settle(c, first, released()) {
		return
	}
	again := withToken(c, "again")
	second, ok := step(again, idempotency.Proceed)
	if !ok {
		return
	}
	if _, ok := step(withToken(c, "meanwhile"), idempotency.WaitForRun); !ok {
		return
	}
	size := []int{small, large}[n%2] + n
	if !settle(again, second, kept(size)) {
		return
	}
	replayed, ok := step(withToken(c, "at last"), idempotency.ReplayKept)
	if ok && (len(replayed.Response.Body) != size || replayed.Record.Token != again.Token || replayed.Record.Attempt != 2) {
		t.Errorf("key %d: replayed %d bytes of attempt %d; want %d of attempt 2", n, len(replayed.Response.Body), replayed.Record.Attempt, size)
	}
}
