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
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

// sealing returns a sealer with a key for each of these bytes: every byte of the key
// is that one. Without bytes it returns nil.
func sealing(t *testing.T, keys string) *seal.Sealer {
	t.Helper()
	var all [][]byte
	for _, b := range []byte(keys) {
		all = append(all, bytes.Repeat([]byte{b}, seal.KeySize))
	}
	s, err := seal.New(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// newSealed returns a replica with encryption keys.
func newSealed(t *testing.T, store idempotency.Store, keys string) *replica {
	t.Helper()
	r := newReplica(t, store)
	r.Configure(engine.Settings{Sealer: sealing(t, keys)})
	return r
}

// delivered returns someRequest with a delivery ID.
func delivered() engine.Request {
	req := someRequest()
	req.Origin.DeliveryID = "delivery-1"
	return req
}

// Nothing that is stored during the whole life of a key discloses the delivery ID or a response.
func TestStoreGetsNothingReadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		a, req := newSealed(t, store, "a"), delivered()
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
			if record.Previous != nil {
				shown += fmt.Sprintf("%+v", *record.Previous)
			}
			if response != nil {
				shown += fmt.Sprintf("%q%s", response.Header, response.Body)
			}
			for _, secret := range []string{"delivery-1", "answer", "body:one"} {
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
		time.Sleep(someLease) // so that the lease is renewed
		look("renewed")
		wantEnd(t, run, broken("answer 1"), resultReleased)
		look("released")
		wantEnd(t, a.run(req), created("answer 2"), resultKept)
		look("complete")
		forced := a.run(forcing(req))
		look("forced")
		wantEnd(t, forced, broken("answer 3"), resultReleased)
		look("forced in vain")
		if err := a.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
			t.Fatal(err)
		}
		look("released")
		held := req
		held.Policy.Hold = true
		ended(a.run(held), idempotency.End{How: idempotency.Unknown, Response: broken("answer 4")})
		look("held")
	})
}

// If this process does not have the encryption key of a record, it neither replays the
// record nor runs its request again.
func TestRecordOfAnUnknownKey(t *testing.T) {
	for name, with := range map[string]struct{ keys, fingerprint string }{
		"another key":                 {"b", "body:one"},
		"another key, no fingerprint": {"b", ""},
		"encryption off":              {"", "body:one"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, req := newShared(t), delivered()
				req.Fingerprint = with.fingerprint
				a, b := newSealed(t, store, "a"), newSealed(t, store, with.keys)
				run := a.run(req)
				for _, state := range []idempotency.State{idempotency.InFlight, idempotency.Complete} {
					refused := as[engine.Refusal](t, b.claim(req))
					if refused.Reason != engine.ReasonUnreadable || !strings.Contains(fmt.Sprint(refused.Err), "configured") {
						t.Errorf("%s: refused with %q, %v", state, refused.Reason, refused.Err)
					}
					if _, _, err := b.Lookup(context.Background(), req.Key); !isUnreadable(err) {
						t.Errorf("%s: an operator's look: %v", state, err)
					}
					page, _, err := b.List(context.Background(), "", 10)
					if err != nil || len(page) != 1 || page[0].Record != nil || !isUnreadable(page[0].Unreadable) {
						t.Errorf("%s: the list is %+v, %v", state, page, err)
					}
					if state == idempotency.InFlight {
						wantEnd(t, run, created("kept"), resultKept)
					}
				}
				wantReplay(t, a.claim(req), run.ExecutionID(), created("kept"), false)

				// An operator can release the key without its encryption key, and then a
				// request can run.
				if err := b.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
					t.Fatal(err)
				}
				wantEnd(t, b.run(req), created("again"), resultKept)
				if err := b.Forget(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
					t.Errorf("forgotten: %v", err)
				}
			})
		})
	}
}

// Two replicas change their encryption keys, one after the other, while requests go on.
// No response is forgotten, and two different bodies are distinguished under every pair
// of keys.
func TestKeysAreExchanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		replicas := []*replica{newReplica(t, store), newReplica(t, store)}
		runs := make(map[string]string)
		for step, keys := range []string{"", "a", "ab", "ba", "ba"} {
			for i, r := range replicas {
				r.Configure(engine.Settings{Sealer: sealing(t, keys)})
				for id, executionID := range runs {
					req := withKey(delivered(), id)
					wantReplay(t, r.claim(req), executionID, created(id), false)
					req.Fingerprint = "body:two"
					wantRefusal(t, r.claim(req), engine.ReasonReused, executionID)
				}
				id := fmt.Sprintf("step %d at replica %d", step, i)
				run := r.run(withKey(delivered(), id))
				wantEnd(t, run, created(id), resultKept)
				runs[id] = run.ExecutionID()
			}
		}
	})
}

// The keys change while a run is in flight. Its end is stored with the new keys, and its
// request is still distinguished from another one.
func TestKeysChangeUnderARun(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		req := delivered()
		configure := func(keys string) {
			for _, r := range []*replica{owner, other} {
				r.Configure(engine.Settings{Sealer: sealing(t, keys)})
			}
		}
		configure("a")
		run := owner.run(req)
		waiting := other.waiters(2, req)
		synctest.Wait()
		configure("ba")
		waiting = append(waiting, other.waiters(2, req)...)
		synctest.Wait()
		another := req
		another.Fingerprint = "body:two"
		wantRefusal(t, other.claim(another), engine.ReasonReused, run.ExecutionID())
		wantEnd(t, run, created("kept"), resultKept)
		for _, w := range waiting {
			wantReplay(t, w.decision(), run.ExecutionID(), created("kept"), true)
		}
		wantRefusal(t, other.claim(another), engine.ReasonReused, run.ExecutionID())
		if record, _, err := other.Lookup(context.Background(), req.Key); err != nil || record.DeliveryID != "delivery-1" {
			t.Errorf("an operator reads %+v, %v", record, err)
		}
	})
}

func isUnreadable(err error) bool {
	var unreadable *idempotency.UnreadableError
	return errors.As(err, &unreadable)
}

// An operator without the encryption keys can no more disturb a run than others can.
func TestOperatorWithoutKeysLeavesARunAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), delivered()
		a, b := newSealed(t, store, "a"), newReplica(t, store)
		run := a.run(req)
		if err := b.Release(context.Background(), req.Key, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("freeing: %v", err)
		}
		if err := b.Forget(context.Background(), req.Key, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrInFlight) {
			t.Errorf("forgetting: %v", err)
		}
		wantEnd(t, run, created("kept"), resultKept)
	})
}

// Requests that wait on another replica get the answer, whatever the order of the keys
// is there.
func TestWaitersOpenASealedAnswer(t *testing.T) {
	onBoth(t, func(t *testing.T, owner, other *replica) {
		owner.Configure(engine.Settings{Sealer: sealing(t, "ab")})
		other.Configure(engine.Settings{Sealer: sealing(t, "ba")})
		run := owner.run(delivered())
		w := other.waiters(3, delivered())
		synctest.Wait()
		wantEnd(t, run, broken("busy"), resultReleased)
		for _, w := range w {
			wantReplay(t, w.decision(), run.ExecutionID(), broken("busy"), true)
		}
	})
}

// A reload removes the key with which a run in flight was claimed. Then it is unknown whether another
// request is the same one: it must not get the response of that run.
func TestOtherRequestBesideARunOfADroppedKey(t *testing.T) {
	for name, keys := range map[string]string{"replaced": "b", "off": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, req := newSealed(t, newShared(t), "a"), delivered()
				run := a.run(req)
				a.Configure(engine.Settings{Sealer: sealing(t, keys)})
				other := req
				other.Fingerprint = "body:two"
				wantRefusal(t, a.claim(other), engine.ReasonUnreadable, run.ExecutionID())
				unfingerprinted := req
				unfingerprinted.Fingerprint = ""
				same := a.claimLater(context.Background(), unfingerprinted)
				synctest.Wait()
				a.link.fail(refused, "settle")
				wantEnd(t, run, created("one"), resultTrying)
				wantRefusal(t, a.claim(other), engine.ReasonUnreadable, run.ExecutionID())
				wantReplay(t, same.decision(), run.ExecutionID(), created("one"), true)
				a.link.fail(works, "settle")
				a.drain()
			})
		})
	}
}

// A request that waits while the keys change, and then asks the store, takes its fingerprints under
// the new keys.
func TestWaiterOverAnExchangeOfKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), delivered()
		req.Wait = time.Minute
		a := newSealed(t, store, "a")
		late := a.run(req)
		waiting := a.claimLater(context.Background(), req)
		synctest.Wait()
		a.Configure(engine.Settings{Sealer: sealing(t, "ba")})
		a.link.fail(hung, "renew")
		time.Sleep(someLease + time.Second)
		b := newSealed(t, store, "ba")
		other := req
		other.Fingerprint = "body:two"
		run := b.run(other)
		a.link.fail(works, "renew")
		time.Sleep(someLease / 2) // the renewal finds that the key is another's
		wantRefusal(t, waiting.decision(), engine.ReasonReused, run.ExecutionID())
		wantEnd(t, run, created("two"), resultKept)
		wantEnd(t, late, created("one"), resultFenced)
	})
}

// A forced run replaces a record that cannot be read here. Neither a request that waits for it on
// another replica nor an operator needs to read that record.
func TestForcedRunOverARecordOfAnUnknownKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), delivered()
		wantEnd(t, newSealed(t, store, "z").run(req), created("old"), resultKept)
		a, b := newSealed(t, store, "a"), newSealed(t, store, "a")
		forced := a.run(forcing(req))
		waiting := b.claimLater(context.Background(), req)
		time.Sleep(2 * time.Second)
		if record, _, err := b.Lookup(context.Background(), req.Key); err != nil || record.DeliveryID != "delivery-1" {
			t.Errorf("an operator reads %+v, %v", record, err)
		}
		wantEnd(t, forced, created("new"), resultKept)
		wantReplay(t, waiting.decision(), forced.ExecutionID(), created("new"), true)
	})
}

// A refusal needs no encryption key: a held key stays held.
func TestHeldRecordOfAnUnknownKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, req := newShared(t), holding()
		a, b := newSealed(t, store, "a"), newSealed(t, store, "b")
		run := a.run(req)
		ended(run, idempotency.End{How: idempotency.Unknown, Response: failed(502)})
		wantRefusal(t, b.claim(req), engine.ReasonHeld, run.ExecutionID())
		if err := b.Release(context.Background(), req.Key, idempotency.Precondition{}); err != nil {
			t.Fatal(err)
		}
		wantEnd(t, b.run(req), created("again"), resultKept)
	})
}
