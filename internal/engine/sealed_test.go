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
	must(t, err)
	return s
}

// delivered returns someRequest with a delivery ID.
func delivered() engine.Request {
	req := someRequest()
	req.Origin.DeliveryID = "delivery-1"
	return req
}

// Nothing that is stored during the whole life of a key discloses the delivery ID or a response.
func TestStoredValuesAreEncrypted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newShared(t)
		a, req := newReplica(t, store), delivered()
		a.Configure(engine.Settings{Sealer: sealing(t, "a")})
		look := func(when string) {
			t.Helper()
			record, _, err := store.Lookup(context.Background(), req.Key)
			if err != nil || record == nil {
				t.Fatalf("%s: %+v, %v", when, record, err)
			}
			response, err := store.Response(context.Background(), req.Key, record.Token)
			must(t, err)
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
		must(t, a.Release(context.Background(), req.Key, idempotency.Precondition{}))
		look("released")
		held := req
		held.Policy.Hold = true
		ended(a.run(held), idempotency.End{How: idempotency.Unknown, Response: broken("answer 4")})
		look("held")
	})
}

// Two replicas change their encryption keys, one after the other, while requests go on.
// No response is forgotten, and two different bodies are distinguished under every pair
// of keys.
func TestEncryptionKeyRotationOnTwoReplicas(t *testing.T) {
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

func isUnreadable(err error) bool {
	var unreadable *idempotency.UnreadableError
	return errors.As(err, &unreadable)
}

func TestEncryptionKeyChanges(t *testing.T) {
	play(t, []scene{
		// The end is stored with the new keys.
		{"under a run, whose request is still distinguished from another one", "", `
			a keys a; other keys a; a runs run; other asks w n=2; a keys ba; other keys ba; other asks w n=2; other refuses reused run reused
			run ends 201 kept; w shares run; other refuses reused run reused; other reads delivery-1`},
		{"under a request that waits, and takes its fingerprints under the new ones", "wait=1m", `
			a keys a; a runs late; a asks w; a keys ba; a store hung renew; sleep 31s; b keys ba; b runs run reused
			a store works renew; sleep 15s; w refused reused run; run ends 201 kept; late ends 201 fenced`},
		{"while the store is asked: the request asks again under the new ones", "", `
			a keys a; a runs busy key=busy; a limits in_flight=1; a pauses lookup; a asks w n=2; a keys b; b keys b
			b runs run; run ends 201 kept; a resumes lookup; w replays run; busy ends 201 kept`},
		// It neither replays the record nor runs its request again, and an operator can release it without its key.
		{"and a replica has not those of a record", "{|fingerprint=|}", `
			a keys a; b keys {b|b|-}; a runs run; b refuses unreadable -; b blind; run ends 201 kept; b refuses unreadable -; b blind
			a replays run; b releases; b runs next; next ends 201 kept; b forgets`},
		{"and have another order elsewhere: waiters open the answer", "", `
			a keys ab; other keys ba; a runs run; other asks w n=3; run ends 500 released; w shares run`},
		// Then it is unknown whether another request is the same one: it must not get the response.
		{"and that of a run in flight is dropped", "", `
			a keys a; a runs run; a keys {b|-}; a refuses unreadable run reused; a asks same fingerprint=; a store refused settle
			run ends 201 trying; a refuses unreadable run reused; same shares run; a store works; a drains`},
		// Neither a request that waits for it on another replica nor an operator needs to read that record.
		{"and a forced run replaces a record of an unknown one", "", `
			c keys z; c runs old; old ends 201 kept; a keys a; b keys a; a runs forced force; b asks w; sleep 2s; b reads delivery-1
			forced ends 201 kept; w shares forced`},
		{"and a held record of an unknown one stays held", "hold", `
			a keys a; b keys b; a runs run; run ends unknown held; b refuses held run; b releases; b runs next; next ends 201 kept`},
		{"and an operator without them leaves a run alone, as others do", "", `
			a keys a; a runs run; b releases in_flight; b forgets in_flight; run ends 201 kept`},
	})
}
