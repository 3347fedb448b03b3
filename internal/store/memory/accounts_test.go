package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Damage changes a byte of the key's record, and reports whether there is one.
func (s *Store) Damage(key idempotency.Key) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.index.find(&key)
	if n == 0 {
		return false
	}
	i := s.items.at(n)
	s.log.room(i.at)[i.size-1] ^= 1
	return true
}

// takes is what the store takes now.
func (s *Store) takes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken()
}

// check fails the test unless all that the store has fits together: each item is where
// it says, nothing overlaps, and what is accounted is what is there.
func (s *Store) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()

	found, links := make(map[uint32]bool), 0
	nodes := 0
	for first := range trees {
		nodes += s.countNodes(s.index.roots[first])
		s.index.each(byte(first), func(n uint32) {
			found[n] = true
			if key := *s.keyOf(n); key[0] != byte(first) || s.index.find(&key) != n {
				t.Fatalf("item %d is not found by its key %s", n, key)
			}
			later := uint32(0)
			for r := s.items.at(n).earlier; r != 0; later, r = r, s.items.at(r).earlier {
				if i := s.items.at(r); found[r] || i.record != n || i.later != later {
					t.Fatalf("response %d of %d is linked as %+v", r, n, *i)
				}
				found[r] = true
			}
		})
	}
	for second, n := range s.expiry.ring {
		for before := uint32(0); n != 0; before, n = n, s.items.at(n).after {
			links++
			if i := s.items.at(n); !found[n] || i.before != before || int(i.expires/1000%ringSeconds) != second {
				t.Fatalf("item %d is in the list of second %d as %+v", n, second, *i)
			}
		}
	}
	if links != len(found) {
		t.Fatalf("%d items, %d of them in the order of their expiry", len(found), links)
	}
	checkTable(t, "items", &s.items, len(found))
	checkTable(t, "nodes", &s.index.nodes, nodes)
	s.log.check(t, len(found), func(n uint32, at place) bool { return found[n] && s.items.at(n).at == at })
	for n := range found {
		if i := s.items.at(n); int(i.size) > len(s.log.room(i.at)) {
			t.Fatalf("item %d has %d bytes in a room of %d", n, i.size, len(s.log.room(i.at)))
		}
	}
}

func (s *Store) countNodes(ref uint32) int {
	if ref&isNode == 0 {
		return 0
	}
	count := 1
	for _, below := range s.index.nodes.at(ref &^ isNode) {
		count += s.countNodes(below)
	}
	return count
}

func checkTable[T any](t *testing.T, name string, of *table[T], used int) {
	t.Helper()
	pages, free := 0, 0
	for _, p := range of.pages {
		if p.slots != nil {
			pages++
			free += pageSlots - p.used
		}
	}
	if of.bytes != int64(pages)*of.pageBytes() || of.free != free || pages*pageSlots-free != used {
		t.Fatalf("%s: %d pages with %d free slots and %d in use are accounted as %d bytes with %d free slots, %d in use are known",
			name, pages, free, pages*pageSlots-free, of.bytes, of.free, used)
	}
}

// check fails the test unless each slot is of an item that knows it (knows), so many in
// all, and the accounts are right.
func (l *byteLog) check(t *testing.T, items int, knows func(item uint32, at place) bool) {
	t.Helper()
	bytes, free, own, slots := int64(0), int64(0), int64(0), 0
	for number := range l.chunks {
		c := &l.chunks[number]
		switch {
		case c.own:
			own += ownBytes(cap(c.buf), cap(c.body))
			slots++
			continue
		case c.buf == nil:
			continue
		}
		live, at := 0, 0
		for at < c.end {
			item, size := c.slot(at)
			if item != 0 {
				if !knows(item, place{uint32(number), uint32(at)}) {
					t.Fatalf("the slot at %d of chunk %d is of item %d, which is elsewhere", at, number, item)
				}
				slots++
				live += size
			}
			at += size
		}
		if at != c.end || live != c.live || c.end > len(c.buf) || c.class != c.freeBytes()*roomClasses/len(c.buf) {
			t.Fatalf("chunk %d has slots up to %d, %d bytes of them live; it says %d, %d, class %d", number, at, live, c.end, c.live, c.class)
		}
		bytes += chunkSize + int64(len(c.buf))
		free += int64(len(c.buf) - live)
	}
	if slots != items || bytes != l.bytes || free != l.free || own != l.own {
		t.Fatalf("%d slots for %d items; bytes %d, free %d, own %d are accounted as %d, %d, %d", slots, items, bytes, free, own, l.bytes, l.free, l.own)
	}
}

// The log against a map: strings of all sizes come and go in a bounded room.
func TestLogAgainstAMap(t *testing.T) {
	const limit = 300 << 10
	for seed := range uint64(20) {
		random := rand.New(rand.NewPCG(seed, 1))
		places, strings := make(map[uint32]place), make(map[uint32][]byte)
		l := newByteLog(func(n uint32, to place) { places[n] = to })
		refused, last := 0, uint32(0)
		for step := range 4000 {
			switch op := random.IntN(10); {
			case op < 5 || len(strings) == 0:
				size := random.IntN(1 << (2 + random.IntN(13)))
				if !l.reserve(size, 1, limit-l.bytes) {
					refused++
					continue
				}
				last++
				value := make([]byte, size)
				for i := range value {
					value[i] = byte(random.Uint32())
				}
				places[last] = l.put(last, size)
				copy(l.room(places[last]), value)
				strings[last] = value
			case op < 9:
				for n := range strings { // any of them
					l.remove(places[n])
					delete(strings, n)
					delete(places, n)
					break
				}
			default:
				l.condense()
			}
			if l.bytes > limit {
				t.Fatalf("seed %d, step %d: it takes %d bytes of %d", seed, step, l.bytes, limit)
			}
			if step%50 != 0 {
				continue
			}
			l.check(t, len(strings), func(n uint32, at place) bool { return places[n] == at })
			for n, value := range strings {
				if string(l.room(places[n])) != string(value) {
					t.Fatalf("seed %d, step %d: string %d has changed", seed, step, n)
				}
			}
		}
		if refused == 0 {
			t.Errorf("seed %d: nothing was ever refused", seed)
		}
		for n := range strings {
			l.remove(places[n])
		}
		if l.check(t, 0, nil); l.bytes > chunkSize+mostChunk {
			t.Errorf("seed %d: empty, it takes %d bytes", seed, l.bytes)
		}
	}
}

// The index against a map, with keys that have much in common.
func TestIndexAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	keys := make(map[uint32]*idempotency.Key)
	x := index{keyOf: func(n uint32) *idempotency.Key { return keys[n] }}
	numbers := make(map[idempotency.Key]uint32)
	for step := range uint32(20_000) {
		var key idempotency.Key
		for _, at := range []int{0, scopeFrom, scopeFrom + 1, keySize - 1, 1, scopeFrom - 1} {
			key[at] = byte(random.IntN(3))
			if random.IntN(3) == 0 {
				key[at] <<= 4
			}
		}
		n := numbers[key]
		if got := x.find(&key); got != n {
			t.Fatalf("step %d: key %s is item %d, want %d", step, key, got, n)
		}
		if n != 0 {
			x.remove(&key)
			delete(numbers, key)
			continue
		}
		n = step + 1
		needs := x.nodesFor(&key)
		if !x.nodes.reserve(needs, 1<<30) {
			t.Fatal("no room")
		}
		free := x.nodes.free
		keys[n], numbers[key] = &key, n
		x.insert(&key, n)
		if free-x.nodes.free != needs {
			t.Fatalf("step %d: %d nodes were said to be needed, and %d are taken", step, needs, free-x.nodes.free)
		}
	}
	for key := range numbers {
		x.remove(&key)
	}
	checkTable(t, "nodes", &x.nodes, 0)
	if x.roots != [trees]uint32{} {
		t.Error("empty, it still has references")
	}
}

// Random work on a store that is mostly full: it never takes more than its limit, all
// fits together, and when all has expired its room is back.
func TestAccountsUnderRandomWork(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomWork(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func randomWork(t *testing.T, random *rand.Rand) {
	const limit = 400 << 10
	s := New(limit)
	defer s.Close()
	empty := s.takes()
	type run struct {
		key    idempotency.Key
		record *idempotency.Record
	}
	var runs []run
	full := 0
	note := func(err error) {
		if errors.Is(err, idempotency.ErrFull) {
			full++
		}
	}
	for step := range 3000 {
		var key idempotency.Key
		binary.BigEndian.PutUint32(key[scopeFrom:], uint32(random.IntN(400))*0x9e3779b1)
		switch op := random.IntN(20); {
		case op < 9:
			claimed, err := s.Claim(t.Context(), idempotency.Claim{
				Key: key, Token: fmt.Sprint("token ", step), Force: random.IntN(4) == 0,
				Origin: idempotency.Origin{DeliveryID: string(make([]byte, random.IntN(1<<random.IntN(10))))},
				Terms:  idempotency.Terms{Lease: time.Duration(1+random.IntN(60)) * time.Second, Retention: time.Duration(random.IntN(5000)) * time.Second},
			})
			note(err)
			if err == nil && claimed.Verdict == idempotency.Proceed {
				runs = append(runs, run{key, claimed.Record})
			}
		case op < 17 && len(runs) > 0:
			i := random.IntN(len(runs))
			r := runs[i]
			runs = append(runs[:i], runs[i+1:]...)
			settlement := idempotency.Settlement{
				State: [...]idempotency.State{idempotency.Complete, idempotency.Released, idempotency.Held}[random.IntN(3)], Counted: true,
				Retention: time.Duration(random.IntN(5000)) * time.Second, AnswerFor: time.Duration(random.IntN(300)) * time.Second,
			}
			if settlement.State != idempotency.Held {
				settlement.Response = &idempotency.Response{Status: 200, Body: make([]byte, random.IntN(1<<random.IntN(17)))}
			}
			note(s.Settle(t.Context(), r.key, r.record, settlement))
		case op < 18:
			_ = s.Forget(t.Context(), key) // often there is nothing to forget
		default:
			time.Sleep(time.Duration(random.IntN(30)) * time.Second)
		}
		if taken := s.takes(); taken > limit {
			t.Fatalf("step %d: it takes %d bytes of %d", step, taken, limit)
		}
		if step%100 == 0 {
			s.check(t)
		}
	}
	if full == 0 {
		t.Error("it was never full")
	}
	time.Sleep(3 * time.Hour)
	s.check(t)
	if left := s.takes() - empty; left > 64<<10 {
		t.Errorf("when all has expired, it takes %d bytes more than empty", left)
	}
}

// What is left of many keys lies scattered over all chunks. Then new keys still find
// room, in the gaps.
func TestFragmentedStoreTakesNewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		defer s.Close()
		fill := func(from int, retention func(n int) time.Duration) int {
			for n := from; ; n++ {
				c := idempotency.Claim{Key: idempotency.Identity{ID: fmt.Sprint(n)}.Key(), Token: "t", Terms: idempotency.Terms{Lease: time.Second, Retention: retention(n)}}
				claimed, err := s.Claim(t.Context(), c)
				if err == nil {
					err = s.Settle(t.Context(), c.Key, claimed.Record, idempotency.Settlement{
						State: idempotency.Complete, Retention: retention(n), Response: &idempotency.Response{Status: 200, Body: make([]byte, 500)},
					})
				}
				if err != nil {
					return n - from
				}
			}
		}
		first := fill(0, func(n int) time.Duration {
			if n%10 == 0 {
				return 100 * time.Hour
			}
			return time.Hour
		})
		time.Sleep(2 * time.Hour)
		s.check(t)
		if s.takes() > s.limit/3 {
			t.Errorf("a tenth of the keys is left, and takes %d bytes of %d", s.takes(), s.limit)
		}
		again := fill(first, func(int) time.Duration { return time.Hour })
		if again < first*85/100 {
			t.Errorf("%d keys fitted, and when nine of ten had expired, %d", first, again)
		}
		s.check(t)
	})
}
