package redis

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// The inbox keeps its connection while nothing happens, and subscribes again after it was closed, or has become silent
// as if the server had vanished.
func TestInboxComesBack(t *testing.T) {
	for name, fail := range map[string]func(l *link){
		"nothing happens": nil,
		"it is closed":    (*link).cut,
		"it is silent":    (*link).vanish,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				s, l := server.open(t, Options{})
				woken := make(chan idempotency.Key, 100)
				defer s.Subscribe(func(key idempotency.Key) { woken <- key })()
				run := claimOf("a", "1")
				claimed := mustClaim(t, s, run, idempotency.Proceed)
				mustWait(t, s, claimOf("a", "2"))
				synctest.Wait()
				storetest.Equal(t, server.PubSubNumSub(s.inbox.name)[s.inbox.name], 1, "subscriptions while a claim waits")
				if dials := l.dials.Load(); fail == nil {
					var pings atomic.Int64
					server.on(func(command string, _ ...string) (string, bool, bool) {
						if command == "ping" {
							pings.Add(1)
						}
						return "", false, false
					})
					time.Sleep(20*silenceTimeout + time.Second)
					storetest.Equal(t, l.dials.Load()-dials, 0, "dials while nothing happens")
					storetest.Equal(t, pings.Load(), 20, "times asked whether the server is there")
				} else {
					fail(l)
					time.Sleep(2*silenceTimeout + 2*minPause)
				}
				for range maxFlushes {
					_ = s.Renew(ctx, run) // the other connections are silent, too
				}
				mustSettle(t, s, run, claimed.Record, kept(small))
				mustBeWoken(t, woken, run.Key)
			})
		})
	}
}

// While the server is unavailable for a quarter of an hour, the inbox logs only every few minutes.
func TestInboxLogsRarely(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		core, logs := observer.New(zap.InfoLevel)
		s, l := server.open(t, Options{Logger: zap.New(core)})
		defer s.Subscribe(func(idempotency.Key) {})()
		mustClaim(t, s, claimOf("a", "1"), idempotency.Proceed)
		mustWait(t, s, claimOf("a", "2"))
		synctest.Wait() // it is subscribed
		l.refuse()
		time.Sleep(14 * time.Minute)
		storetest.Equal(t, logs.FilterMessageSnippet("not subscribed").Len(), 3, "log entries in 14 minutes")
		l.resume()
		time.Sleep(maxPause)
		synctest.Wait()
		storetest.Equal(t, logs.FilterMessageSnippet("subscribed to the ends of other replicas' runs again").Len(), 1, "log entries that it is subscribed again")
	})
}
