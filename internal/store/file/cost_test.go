package file

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What a request costs, as far as it does not depend on the machine.

func compact(t *testing.T, s *Store) {
	t.Helper()
	if err := s.database.db.Compact(t.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
}

// Whether a key is new is mostly known without a look at the tables on the disk, in
// whichever level they are.
func TestNewKeysEndInAFilter(t *testing.T) {
	s := reopen(t, newPath(t))
	keepMany(t, s, 1000)
	filterMade(t, s)
	s.database.filters.known.Store(nil)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	look := func(where string, find func(k idempotency.Key) (*idempotency.Record, error)) {
		t.Helper()
		const looked = 1000
		before := s.database.db.Metrics().Filter
		for i := range looked {
			if record, err := find(key(fmt.Sprint(where, i))); record != nil || err != nil {
				t.Fatalf("record %v, %v", record, err)
			}
		}
		after := s.database.db.Metrics().Filter
		if hits := after.Hits - before.Hits; hits < looked*9/10 {
			t.Errorf("%s: %d of %d new keys ended in a filter", where, hits, looked)
		}
	}
	lookup := func(k idempotency.Key) (*idempotency.Record, error) {
		record, _, err := s.Lookup(t.Context(), k)
		return record, err
	}
	claim := func(k idempotency.Key) (*idempotency.Record, error) {
		claimed, _, err := s.database.decide(idempotency.Claim{Key: k}, clock())
		return claimed.Previous, err
	}
	look("first level, lookup", lookup)
	look("first level, claim", claim)
	compact(t, s)
	levels := s.database.db.Metrics().Levels
	if levels[len(levels)-1].TablesCount == 0 {
		t.Fatal("nothing is in the last level")
	}
	look("last level, lookup", lookup)
	look("last level, claim", claim)
}

// While there is a filter of all keys, pebble is not asked of new ones at all.
func TestNewKeysAreNotAskedOfPebble(t *testing.T) {
	s := reopen(t, newPath(t))
	keepMany(t, s, 1000)
	filterMade(t, s)
	const looked = 1000
	asked := 0
	for i := range looked {
		k := key(fmt.Sprint("new", i))
		if !s.database.filters.isNew(&k) {
			asked++
		}
	}
	if asked > looked/100 {
		t.Errorf("pebble is asked of %d of %d new keys", asked, looked)
	}
	for i := range 1000 {
		replays(t, s, fmt.Sprint(i))
	}
}

// What was read stays in memory: the tables in memory leave room for it.
func TestWhatWasReadStaysInMemory(t *testing.T) {
	var reads atomic.Int64
	s := reopenIn(t, errorfs.Wrap(newMemory(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind.ReadOrWrite() == errorfs.OpIsRead && (strings.HasSuffix(op.Path, ".sst") || strings.HasSuffix(op.Path, ".blob")) {
			reads.Add(1)
		}
		return nil
	})), "/data/keys")
	const keys = 500
	keepMany(t, s, keys)
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	compact(t, s)
	read := func() int64 {
		before := reads.Load()
		for i := range keys {
			replays(t, s, fmt.Sprint(i))
		}
		return reads.Load() - before
	}
	if n := read(); n == 0 {
		t.Fatal("nothing was read from the disk")
	}
	if n := read(); n != 0 {
		t.Errorf("%d keys that had just been read took %d reads from the disk", keys, n)
	}
}

// A first delivery takes one flush for its end, and where its claim has to survive a crash
// of the machine, one for that before; a duplicate takes none.
func TestFlushesOfARequest(t *testing.T) {
	fs := newLogWatch()
	s := reopenIn(t, fs, "/data/keys")
	const requests = 50
	for name, claim := range map[string]func(name string) idempotency.Claim{"release": claimOf, "hold": counted} {
		flushes := map[string]int64{"release": 1, "hold": 2}[name]
		t.Run(name, func(t *testing.T) {
			before := fs.flushes.Load()
			for i := range requests {
				name := fmt.Sprint(name, i)
				claimed, err := s.Claim(t.Context(), claim(name))
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Settle(t.Context(), key(name), claimed.Record, completeAs(name)); err != nil {
					t.Fatal(err)
				}
			}
			if n := fs.flushes.Load() - before; n != flushes*requests {
				t.Errorf("%d first deliveries took %d flushes, want %d each", requests, n, flushes)
			}
			before = fs.flushes.Load()
			for i := range requests {
				replays(t, s, fmt.Sprint(name, i))
			}
			if n := fs.flushes.Load() - before; n != 0 {
				t.Errorf("%d duplicates took %d flushes", requests, n)
			}
		})
	}
}

// On the disk a key takes little more than what is stored of it.
func TestBytesOfAKey(t *testing.T) {
	s := &growing{Store: reopenIn(t, newMemory(), "/data/keys"), t: t}
	random := rand.New(rand.NewPCG(1, 2))
	const keys = 2000
	for range keys {
		if err := s.keepUntil(clock().Add(sweepStep), random); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.database.db.Flush(); err != nil {
		t.Fatal(err)
	}
	compact(t, s.Store)
	m := s.database.db.Metrics()
	on := float64(uint64(m.Total().TablesSize)+m.BlobFiles.LiveSize) / keys
	if live := s.bytesAPair(); on > 1.25*live {
		t.Errorf("a key takes %.0f bytes in tables, and %.0f are stored of it", on, live)
	}
}

// The store has the same few goroutines however many keys it has, and none when it is
// closed.
func TestGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	s := reopenIn(t, newMemory(), "/data/keys")
	opened := runtime.NumGoroutine()
	if opened-before > mostGoroutines {
		t.Errorf("an open store has %d goroutines, want at most %d", opened-before, mostGoroutines)
	}
	keepMany(t, s, 2000)
	compact(t, s)
	poll(t, "the goroutines of requests and merges have ended", func() bool { return runtime.NumGoroutine()-before <= mostGoroutines })
	closeStore(t, s)
	poll(t, "the others have ended", func() bool { return runtime.NumGoroutine() <= before })
}

// mostGoroutines are those of the store (watch, sweeper, writer, confirmer) and of pebble.
const mostGoroutines = 16

// The order of the names, and their prefixes, are as pebble expects them.
func TestComparer(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	var names [][]byte
	for range 200 {
		name := make([]byte, random.IntN(60))
		for i := range name {
			name[i] = []byte{0, 1, 0xfe, 0xff}[random.IntN(4)]
		}
		names = append(names, name, append([]byte{dataTable}, name...), append([]byte{expiryTable}, name...))
	}
	k := key("a")
	names = append(names, recordName(k), responseName(k, "token"), expiryName(clock(), k, ""))
	if prefix, want := comparer.Split.Prefix(responseName(k, "token")), recordName(k)[:1+keySize]; string(prefix) != string(want) {
		t.Errorf("the prefix of a response is %x, want that of its record, %x", prefix, want)
	}
	for _, a := range names {
		if len(a) == 0 {
			continue
		}
		prefix := comparer.Split.Prefix(a)
		if n := comparer.Split(prefix); n != len(prefix) {
			t.Fatalf("the prefix of %x has the prefix %x", a, prefix[:n])
		}
		after := comparer.ImmediateSuccessor(nil, prefix)
		if comparer.Split(after) != len(after) || comparer.Compare(prefix, after) >= 0 {
			t.Fatalf("after the prefix %x comes %x", prefix, after)
		}
		for _, b := range names {
			of := comparer.Split.Prefix(b)
			if comparer.Compare(prefix, of) < 0 && comparer.Compare(a, b) >= 0 {
				t.Fatalf("the prefix %x is before %x, but %x is not before %x", prefix, of, a, b)
			}
			if comparer.Compare(prefix, of) < 0 && comparer.Compare(of, after) < 0 {
				t.Fatalf("between the prefix %x and the next, %x, is %x", prefix, after, of)
			}
		}
	}
}
