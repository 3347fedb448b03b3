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
	for n := range found {
		if i := s.items.at(n); i.expires/1000 < s.expiry.due {
			t.Fatalf("all of second %d has been removed, and item %d is still there: %+v", s.expiry.due-1, n, *i)
		}
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
	pages, free, empty := 0, 0, 0
	for _, p := range of.pages {
		if p.slots != nil {
			if pages++; p.used == 0 {
				empty++
			}
			free += pageSlots - p.used
		}
	}
	if of.bytes != int64(pages)*of.pageBytes() || of.free != free || pages*pageSlots-free != used {
		t.Fatalf("%s: %d pages with %d free slots and %d in use are accounted as %d bytes with %d free slots, %d in use are known",
			name, pages, free, pages*pageSlots-free, of.bytes, of.free, used)
	}
	if empty > 2 { // one that stays, and one that was reserved
		t.Fatalf("%s: %d pages are empty", name, empty)
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
			_ = s.Forget(t.Context(), key, idempotency.Seen{}) // often there is nothing to forget
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

// keepUntilFull claims keys from a number on, each with a response of so many bytes (none
// for less than 0), until the store is full. It returns how many it took.
func keepUntilFull(t *testing.T, s *Store, from, body int, retention func(n int) time.Duration) int {
	t.Helper()
	for n := from; ; n++ {
		c := idempotency.Claim{Key: idempotency.Identity{ID: fmt.Sprint(n)}.Key(), Token: "t", Terms: idempotency.Terms{Lease: time.Second, Retention: retention(n)}}
		claimed, err := s.Claim(t.Context(), c)
		if err == nil && body >= 0 {
			err = s.Settle(t.Context(), c.Key, claimed.Record, idempotency.Settlement{
				State: idempotency.Complete, Retention: retention(n), Response: &idempotency.Response{Status: 200, Body: make([]byte, body)},
			})
		}
		if errors.Is(err, idempotency.ErrFull) {
			return n - from
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func anHour(int) time.Duration { return time.Hour }

// oneInTenStays is a retention after which what is left lies scattered over all chunks.
func oneInTenStays(n int) time.Duration {
	if n%10 == 0 {
		return 100 * time.Hour
	}
	return time.Hour
}

// What has expired makes room for other keys in the gaps that it leaves, and where it is
// other things that are kept now, also for these.
func TestFragmentedStoreTakesNewKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		defer s.Close()
		first := keepUntilFull(t, s, 0, 500, oneInTenStays)
		time.Sleep(2 * time.Hour)
		s.check(t)
		if s.takes() > s.limit/3 {
			t.Errorf("a tenth of the keys is left, and takes %d bytes of %d", s.takes(), s.limit)
		}
		if again := keepUntilFull(t, s, first, 500, anHour); again < first*85/100 {
			t.Errorf("%d keys fitted, and when nine of ten had expired, %d", first, again)
		}
		s.check(t)
	})
}

func TestRoomOfResponsesBecomesRoomOfRecords(t *testing.T) {
	most := New(1 << 20)
	defer most.Close()
	records := keepUntilFull(t, most, 0, -1, anHour)
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		defer s.Close()
		time.Sleep(500 * time.Millisecond)
		first := keepUntilFull(t, s, 0, 500, oneInTenStays)
		time.Sleep(time.Hour + time.Second) // the last sweep, at one hour, came before they expired
		if again := keepUntilFull(t, s, first, -1, anHour); again < records*3/4 {
			t.Errorf("%d records fit into an empty store, and %d when nine of ten responses have expired", records, again)
		}
		s.check(t)
	})
}
