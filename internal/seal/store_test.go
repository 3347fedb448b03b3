package seal

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// opened is a sealed store that returns claimed records with readable delivery IDs,
// because the suite compares those.
type opened struct{ *Store }

// Claim implements [idempotency.Store].
func (o opened) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	got, err := o.Store.Claim(ctx, c)
	for _, record := range []**idempotency.Record{&got.Record, &got.Previous} {
		if *record != nil && err == nil {
			*record, err = o.Opened(c.Key, *record)
		}
	}
	return got, err
}

// Change implements [idempotency.Store].
func (o opened) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	found, err := o.Store.Change(ctx, key, c)
	if err != nil {
		return nil, err
	}
	return o.Opened(key, found)
}

// Lookup implements [idempotency.Store].
func (o opened) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	found, now, err := o.Store.Lookup(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	found, err = o.Opened(key, found)
	return found, now, err
}

// With encryption and without it, a store must pass the same suite. The peer is a
// replica on which the keys have another order.
func TestSealedStore(t *testing.T) {
	for own, peer := range map[string]string{"a": "a", "ab": "ba", "": ""} {
		t.Run(fmt.Sprintf("keys %q", own), func(t *testing.T) {
			var inner idempotency.Store
			open := func(t *testing.T) idempotency.Store {
				inner = memory.New(64 << 20)
				return opened{Around(inner, sealerOf(t, []byte(own)...))}
			}
			storetest.Run(t, open, storetest.Options{
				Bubble: true,
				Peer: func(t *testing.T, _ idempotency.Store) idempotency.Store {
					return opened{Around(inner, sealerOf(t, []byte(peer)...))}
				},
			})
		})
	}
}

// An operator finds a sealed record by its delivery ID and reads the ID. Without the encryption key
// the record is also found, with the reason why it cannot be read.
func TestSealedRecordsAreFound(t *testing.T) {
	inner := memory.New(1 << 20)
	defer inner.Close()
	key := idempotency.Identity{Namespace: "default", ID: "7"}.Key()
	claim := idempotency.Claim{
		Key: key, Token: "token", Origin: idempotency.Origin{DeliveryID: "7"},
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
	if _, err := Around(inner, sealerOf(t, 'a')).Claim(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	of := []idempotency.KeyPrefix{idempotency.PrefixFor("default", "7")}
	for keys, readable := range map[string]bool{"a": true, "ba": true, "b": false, "": false} {
		page, _, err := Around(inner, sealerOf(t, []byte(keys)...)).Find(t.Context(), of, "", 10)
		if err != nil || len(page) != 1 || page[0].Key != key {
			t.Fatalf("with the keys %q: %+v, %v; want the record", keys, page, err)
		}
		var unreadable *idempotency.UnreadableError
		switch found := page[0]; {
		case readable && (found.Record == nil || found.Record.DeliveryID != "7"):
			t.Errorf("with the keys %q it is %+v, want a readable delivery ID", keys, found)
		case !readable && (found.Record != nil || !errors.As(found.Unreadable, &unreadable)):
			t.Errorf("with the keys %q it is %+v, want it unreadable", keys, found)
		}
	}
}

// The store has neither the reason of an end nor a location readable. Requests get both, whether they claim the key
// or wait for its run on another replica; to a run the record stays sealed, because the run returns it to the store.
func TestTextsThatRequestsGet(t *testing.T) {
	const reason, location = "the response is too large", "/payments/7"
	inner := memory.New(1 << 20)
	defer inner.Close()
	s := Around(inner, sealerOf(t, 'a'))
	claim := idempotency.Claim{Key: thisKey, Token: "token", Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour}}
	claimed, err := s.Claim(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	for _, state := range []idempotency.State{idempotency.Released, idempotency.Complete} {
		err := s.Settle(t.Context(), thisKey, claimed.Record, idempotency.Settlement{
			State: state, Counted: true, Retention: time.Hour, Reason: reason,
			Response: &idempotency.Response{Status: 201, Header: map[string][]string{"Location": {location}}, Body: make([]byte, 20<<10)},
		})
		if err != nil {
			t.Fatal(err)
		}
		stored, _, err := inner.Lookup(t.Context(), thisKey)
		if err != nil || stored.Reason == "" || strings.Contains(stored.Reason, reason) || strings.Contains(stored.Location, location) {
			t.Errorf("%s: the store has %+v, %v", state, stored, err)
		}
		if found, _, err := s.Lookup(t.Context(), thisKey); err != nil || found.Reason != reason || found.Location != location {
			t.Errorf("%s: a request that waits finds %+v, %v", state, found, err)
		}
		claim.Token = "next"
		claimed, err = s.Claim(t.Context(), claim)
		if err != nil || (claimed.Record.Reason == reason) != (claimed.Verdict == idempotency.ReplayKept) {
			t.Errorf("%s: a claim finds %+v, %v", state, claimed.Record, err)
		}
	}
	if claimed.Record.Location != location {
		t.Errorf("a duplicate gets the location %q", claimed.Record.Location)
	}
	changed, err := s.Change(t.Context(), thisKey, idempotency.Change{State: idempotency.Released, Token: "operator", Reason: reason})
	if err != nil || strings.Contains(changed.Reason, reason) {
		t.Errorf("an operator's change stores %+v, %v", changed, err)
	}
}

// Without the encryption key an operator sees that a record cannot be read, and may release or forget
// that one, and no other. Its duplicates would get no response, so it cannot be completed.
func TestForgetSealedRecordWithPrecondition(t *testing.T) {
	inner := memory.New(1 << 20)
	defer inner.Close()
	sealed, blind := Around(inner, sealerOf(t, 'a')), Around(inner, sealerOf(t, 'b'))
	key := idempotency.Identity{Namespace: "default", ID: "7"}.Key()
	claim := idempotency.Claim{
		Key: key, Token: "token", ExecutionID: "run", Origin: idempotency.Origin{DeliveryID: "7"},
		Terms: idempotency.Terms{Lease: time.Minute, Retention: time.Hour},
	}
	claimed, err := sealed.Claim(t.Context(), claim)
	if err != nil {
		t.Fatal(err)
	}
	unreadable := idempotency.Precondition{State: idempotency.Unreadable}
	if err := blind.Forget(t.Context(), key, unreadable); !errors.Is(err, idempotency.ErrInFlight) {
		t.Errorf("forget in flight: %v", err)
	}
	if err := sealed.Settle(t.Context(), key, claimed.Record, idempotency.Settlement{State: idempotency.Held, Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	want := idempotency.ChangedError{Now: idempotency.Precondition{ExecutionID: "run", State: idempotency.Held}}
	if err := sealed.Forget(t.Context(), key, unreadable); !errors.Is(err, want) {
		t.Errorf("forget as unreadable where it can be read: %v", err)
	}
	var damaged *idempotency.UnreadableError
	completing := idempotency.Change{State: idempotency.Complete, Token: "operator", Response: &idempotency.Response{Status: 200}}
	if _, err := blind.Change(t.Context(), key, completing); !errors.As(err, &damaged) {
		t.Errorf("completed without its key: %v, want an UnreadableError", err)
	}
	if _, err := sealed.Change(t.Context(), key, idempotency.Change{State: idempotency.Released, Token: "operator", Precondition: unreadable}); !errors.Is(err, want) {
		t.Errorf("released as unreadable where it can be read: %v", err)
	}
	if _, err := blind.Change(t.Context(), key, idempotency.Change{State: idempotency.Released, Token: "operator", Precondition: unreadable}); err != nil {
		t.Errorf("released as unreadable: %v", err)
	}
	if err := blind.Forget(t.Context(), key, unreadable); err != nil {
		t.Errorf("forget as unreadable: %v", err)
	}
	if err := blind.Forget(t.Context(), key, unreadable); !errors.Is(err, idempotency.ErrGone) {
		t.Errorf("forget again: %v", err)
	}
}
