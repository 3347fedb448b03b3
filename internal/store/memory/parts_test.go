package memory

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

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
					if size <= 64 && l.free > l.bytes/8 {
						t.Fatalf("seed %d, step %d: %d bytes are refused, and %d of %d are free", seed, step, size, l.free, l.bytes)
					}
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
				l.condense(1 + random.IntN(roomClasses))
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

// Items expire in their second: not before it is over, and then all of them, however
// the work is cut into pieces and whatever changes meanwhile.
func TestExpiryAgainstAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var items table[item]
	now := time.UnixMilli(1_700_000_000_500)
	e := expiry{items: &items, due: now.Unix()}
	expires := make(map[uint32]time.Time)
	for step := range 50_000 {
		switch op := random.IntN(10); {
		case op < 5:
			if !items.reserve(1, 1<<30) {
				t.Fatal("no room")
			}
			n := items.add()
			expires[n] = now.Add(time.Duration(random.IntN(20_000)) * time.Millisecond)
			if random.IntN(4) == 0 { // in a later round of the ring
				expires[n] = expires[n].Add(time.Duration(random.IntN(3)) * ringSeconds * time.Second)
			}
			e.link(n, expires[n], now)
		case op < 7:
			for n := range expires { // any of them
				e.unlink(n)
				items.remove(n)
				delete(expires, n)
				break
			}
		case op < 8:
			now = now.Add(time.Duration(random.IntN(4000)) * time.Millisecond)
		default:
			limit := 1 + random.IntN(10)
			n, looked := e.expired(now, limit)
			if n == 0 && looked < limit {
				for n, at := range expires {
					if at.Unix() < now.Unix() {
						t.Fatalf("step %d: at %v nothing more has expired, and item %d has, at %v", step, now, n, at)
					}
				}
			}
			if n == 0 {
				continue
			}
			if at, known := expires[n]; !known || at.After(now) {
				t.Fatalf("step %d: at %v item %d has expired; it does at %v", step, now, n, at)
			}
			e.unlink(n)
			items.remove(n)
			delete(expires, n)
		}
	}
}

// A large body is kept where it lies, unless that would keep much more than the body.
func TestLargeBodyIsKeptWhereItLies(t *testing.T) {
	for name, c := range map[string]struct {
		room  int
		where bool
	}{
		"exact":    {1 << 20, true},
		"slack":    {1<<20 + 1<<16, true},
		"wasteful": {1 << 21, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := New(64 << 20)
			defer s.Close()
			claimed, err := s.Claim(t.Context(), idempotency.Claim{Token: "token", Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour}})
			if err != nil {
				t.Fatal(err)
			}
			body := make([]byte, 1<<20, c.room)
			before := s.taken()
			settlement := idempotency.Settlement{State: idempotency.Complete, Counted: true, Retention: time.Hour, Response: &idempotency.Response{Status: 200, Body: body}}
			if err := s.Settle(t.Context(), idempotency.Key{}, claimed.Record, settlement); err != nil {
				t.Fatal(err)
			}
			got, err := s.Response(t.Context(), idempotency.Key{}, "token")
			if err != nil || len(got.Body) != len(body) {
				t.Fatalf("%v, %v", got, err)
			}
			if where := &got.Body[0] == &body[0]; where != c.where {
				t.Errorf("it lies where it lay: %v", where)
			}
			want := int64(len(body))
			if c.where {
				want = int64(c.room)
			}
			if took := s.taken() - before; took < want || took > want+want/10 {
				t.Errorf("it takes %d bytes of the limit, want about %d", took, want)
			}
		})
	}
}
