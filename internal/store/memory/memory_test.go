package memory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// Shared by the tests of all stores and of the engine.
var must, wantErr = storetest.Must, storetest.WantErr

func TestStore(t *testing.T) {
	open := func(*testing.T) idempotency.Store { return New(64 << 20) }
	storetest.Run(t, open, storetest.Options{Bubble: true, Damage: damage})
}

// damage replaces the record of the key by bytes that are none.
func damage(t *testing.T, store idempotency.Store, key idempotency.Key) {
	s := store.(*Store)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := name{key: key}
	v, found := s.values[key[0]][n]
	if !found {
		t.Fatalf("there is no record of %s", key)
	}
	s.free(n, v)
	v.first, v.size = s.blocks.add([]byte("damaged")), 7
	s.values[key[0]][n] = v
}

func TestClosedStore(t *testing.T) {
	s := New(1 << 20)
	for range 2 {
		must(t, s.Close())
	}
	wantErr(t, storetest.ErrOf(s.Claim(context.Background(), claim(0))), idempotency.ErrClosed)
}

func claim(n int) idempotency.Claim {
	return idempotency.Claim{
		Key:         idempotency.Identity{ID: fmt.Sprint(n)}.Key(),
		Token:       fmt.Sprint("token ", n),
		ExecutionID: fmt.Sprint("execution ", n),
		Terms:       idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
}

// complete keeps a response with a body of so many bytes for an hour.
func complete(size int) idempotency.Settlement {
	return idempotency.Settlement{
		State: idempotency.Complete, Counted: true, Retention: time.Hour,
		Response: &idempotency.Response{Status: 201, Body: make([]byte, size)},
	}
}

// mustClaim claims a key.
func mustClaim(t *testing.T, s *Store, c idempotency.Claim) *idempotency.Record {
	t.Helper()
	claimed, err := s.Claim(t.Context(), c)
	if err != nil || claimed.Verdict != idempotency.Proceed {
		t.Fatalf("%s: %v, %v", c.Token, claimed.Verdict, err)
	}
	return claimed.Record
}

// settle ends the run of a key.
func settle(t *testing.T, s *Store, record *idempotency.Record, c idempotency.Claim, settlement idempotency.Settlement) {
	t.Helper()
	must(t, s.Settle(t.Context(), c.Key, record, settlement), c.Token)
}

// fill keeps responses with bodies of so many bytes, of keys from a number on, until a new key is
// refused. It returns the number of that key.
func fill(t *testing.T, s *Store, from, size int) int {
	t.Helper()
	for n := from; ; n++ {
		claimed, err := s.Claim(t.Context(), claim(n))
		switch {
		case errors.Is(err, idempotency.ErrFull):
			if claimed.Record != nil {
				t.Errorf("a refused claim names a record that may have been written: %+v", claimed.Record)
			}
			return n
		case err != nil:
			t.Fatal(err)
		}
		settle(t, s, claimed.Record, claim(n), complete(size))
	}
}

// taken is what the store counts against its limit.
func (s *Store) taken() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.size()
}
