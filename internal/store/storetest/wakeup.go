package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// wakeTimeout is how long awaitWake tries. A single wake-up may be lost, but not all of them.
const wakeTimeout = 20 * time.Second

// awaitWake ends one run after another, each while a claim of the peer waits for it, until the peer is
// woken for one of them.
func (f *fixture) awaitWake(what string, woken <-chan idempotency.Key, s idempotency.Settlement) {
	f.Helper()
	f.awaitWakeBy(what, woken, long, func(claimed idempotency.Claimed, k idempotency.Key) { f.settle(k, claimed.Record, s) })
}

// awaitWakeBy is like awaitWake, with a function that ends the run, and with a lease.
func (f *fixture) awaitWakeBy(what string, woken <-chan idempotency.Key, lease time.Duration, end func(idempotency.Claimed, idempotency.Key)) {
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
		end(claimed, k)
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
		f.awaitWake(fmt.Sprint(s.State, " ", s.Counted), woken, s)
	}
}

// An operator can take a key only from a run whose lease has lapsed.
func wokenByOperator(f *fixture) {
	woken, stop := f.wakeUps()
	defer stop()
	for how, take := range takes {
		f.awaitWakeBy(how, woken, f.short(), func(_ idempotency.Claimed, k idempotency.Key) {
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
	f.awaitWake("the other subscription", woken, complete("kept"))
}
