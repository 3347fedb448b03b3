package engine_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// sealing returns a sealer whose keys hold only these bytes each, nil for none.
func sealing(t *testing.T, keys string) *idempotency.Sealer {
	t.Helper()
	var all [][]byte
	for _, b := range []byte(keys) {
		all = append(all, bytes.Repeat([]byte{b}, idempotency.SealingKeySize))
	}
	s, err := idempotency.NewSealer(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// The suite holds a store that is sealed, and one that is not, to the same
// contract. The peer is a replica on which the keys stand in another order.
func TestSealedStore(t *testing.T) {
	for own, peer := range map[string]string{"a": "a", "ab": "ba", "": ""} {
		t.Run(fmt.Sprintf("keys %q", own), func(t *testing.T) {
			var inner idempotency.Store
			open := func(t *testing.T) idempotency.Store {
				inner = memory.New(64 << 20)
				return idempotency.Sealed(inner, sealing(t, own))
			}
			storetest.Run(t, open, storetest.Options{
				Around:  synctest.Test,
				Advance: time.Sleep,
				Peer: func(t *testing.T, _ idempotency.Store) idempotency.Store {
					return idempotency.Sealed(inner, sealing(t, peer))
				},
			})
		})
	}
}

// sealedRequest is someRequest with a delivery ID, by a process with these keys.
func sealedRequest(t *testing.T, keys string) engine.Request {
	req := someRequest()
	req.DeliveryID = "delivery-1"
	req.Sealer = sealing(t, keys)
	return req
}

// Whatever is written of a key, in its whole life, shows neither the delivery ID
// nor an answer.
func TestStoreHoldsNothingReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		a, req := newReplica(t, store), sealedRequest(t, "a")
		a.ReadWith(req.Sealer)
		look := func(when string) {
			t.Helper()
			record, _, err := store.Lookup(context.Background(), req.Key)
			if err != nil || record == nil {
				t.Fatalf("%s: %+v, %v", when, record, err)
			}
			response, err := store.Response(context.Background(), req.Key, record.Token)
			if err != nil {
				t.Fatal(err)
			}
			shown := fmt.Sprintf("%+v", *record)
			if record.Replaces != nil {
				shown += fmt.Sprintf("%+v", *record.Replaces)
			}
			if response != nil {
				shown += fmt.Sprintf("%q%s", response.Header, response.Body)
			}
			for _, secret := range []string{"delivery-1", "answer"} {
				if strings.Contains(shown, secret) {
					t.Errorf("%s: the store shows %q: %s", when, secret, shown)
				}
			}
			opened, _, err := a.Lookup(context.Background(), req.Key)
			if err != nil || opened.DeliveryID != "delivery-1" {
				t.Errorf("%s: an operator reads %+v, %v", when, opened, err)
			}
		}
		run := a.run(req)
		look("in flight")
		time.Sleep(someLease) // renewed
		look("renewed")
		wantEnd(t, run, broken("answer 1"), engine.ResultReleased)
		look("released")
		wantEnd(t, a.run(req), created("answer 2"), engine.ResultKept)
		look("complete")
		forced := a.run(forcing(req))
		look("forced")
		wantEnd(t, forced, broken("answer 3"), engine.ResultReleased)
		look("forced in vain")
		if err := a.Free(context.Background(), req.Key); err != nil {
			t.Fatal(err)
		}
		look("freed")
		held := req
		held.Policy.Settle.Hold = true
		a.run(held).End(idempotency.End{How: idempotency.Unknown}, broken("answer 4"))
		look("held")
	})
}

// A record that this process has no key for is never replayed and never run over.
func TestRecordOfAnUnknownKey(t *testing.T) {
	for name, keys := range map[string]string{"another key": "b", "encryption off": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := newShared(t)
				a, b := newReplica(t, store), newReplica(t, store)
				req, other := sealedRequest(t, "a"), sealedRequest(t, keys)
				b.ReadWith(other.Sealer)
				run := a.run(req)
				for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete} {
					refused := as[engine.Refusal](t, b.begin(other))
					if refused.Reason != engine.ReasonUnreadable || !strings.Contains(fmt.Sprint(refused.Err), "configured") {
						t.Errorf("%s: refused with %q, %v", state, refused.Reason, refused.Err)
					}
					if _, _, err := b.Lookup(context.Background(), req.Key); !isUnreadable(err) {
						t.Errorf("%s: an operator's look: %v", state, err)
					}
					page, _, err := b.Store().List(context.Background(), "", 10)
					if err != nil || len(page) != 1 || page[0].Record != nil || !isUnreadable(page[0].Unreadable) {
						t.Errorf("%s: the list is %+v, %v", state, page, err)
					}
					if state == idempotency.InFlight {
						wantEnd(t, run, created("kept"), engine.ResultKept)
					}
				}
				wantReplay(t, a.begin(req), run.ExecutionID(), created("kept"), false)

				// An operator needs no key to free it.
				if err := b.Free(context.Background(), req.Key); err != nil {
					t.Fatal(err)
				}
				wantEnd(t, b.run(other), created("again"), engine.ResultKept)
				if forgotten, err := b.Forget(context.Background(), req.Key); err != nil || !forgotten {
					t.Errorf("forgotten: %v, %v", forgotten, err)
				}
			})
		})
	}
}

func isUnreadable(err error) bool {
	var unreadable *idempotency.UnreadableError
	return errors.As(err, &unreadable)
}

// A run in flight is shown to an operator without keys as what it is.
func TestOperatorWithoutKeysLeavesARunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		a, b := newReplica(t, store), newReplica(t, store)
		req := sealedRequest(t, "a")
		run := a.run(req)
		if err := b.Free(context.Background(), req.Key); !errors.Is(err, engine.ErrInFlight) {
			t.Errorf("freeing: %v", err)
		}
		if _, err := b.Forget(context.Background(), req.Key); !errors.Is(err, engine.ErrInFlight) {
			t.Errorf("forgetting: %v", err)
		}
		wantEnd(t, run, created("kept"), engine.ResultKept)
	})
}

// Those who wait on another replica get the answer, whichever key comes first
// there.
func TestWaitersOpenASealedAnswer(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		run := owner.run(sealedRequest(t, "ab"))
		w := other.waiters(3, sealedRequest(t, "ba"))
		synctest.Wait()
		wantEnd(t, run, broken("busy"), engine.ResultReleased)
		for _, w := range w {
			wantReplay(t, w.decision(), run.ExecutionID(), broken("busy"), true)
		}
	})
}
