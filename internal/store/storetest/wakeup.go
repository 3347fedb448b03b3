package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// wakeTimeout is how long awaitWake tries. A single wake-up may be lost, but not all of them.
const wakeTimeout = 20 * time.Second

// awaitWake makes one run with this lease after another, and ends it while a claim of the peer waits for it,
// until the peer is woken for one of them.
func (f *fixture) awaitWake(what string, woken <-chan idempotency.Key, lease time.Duration, end func(k idempotency.Key, claimed *idempotency.Record)) {
	f.Helper()
	deadline := time.Now().Add(wakeTimeout)
	for round := 0; time.Now().Before(deadline); round++ {
		k := key(fmt.Sprint(what, " ", round))
		c := f.newClaim(k)
		c.Lease = lease
		claimed := f.claim(c, idempotency.Proceed)
		waiting := f.newClaim(k)
		waiting.Waits = true
		f.claimAt(f.peer, waiting, idempotency.WaitForRun)
		end(k, claimed.Record)
		timeout := time.After(time.Second)
		for waits := true; waits; {
			select {
			case got := <-woken:
				if got == k {
					return
				}
			case <-timeout:
				waits = false
			}
		}
	}
	f.Fatalf("%s: the peer was not woken", what)
}

// wakeUps subscribes to the peer.
func (f *fixture) wakeUps() (woken <-chan idempotency.Key, stop func()) {
	keys := make(chan idempotency.Key, 1024)
	stop = f.peer.Subscribe(func(k idempotency.Key) {
		select {
		case keys <- k:
		default:
		}
	})
	return keys, stop
}

func wokenAtEnd(f *fixture) {
	woken, stop := f.wakeUps()
	defer stop()
	for _, s := range []idempotency.Settlement{complete("kept"), release(true, "busy"), release(false, ""), hold()} {
		f.awaitWake(fmt.Sprint(s.State, " ", s.Counted), woken, long, func(k idempotency.Key, claimed *idempotency.Record) { f.settle(k, claimed, s) })
	}
}

// An operator can take a key only from a run whose lease has lapsed.
func wokenByOperator(f *fixture) {
	woken, stop := f.wakeUps()
	defer stop()
	for how, take := range takes {
		f.awaitWake(how, woken, f.short(), func(k idempotency.Key, _ *idempotency.Record) {
			f.pass(f.short())
			Must(f, take(f.store, f, k, idempotency.Precondition{}), how)
		})
	}
}

func endedSubscription(f *fixture) {
	var ended atomic.Bool
	stop := f.peer.Subscribe(func(idempotency.Key) {
		if ended.Load() {
			f.Error("woken after the subscription ended")
		}
	})
	stop()
	ended.Store(true)
	woken, stopOther := f.wakeUps()
	defer stopOther()
	f.awaitWake("the other subscription", woken, long, func(k idempotency.Key, claimed *idempotency.Record) { f.settle(k, claimed, hold()) })
}
