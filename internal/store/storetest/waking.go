package storetest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

var wakeTests = []subtest{
	{"whoever waits is woken when the run ends", wokenAtEnd},
	{"an ended subscription is not called", endedSubscription},
}

// wakePatience is how long awaitWake tries. A single wake-up may be lost, but not all
// of them.
const wakePatience = 20 * time.Second

// awaitWake ends one run after another, each while a claim of the peer waits for it,
// until a wake-up comes for one of them.
func (f *fixture) awaitWake(what string, woken <-chan idempotency.Key, s idempotency.Settlement) {
	f.Helper()
	deadline := time.Now().Add(wakePatience)
	for round := 0; time.Now().Before(deadline); round++ {
		k := key(fmt.Sprint(what, " ", round))
		claimed := f.claim(f.newClaim(k), idempotency.Proceed)
		waiting := f.newClaim(k)
		waiting.Waits = true
		f.claimAt(f.peer, waiting, idempotency.WaitForRun)
		f.settle(k, claimed.Record, s)
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
	f.Fatalf("%s: nobody was woken", what)
}

func wokenAtEnd(f *fixture) {
	woken := make(chan idempotency.Key, 1024)
	stop := f.peer.Subscribe(func(k idempotency.Key) {
		select {
		case woken <- k:
		default:
		}
	})
	defer stop()
	for _, s := range []idempotency.Settlement{complete("kept"), release(true, "busy"), release(false, ""), hold()} {
		f.awaitWake(fmt.Sprint(s.State, " ", s.Counted), woken, s)
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
	woken := make(chan idempotency.Key, 1024)
	stopOther := f.peer.Subscribe(func(k idempotency.Key) {
		select {
		case woken <- k:
		default:
		}
	})
	defer stopOther()
	f.awaitWake("the other subscription", woken, complete("kept"))
}
