package file

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// filterMade returns when the store has a filter of all keys.
func filterMade(t *testing.T, s *Store) {
	t.Helper()
	poll(t, "the filter is made", func() bool { return s.current().filters.known.Load() != nil })
}

func TestKeyFilter(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	next := func() (k idempotency.Key) {
		for i := range k {
			k[i] = byte(random.Uint32())
		}
		return k
	}
	f := newKeyFilter()
	wrong, asked := 0, 0
	for i := range 1_000_000 {
		k := next()
		if i > 900_000 {
			asked++
			if f.mayHave(&k) {
				wrong++
			}
		}
		f.add(&k)
		if !f.mayHave(&k) {
			t.Fatalf("key %s was added, and is new", k)
		}
	}
	if wrong > asked/300 {
		t.Errorf("with 1,000,000 keys it errs for %d of %d", wrong, asked)
	}
}

// Whatever the writer adds while the filter is made, begun again or put in its place: it
// says of no key that pebble has that it is new.
func TestFilterHasEveryKey(t *testing.T) {
	path := newPath(t)
	s := reopen(t, path)
	const before, during = 3 * filterStep, 8000
	keepFrom(t, s, 0, before)
	closeStore(t, s)
	s = reopen(t, path)
	filterMade(t, s)
	stop := make(chan struct{})
	var again sync.WaitGroup
	again.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := s.makeFilter(s.database); err != nil {
				t.Error(err)
			}
		}
	})
	var workers sync.WaitGroup
	for worker := range 8 {
		workers.Go(func() {
			for i := worker; i < during; i += 8 {
				name := fmt.Sprint("during ", i)
				if err := keep(t.Context(), s, name); err != nil {
					t.Error(err)
				}
				if k := key(name); s.database.filters.isNew(&k) {
					t.Errorf("key %s is new", name)
				}
			}
		})
	}
	workers.Wait()
	close(stop)
	again.Wait()
	for i := range before {
		replays(t, s, fmt.Sprint(i))
	}
	for i := range during {
		replays(t, s, fmt.Sprint("during ", i))
	}
}

// A key that has left its slot for the database is in the filter, whichever way it took.
func TestFilterHasKeysThatLeaveTheirSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := vfs.NewCrashableMem()
		s := reopenIn(t, inMemory{memory}, "/data/keys")
		synctest.Wait()
		claims(t, s, claimOf("lapses"))
		claims(t, s, claimOf("is left"))
		settles(t, s, "ends", claims(t, s, claimOf("ends")), completeAs("ends"))
		again := killed(t, memory)
		synctest.Wait()
		time.Sleep(time.Minute + 2*sweepEvery)
		synctest.Wait()
		for of, names := range map[*Store][]string{s: {"lapses", "is left", "ends"}, again: {"lapses", "is left", "ends"}} {
			for _, name := range names {
				record, _, err := of.Lookup(context.Background(), key(name))
				if k := key(name); err != nil || record == nil || of.database.filters.isNew(&k) {
					t.Errorf("key %s: %v, %v, new %v", name, record, err, of.database.filters.isNew(&k))
				}
			}
		}
	})
}
