package memory

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// check fails the test unless all that the store has belongs to a value, and each value expires.
func (s *Store) check(t *testing.T) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	dues := make(map[expiry]bool)
	for _, x := range s.expiries {
		dues[x] = true
	}
	count, claims, used, bodies, bodiesSize := 0, 0, int64(0), 0, int64(0)
	for _, values := range s.values {
		for n, v := range values {
			count++
			if !dues[expiry{v.due, n}] || v.due > v.expires {
				t.Fatalf("%+v of %+v is not among the expiries", v, n)
			}
			if n.token == 0 && s.claims[n.key] != nil {
				claims++
			} else if v.first == 0 {
				t.Fatalf("%+v of %+v has no bytes", v, n)
			}
			if body := s.bodies[n]; body != nil {
				bodies, bodiesSize = bodies+1, bodiesSize+int64(cap(body))
			}
			for at := v.first; at != 0; at = s.blocks.at(at).next {
				used++
			}
		}
	}
	if count != s.count || claims != len(s.claims) || used != s.blocks.used || bodies != len(s.bodies) || bodiesSize != s.bodiesSize {
		t.Fatalf("%d of %d values, %d of %d claims, %d of %d blocks, %d of %d bodies with %d of %d bytes are there",
			count, s.count, claims, len(s.claims), used, s.blocks.used, bodies, len(s.bodies), bodiesSize, s.bodiesSize)
	}
}

// isEmpty reports whether the store has given back all that it had for values.
func (s *Store) isEmpty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, values := range s.values {
		if values != nil {
			return false
		}
	}
	return s.size() == 0 && s.blocks.pages == nil && s.expiries == nil && s.sweepAt == never
}

func TestAccountsUnderRandomWork(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { randomWork(t, rand.New(rand.NewPCG(seed, 7))) })
		})
	}
}

func randomWork(t *testing.T, random *rand.Rand) {
	s := New(400 << 10)
	defer s.Close()
	type run struct {
		claim  idempotency.Claim
		record *idempotency.Record
	}
	var runs []run
	full := 0
	for step := range 3000 {
		var key idempotency.Key
		binary.BigEndian.PutUint32(key[:], uint32(random.IntN(400))*0x9e3779b1)
		switch op := random.IntN(20); {
		case op < 9:
			c := idempotency.Claim{
				Key: key, Token: fmt.Sprint("token ", step), Force: random.IntN(4) == 0,
				Origin: idempotency.Origin{DeliveryID: string(make([]byte, random.IntN(255)))},
				Terms:  idempotency.Terms{Lease: time.Duration(1+random.IntN(60)) * time.Second, Retention: time.Duration(random.IntN(5000)) * time.Second},
			}
			claimed, err := s.Claim(t.Context(), c)
			if err != nil {
				full++
			} else if claimed.Verdict == idempotency.Proceed {
				runs = append(runs, run{c, claimed.Record})
			}
		case op < 17 && len(runs) > 0:
			i := random.IntN(len(runs))
			r := runs[i]
			if random.IntN(4) == 0 {
				_ = s.Renew(t.Context(), r.claim) // it may have lost its key
				continue
			}
			runs = append(runs[:i], runs[i+1:]...)
			settlement := idempotency.Settlement{
				State: [...]idempotency.State{idempotency.Complete, idempotency.Released, idempotency.Held}[random.IntN(3)], Counted: true,
				Retention: time.Duration(random.IntN(5000)) * time.Second, AnswerRetention: time.Duration(random.IntN(300)) * time.Second,
			}
			if settlement.State != idempotency.Held {
				settlement.Response = &idempotency.Response{Status: 200, Body: make([]byte, random.IntN(1<<random.IntN(17)))}
			}
			if s.Settle(t.Context(), r.claim.Key, r.record, settlement) != nil {
				full++
			}
		case op < 18:
			_ = s.Forget(t.Context(), key, idempotency.Precondition{}) // often there is nothing to forget
		default:
			time.Sleep(time.Duration(random.IntN(30)) * time.Second)
		}
		if step%100 == 0 {
			s.check(t)
		}
	}
	if full == 0 {
		t.Error("it was never full")
	}
	s.check(t)
	time.Sleep(3 * time.Hour)
	if !s.isEmpty() {
		t.Errorf("when all has expired, it takes %d bytes", s.taken())
	}
}

// Blocks against a map, with strings of all sizes.
func TestBlocksMatchAMap(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1))
	var b blocks
	kept := make(map[uint32]string)
	for range 5000 {
		if random.IntN(9) < 5 {
			bytes := make([]byte, 1+random.IntN(1<<random.IntN(11)))
			for i := range bytes {
				bytes[i] = byte(random.Uint32())
			}
			kept[b.add(bytes)] = string(bytes)
			continue
		}
		for first, want := range kept { // any of them
			if got := string(b.read(nil, first, uint32(len(want)))); got != want {
				t.Fatalf("%q was added, and %q is read", want, got)
			}
			b.remove(first)
			delete(kept, first)
			break
		}
	}
	for first := range kept {
		b.remove(first)
	}
	if b.used != 0 || b.pages != nil {
		t.Errorf("empty, it has %d used blocks and %d pages", b.used, len(b.pages))
	}
}

// A released response goes when its time is over, and its record stays. No operation is needed.
func TestMemoryReturnsAfterExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(64 << 20)
		defer s.Close()
		for n := range 1000 {
			released := complete(5_000)
			released.State, released.AnswerRetention = idempotency.Released, 30*time.Second
			settle(t, s, mustClaim(t, s, claim(n)), claim(n), released)
		}
		settle(t, s, mustClaim(t, s, claim(-1)), claim(-1), complete(100_000))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if taken := s.taken(); taken < 1000*300 || taken > 1000*1000 {
			t.Errorf("when released responses have expired, it takes %d bytes", taken)
		}
		time.Sleep(time.Hour - 30*time.Second)
		synctest.Wait()
		if !s.isEmpty() {
			t.Errorf("when all has expired, it takes %d bytes", s.taken())
		}
		for n := range 10 {
			mustClaim(t, s, claim(n))
		}
		time.Sleep(time.Minute)
		for n := range 10 {
			must(t, s.Forget(t.Context(), claim(n).Key, idempotency.Precondition{}))
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if !s.isEmpty() {
			t.Errorf("when all is forgotten, it takes %d bytes", s.taken())
		}
	})
}

// Keys whose runs end with a short retention leave nothing for the longer life of their claims.
func TestShortRetentionLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		defer s.Close()
		for n := range 20_000 {
			c := claim(n)
			c.Retention = 7 * 24 * time.Hour
			settle(t, s, mustClaim(t, s, c), c, idempotency.Settlement{State: idempotency.Released, Retention: time.Second})
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		if !s.isEmpty() {
			t.Errorf("it takes %d bytes", s.taken())
		}
	})
}

// However many values expire one after another, sweeps keep their distance.
func TestSweepInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(1 << 20)
		defer s.Close()
		for n := range 200 {
			held := idempotency.Settlement{State: idempotency.Held, Retention: time.Minute + time.Duration(n)*10*time.Millisecond}
			settle(t, s, mustClaim(t, s, claim(n)), claim(n), held)
		}
		time.Sleep(time.Minute - time.Millisecond)
		sweeps, before := 0, s.taken()
		for range 2000 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
			if now := s.taken(); now != before {
				sweeps, before = sweeps+1, now
			}
		}
		if sweeps < 3 || sweeps > 5 {
			t.Errorf("%d sweeps in 2 s", sweeps)
		}
	})
}

// A large body is kept where it is, unless that would keep much more than the body.
func TestLargeBodyIsNotCopied(t *testing.T) {
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
			settlement := complete(0)
			settlement.Response.Body = make([]byte, 1<<20, c.room)
			body := settlement.Response.Body
			settle(t, s, mustClaim(t, s, claim(0)), claim(0), settlement)
			got, err := s.Response(t.Context(), claim(0).Key, claim(0).Token)
			if err != nil || len(got.Body) != len(body) {
				t.Fatalf("%v, %v", got, err)
			}
			if where := &got.Body[0] == &body[0]; where != c.where {
				t.Errorf("it is where it was: %v", where)
			}
			want := int64(len(body))
			if c.where {
				want = int64(c.room)
			}
			if took := s.taken(); took < want || took > want+want/10 {
				t.Errorf("it takes %d bytes of the limit, want about %d", took, want)
			}
		})
	}
}
