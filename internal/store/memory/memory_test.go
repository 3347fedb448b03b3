package memory_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func open(*testing.T) idempotency.Store { return memory.New(64 << 20) }

func TestStore(t *testing.T) {
	storetest.Run(t, open, storetest.Options{Around: synctest.Test, Advance: time.Sleep, Damage: damage})
}

// The suite is also for stores on servers, where only real time passes. This tries
// that half of it without a server.
func TestStoreInRealTime(t *testing.T) {
	storetest.Run(t, open, storetest.Options{Damage: damage})
}

// damage changes a byte of what is kept of the key's record.
func damage(t *testing.T, s idempotency.Store, key idempotency.Key) {
	t.Helper()
	if !s.(*memory.Store).Damage(key) {
		t.Fatalf("there is no record of %s", key)
	}
}

func claim(n int) idempotency.Claim {
	return idempotency.Claim{
		Key:         idempotency.Identity{ID: fmt.Sprint(n)}.Key(),
		Token:       fmt.Sprint("token ", n),
		ExecutionID: fmt.Sprint("execution ", n),
		Terms:       idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
}

// fill claims keys until the store refuses one, and returns how many it took.
func fill(t *testing.T, s *memory.Store) int { return fillFrom(t, s, 0) }

func fillFrom(t *testing.T, s *memory.Store, from int) int {
	t.Helper()
	for n := range 1 << 20 {
		claimed, err := s.Claim(t.Context(), claim(from+n))
		if errors.Is(err, idempotency.ErrFull) {
			if claimed.Record != nil {
				t.Errorf("a refused claim names a record that may have been written: %+v", claimed.Record)
			}
			return n
		}
		if err != nil {
			t.Fatalf("claim %d: %v", n, err)
		}
	}
	t.Fatal("the store has no limit")
	return 0
}

func TestFullStoreRefusesNewKeys(t *testing.T) {
	s := memory.New(100 << 10)
	defer s.Close()
	taken := fill(t, s)
	if taken < 250 || taken > 500 {
		t.Errorf("%d records of about 200 bytes fit into 100 KiB", taken)
	}
	if record, _, err := s.Lookup(t.Context(), claim(taken).Key); record != nil || err != nil {
		t.Errorf("the refused key: %+v, %v", record, err)
	}
	for n := range taken {
		if got, err := s.Claim(t.Context(), claim(n)); err != nil || got.Record.Attempt != 1 {
			t.Fatalf("key %d, claimed again by its owner: %+v, %v", n, got.Record, err)
		}
	}
}

// What does not fit changes nothing, and what needs no room is stored in a full store.
func TestSettleThatDoesNotFit(t *testing.T) {
	for size, want := range map[int]error{30 << 10: idempotency.ErrTooLarge, 200 << 10: idempotency.ErrTooLarge, 6 << 10: idempotency.ErrFull} {
		s := memory.New(100 << 10)
		defer s.Close()
		claimed, err := s.Claim(t.Context(), claim(0))
		if err != nil {
			t.Fatal(err)
		}
		fillFrom(t, s, 1)
		big := idempotency.Settlement{
			State: idempotency.Complete, Counted: true, Retention: time.Hour,
			Response: &idempotency.Response{Status: 200, Body: bytes.Repeat([]byte("x"), size)},
		}
		if err := s.Settle(t.Context(), claim(0).Key, claimed.Record, big); !errors.Is(err, want) {
			t.Fatalf("settle with %d bytes: %v, want %v", size, err, want)
		}
		record, _, err := s.Lookup(t.Context(), claim(0).Key)
		if err != nil || record == nil || record.State != idempotency.InFlight {
			t.Fatalf("after it: %+v, %v; want the run still in flight", record, err)
		}
		release := idempotency.Settlement{State: idempotency.Released, Counted: true, Retention: time.Hour}
		if err := s.Settle(t.Context(), claim(0).Key, claimed.Record, release); err != nil {
			t.Errorf("a release without a response in a full store: %v", err)
		}
	}
}

func TestExpiredRecordsMakeRoom(t *testing.T) {
	for name, wait := range map[string]time.Duration{
		"before a sweep": time.Hour + time.Second, // the last sweep, at one hour, came before they expired
		"after a sweep":  2 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := memory.New(100 << 10)
				defer s.Close()
				time.Sleep(500 * time.Millisecond)
				first := fillFrom(t, s, 200_000)
				time.Sleep(wait)
				// Other keys, of names that are as long.
				if again := fillFrom(t, s, 100_000); again < first*95/100 || again > first*105/100 {
					t.Errorf("%d records fit at first, %d after they expired", first, again)
				}
			})
		})
	}
}

func TestClosedStore(t *testing.T) {
	s := memory.New(1 << 20)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	if _, err := s.Claim(context.Background(), claim(0)); !errors.Is(err, idempotency.ErrClosed) {
		t.Errorf("claim: %v, want ErrClosed", err)
	}
}

func TestListRefusesWhatIsNoPage(t *testing.T) {
	s := memory.New(1 << 20)
	defer s.Close()
	if _, _, err := s.List(t.Context(), "no cursor", 10); err == nil {
		t.Error("a cursor that is no key is taken")
	}
	if _, _, err := s.List(t.Context(), "", 0); err == nil {
		t.Error("a page of no records is taken")
	}
}
