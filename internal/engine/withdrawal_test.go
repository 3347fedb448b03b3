package engine_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The reply to a claim is lost: the claim is in doubt, whether the store has executed it or not.
func TestClaimInDoubtIsWithdrawn(t *testing.T) {
	play(t, []scene{
		{"then a request can run", "{|hold}", `
			a store {hung|lost|late|twice} claim; a asks w n=3; w refused unavailable - after=500ms; a store works; sleep 4s; a drains
			a runs run attempt=1`},
		{"a retry of its client runs before that", "hold", `
			a store {hung|lost|late|twice} claim; a refuses unavailable - after=500ms; a store works; b runs run after=..1s; sleep 4s
			b has in_flight 1; run ends 201 kept; a drains; a replays run`},
		{"it is executed only after a retry has released the key", "hold", `
			a store {late|twice} claim; a refuses unavailable - after=500ms; a store works; b runs one after=..1s; one ends 500 released
			sleep 4s; a drains; b has released 1; b runs two attempt=2`},
		{"a takeover in doubt keeps the attempts", "", `
			a runs one; one ends 500 released; a runs crashed; a store refused; sleep 30s; b store {hung|lost|late|twice} claim
			b refuses unavailable - after=500ms; b store works; sleep 4s; b drains; b runs run attempt=3`},
		{"it is executed after its own short lease", "lease=300ms", `
			a runs one; one ends 500 released; a store late claim; a refuses unavailable - after=500ms; a store works; sleep 4s; a has released 1; a drains`},
		{"when the store is back", "hold", `
			a store hung; a store lost claim; a refuses unavailable - after=500ms; sleep 1h; a has in_flight 1; a store works; a drains
			a has released 0`},
		// Then its store can be closed. Until then a warning is logged at an interval.
		{"never, if the store does not come back: idle when no claim can have an effect any more", "retention=1h", `
			a store hung; a asks w n=3 {|hold|attempts=3}; w refused unavailable -; until {29s|59m59s|59m59s}; a busy; sleep 10s; a idle
			a logs 1..{2|14|14} could not be withdrawn yet`},
	})
}

// keyed returns the request nth under `on_unknown hold`.
func keyed(n int) engine.Request {
	req := nth(n)
	req.Policy.Hold = true
	return req
}

func TestDamagedRecordDoesNotKeepOthersInDoubt(t *testing.T) {
	damaged := &idempotency.UnreadableError{Where: "dedup:0", Err: errors.New("it is cut off")}
	for name, err := range map[string]error{"damaged": damaged, "out of reach": errRefused} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newReplica(t, newShared(t))
				a.link.fail(replyLost, "claim")
				a.link.failKey(keyed(0).Key, err)
				for n := range 5 {
					wantRefusal(t, a.claim(keyed(n)), engine.ReasonUnavailable, "")
				}
				a.link.recover()
				time.Sleep(10 * time.Second)
				for n := 1; n < 5; n++ {
					a.wantState(keyed(n), idempotency.Released, 0)
				}
				if errors.Is(err, errRefused) {
					a.link.failKey(idempotency.Key{}, nil)
				}
				a.drain()
			})
		})
	}
}

// One lost connection leaves many claims in doubt. The engine withdraws them concurrently, up to
// maxConcurrentWithdrawals.
func TestManyClaimsAreWithdrawnTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newReplica(t, newShared(t))
		a.link.fail(replyLost, "claim")
		const claims = 100
		for n := range claims {
			a.claimLater(context.Background(), keyed(n))
		}
		a.link.failWith(errRefused, "settle")
		// Between two rounds: of one that begins now, some calls would be counted before.
		time.Sleep(2*storeTimeout + 250*time.Millisecond)
		before := a.link.count("settle")
		resume := a.link.pause("settle")
		a.link.failWith(nil, "settle")
		time.Sleep(time.Second)
		if n := a.link.count("settle") - before; n < 10 || n > claims/2 {
			t.Errorf("%d of %d claims are being withdrawn, want some at the same time, and not all", n, claims)
		}
		resume()
		a.link.recover()
		time.Sleep(time.Second)
		for n := range claims {
			a.wantState(keyed(n), idempotency.Released, 0)
		}
		a.drain()
	})
}
