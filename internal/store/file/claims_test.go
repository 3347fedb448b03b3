package file

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// killed opens the store as it is on the disk when its process is killed now.
func killed(t *testing.T, memory *vfs.MemFS) *Store {
	t.Helper()
	return reopenIn(t, inMemory{memory.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rand.New(rand.NewPCG(1, 2))})}, "/data/keys")
}

func claims(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	claimed, err := s.Claim(t.Context(), c)
	if err != nil || claimed.Verdict != idempotency.Proceed {
		t.Fatalf("claim: verdict %v, %v", claimed.Verdict, err)
	}
	return claimed.Record
}

func settles(t *testing.T, s *Store, name string, record *idempotency.Record, settlement idempotency.Settlement) {
	t.Helper()
	if err := s.Settle(t.Context(), key(name), record, settlement); err != nil {
		t.Fatal(err)
	}
}

// Whatever has become of a claim that lay in a slot: when the process is killed, the store
// knows of the key what it knew before.
func TestSlotsOfAKilledProcess(t *testing.T) {
	freed := func(t *testing.T, s *Store) {
		if _, err := s.Free(t.Context(), key("a"), "token of an operator", idempotency.Seen{}); err != nil {
			t.Fatal(err)
		}
	}
	forgotten := func(t *testing.T, s *Store) {
		if err := s.Forget(t.Context(), key("a"), idempotency.Seen{}); err != nil {
			t.Fatal(err)
		}
	}
	renewed := func(t *testing.T, s *Store) {
		if err := s.Renew(t.Context(), claimOf("a")); err != nil {
			t.Fatal(err)
		}
	}
	claimed := func(t *testing.T, s *Store) { claims(t, s, claimOf("a")) }
	ended := func(settlement idempotency.Settlement) func(t *testing.T, s *Store) {
		return func(t *testing.T, s *Store) {
			record, _, err := s.Lookup(t.Context(), key("a"))
			if err != nil {
				t.Fatal(err)
			}
			settles(t, s, "a", record, settlement)
		}
	}
	after := func(wait time.Duration) func(t *testing.T, s *Store) {
		return func(*testing.T, *Store) {
			time.Sleep(wait)
			synctest.Wait()
		}
	}
	taken := func(limit int) func(t *testing.T, s *Store) {
		return func(t *testing.T, s *Store) {
			c := claimOf("a")
			c.Token, c.MaxAttempts = "token of another", limit
			claims(t, s, c)
		}
	}
	short := completeAs("a")
	short.Retention = time.Second
	lapsed, swept := after(time.Minute), after(time.Hour+lateness)
	for name, steps := range map[string][]func(t *testing.T, s *Store){
		"claimed":                    {claimed},
		"renewed":                    {claimed, after(time.Second), renewed},
		"lapsed":                     {claimed, lapsed},
		"lapsed and moved":           {claimed, lapsed, after(2 * sweepEvery)},
		"moved and renewed":          {claimed, lapsed, after(2 * sweepEvery), renewed},
		"lapsed and renewed":         {claimed, lapsed, renewed},
		"taken over":                 {claimed, lapsed, taken(0)},
		"taken over, counted":        {claimed, lapsed, taken(5)},
		"freed":                      {claimed, lapsed, freed},
		"forgotten":                  {claimed, lapsed, forgotten},
		"forgotten, claimed":         {claimed, lapsed, forgotten, claimed},
		"expired":                    {claimed, after(time.Hour)},
		"expired and swept":          {claimed, swept},
		"complete":                   {claimed, ended(completeAs("a"))},
		"complete and freed":         {claimed, ended(completeAs("a")), freed},
		"complete and forgotten":     {claimed, ended(completeAs("a")), forgotten},
		"complete and expired":       {claimed, ended(completeAs("a")), after(time.Hour)},
		"complete and swept":         {claimed, ended(completeAs("a")), swept},
		"complete for short, swept":  {claimed, ended(short), after(sweepStep + lateness)},
		"complete, swept, claimed":   {claimed, ended(short), after(sweepStep + lateness), claimed},
		"released":                   {claimed, ended(releasedFor(time.Hour, time.Minute))},
		"released and claimed again": {claimed, ended(releasedFor(time.Hour, time.Minute)), taken(0)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := vfs.NewCrashableMem()
				s := reopenIn(t, inMemory{memory}, "/data/keys")
				for _, step := range steps {
					step(t, s)
				}
				want, _, err := s.Lookup(t.Context(), key("a"))
				if err != nil {
					t.Fatal(err)
				}
				again := killed(t, memory)
				got, _, err := again.Lookup(t.Context(), key("a"))
				if err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("killed: %+v, %v\nwant %+v", got, err, want)
				}
				// What has been taken out of the slots is in the database to stay.
				closeStore(t, again)
				if again, err = openIn(again.fs, "/data/keys", zap.NewNop()); err != nil {
					t.Fatal(err)
				}
				if got, _, err = again.Lookup(t.Context(), key("a")); err != nil || !reflect.DeepEqual(got, want) {
					t.Errorf("closed and opened again: %+v, %v\nwant %+v", got, err, want)
				}
				closeStore(t, again)
			})
		})
	}
}

// A claim that finds no slot, or is too long for one, is written to pebble.
func TestClaimsWithoutASlot(t *testing.T) {
	memory := vfs.NewCrashableMem()
	s := reopenIn(t, inMemory{memory}, "/data/keys")
	long := claimOf("long")
	long.DeliveryID = strings.Repeat("é", 250)
	claims(t, s, long)
	if n := len(s.database.slots.keys()); n != 0 {
		t.Errorf("a claim that is too long lies in %d slots", n)
	}
	const more = 5
	for i := range mostSlots + more {
		claims(t, s, claimOf(fmt.Sprint(i)))
	}
	if n := len(s.database.slots.keys()); n != mostSlots {
		t.Errorf("%d claims lie in slots, want %d", n, mostSlots)
	}
	again := killed(t, memory)
	for i := range mostSlots + more {
		claimed, err := ask(again, fmt.Sprint(i))
		if err != nil || claimed.Verdict != idempotency.WaitForRun {
			t.Fatalf("key %d: verdict %v, %v", i, claimed.Verdict, err)
		}
	}
	if claimed, err := ask(again, "long"); err != nil || claimed.Verdict != idempotency.WaitForRun {
		t.Errorf("the long one: verdict %v, %v", claimed.Verdict, err)
	}
	// The slot of a run that has ended is free for another.
	settles(t, s, "7", &idempotency.Record{Token: claimOf("7").Token}, completeAs("7"))
	claims(t, s, claimOf("next"))
	if s.database.slots.form(key("next")) == nil {
		t.Error("the slot of an ended run is not used again")
	}
	replays(t, s, "7")
}

// What stands in the slots of runs that have ended is erased, and that is flushed, before
// the database may forget their keys.
func TestStaleSlotsAreErased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := vfs.NewCrashableMem()
		s := reopenIn(t, inMemory{memory}, "/data/keys")
		const n = 20
		var records []*idempotency.Record
		for i := range n {
			records = append(records, claims(t, s, claimOf(fmt.Sprint(i))))
		}
		for i, record := range records {
			settles(t, s, fmt.Sprint(i), record, completeAs(fmt.Sprint(i)))
		}
		claims(t, s, claimOf("open"))
		count := func() int {
			t.Helper()
			// Only what is flushed.
			left, err := readSlots(memory.CrashClone(vfs.CrashCloneCfg{}), "/data/keys/"+claimsName)
			if err != nil {
				t.Fatal(err)
			}
			return len(left)
		}
		time.Sleep(2 * sweepEvery)
		synctest.Wait()
		if got := count(); got != 1 {
			t.Errorf("%d slots are in use on the disk after a sweep, want 1", got)
		}
		settles(t, s, "open", &idempotency.Record{Token: claimOf("open").Token}, completeAs("open"))
		if err := s.Forget(t.Context(), key("open"), idempotency.Seen{}); err != nil {
			t.Fatal(err)
		}
		if got := count(); got != 0 {
			t.Errorf("%d slots are in use on the disk after their keys were forgotten", got)
		}
	})
}

// A slot that is used again is no reason to leave out the flush: what it had before may be on
// the disk.
func TestSlotUsedAgainBeforeItsKeyIsForgotten(t *testing.T) {
	for name, forget := range map[string]func(t *testing.T, s *Store, run *idempotency.Record){
		"forget": func(t *testing.T, s *Store, run *idempotency.Record) {
			settles(t, s, "a", run, completeAs("a"))
			claims(t, s, claimOf("in its slot"))
			if err := s.Forget(t.Context(), key("a"), idempotency.Seen{}); err != nil {
				t.Fatal(err)
			}
		},
		"sweep": func(t *testing.T, s *Store, run *idempotency.Record) {
			short := completeAs("a")
			short.Retention = time.Second
			settles(t, s, "a", run, short)
			lasts := claimOf("in its slot")
			lasts.Lease = time.Hour
			claims(t, s, lasts)
			time.Sleep(sweepStep + lateness)
			synctest.Wait()
			if stored, err := s.database.get(recordName(key("a"))); stored != nil || err != nil {
				t.Fatalf("it is not swept: %v, %v", stored, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := vfs.NewCrashableMem()
				s := reopenIn(t, inMemory{memory}, "/data/keys")
				settles(t, s, "before", claims(t, s, claimOf("before")), completeAs("before"))
				run := claims(t, s, claimOf("a"))
				settles(t, s, "beside", claims(t, s, claimOf("beside")), completeAs("beside"))
				time.Sleep(2 * sweepEvery) // the sweeper flushes the slots
				synctest.Wait()
				forget(t, s, run)
				again := reopenIn(t, memory.CrashClone(vfs.CrashCloneCfg{}), "/data/keys")
				if record, _, err := again.Lookup(t.Context(), key("a")); record != nil || err != nil {
					t.Errorf("after a crash of the machine it is back: %+v, %v", record, err)
				}
			})
		})
	}
}

// A run may end so late that its slot is stale only after the sweeper has erased all others.
func TestSlotThatIsStaleWhileItsKeyIsSwept(t *testing.T) {
	memory := vfs.NewCrashableMem()
	s := reopenIn(t, inMemory{memory}, "/data/keys")
	settles(t, s, "a", claims(t, s, claimOf("a")), completeAs("a"))
	if err := s.sweepSome(&sweep{from: []byte{expiryTable}, now: clock().Add(2 * time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if record, _, err := killed(t, memory).Lookup(t.Context(), key("a")); record != nil || err != nil {
		t.Errorf("it is back: %+v, %v", record, err)
	}
}

// Callers that give up at any moment leave no slot and no key behind.
func TestCallersThatGiveUpLeaveNoSlot(t *testing.T) {
	s := reopen(t, newPath(t))
	const workers, rounds, names = 16, 500, 40
	var done sync.WaitGroup
	for worker := range workers {
		done.Go(func() {
			random := rand.New(rand.NewPCG(uint64(worker), 3))
			hastily := func(operate func(ctx context.Context) error) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(random.IntN(60))*time.Microsecond)
				defer cancel()
				_ = operate(ctx) // it may or may not have come through
			}
			for i := range rounds {
				name := fmt.Sprint(worker, " ", i%names)
				c := claimOf(name)
				settle := func(ctx context.Context) error {
					return s.Settle(ctx, c.Key, &idempotency.Record{Token: c.Token}, completeAs(name))
				}
				hastily(func(ctx context.Context) error { _, err := s.Claim(ctx, c); return err })
				hastily(func(ctx context.Context) error { return s.Renew(ctx, c) })
				hastily(settle)
				if random.IntN(3) == 0 {
					_ = settle(context.Background())
					hastily(func(ctx context.Context) error { return s.Forget(ctx, c.Key, idempotency.Seen{}) })
				}
			}
		})
	}
	done.Wait()
	for worker := range workers {
		for i := range names {
			k := key(fmt.Sprint(worker, " ", i))
			poll(t, "the key is unlocked", func() bool { return s.database.locks.tryLock(k) })
			s.database.locks.unlock(k)
		}
	}
	of := s.database.slots
	of.mu.Lock()
	defer of.mu.Unlock()
	uses := make(map[int]int)
	for _, number := range of.free {
		uses[number]++
	}
	for k, at := range of.open {
		uses[at.number]++
		if stored, err := s.database.get(recordName(k)); stored != nil || err != nil {
			t.Errorf("key %s has a slot, and in the database %x, %v", k, stored, err)
		}
	}
	for number := range of.used {
		if uses[number] != 1 {
			t.Errorf("slot %d is free or open %d times", number, uses[number])
		}
	}
}

// A list has the claims in slots at their places, each key once.
func TestListsHaveTheSlots(t *testing.T) {
	s := reopenIn(t, newMemory(), "/data/keys")
	const n = 60
	for i := range n {
		name := fmt.Sprint(i)
		record := claims(t, s, claimOf(name))
		if i%3 == 0 {
			settles(t, s, name, record, completeAs(name))
		}
	}
	for _, limit := range []int{1, 2, 7, n, 2 * n} {
		var all []idempotency.Listed
		for cursor, more := "", true; more; more = cursor != "" {
			page, next, err := s.List(t.Context(), cursor, limit)
			if err != nil {
				t.Fatal(err)
			}
			all, cursor = append(all, page...), next
		}
		for i, listed := range all {
			if i > 0 && bytes.Compare(all[i-1].Key[:], listed.Key[:]) >= 0 {
				t.Fatalf("pages of %d: the keys are not in their order, or one comes twice", limit)
			}
		}
		if len(all) != n {
			t.Errorf("pages of %d: %d keys, want %d", limit, len(all), n)
		}
	}
}

// A claim in a slot costs one write and no flush, and leaves nothing to pebble.
func TestClaimInASlotIsOneWrite(t *testing.T) {
	writes := make(map[string]int)
	s := reopenIn(t, errorfs.Wrap(newMemory(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
			writes[fmt.Sprint(op.Kind, " ", op.Path)]++
		}
		return nil
	})), "/data/keys")
	clear(writes)
	claims(t, s, claimOf("a"))
	want := map[string]int{fmt.Sprint(errorfs.OpFileWriteAt, " /data/keys/", claimsName): 1}
	if !reflect.DeepEqual(writes, want) {
		t.Errorf("it made %v, want %v", writes, want)
	}
}
