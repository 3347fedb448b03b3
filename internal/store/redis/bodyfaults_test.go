package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// bodyClient returns the client for bodies of a store with one server.
func bodyClient(s *Store) *goredis.Client {
	return s.bodies.node(only(s).Options().Addr).client
}

// A server that closes idle connections takes every body at the first attempt.
func TestBodyAfterIdleConnectionsWereClosed(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		s, l := server.open(t, Options{TLS: always(new(tls.Config))})
		var all sync.WaitGroup
		for name, record := range claimMany(t, s, "", 2*maxWrites) {
			all.Go(func() { wantErr(t, s.Settle(ctx, keyOf(name), record, bodyOf(1, 1<<20)), nil) })
		}
		all.Wait()
		time.Sleep(time.Second) // they are idle
		l.cut()
		ends(bodyOf(1, 1<<20))(t, s, claimOf("a", "token"))
	})
}

// The server closes each new connection within a body. The body is repeated once in each settlement, and the
// first failure counts only if the server has answered something since its settlement began.
func TestBodyBehindWhichEachConnectionIsClosed(t *testing.T) {
	for answers, want := range map[bool]int{true: maxBodyCloses, false: maxBodyCloses + 1} {
		inBubble(t, func(t *testing.T, server fake) {
			s, l := server.open(t, Options{})
			c := claimOf("a", "token")
			record := mustClaim(t, s, c, idempotency.Proceed).Record
			dialed := l.dials.Load()
			l.set(func(sent string) fault {
				if len(sent) != pieceSize {
					return noFault
				}
				if answers {
					must(t, s.Renew(ctx, c))
				}
				return reset
			})
			for n := range want {
				err := s.Settle(ctx, c.Key, record, bodyOf(1, 1<<20))
				if errors.Is(err, idempotency.ErrTooLarge) != (n == want-1) {
					t.Errorf("attempt %d: %v", n+1, err)
				}
				must(t, s.Renew(ctx, c))
			}
			storetest.Equal(t, l.dials.Load()-dialed, int64(2*want), "connections for the body")
		})
	}
}

// What is known of servers and of failed bodies is bounded. A server with a body that moves stays.
func TestBodiesForgetWhatIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := must1(Open(Options{Addresses: []string{"a:1", "b:1"}, Cluster: true}))
		b := s.bodies
		must(t, b.node("a:1").writes.Acquire(ctx, 1))
		b.node("b:1")
		time.Sleep(2 * pipeIdleTimeout)
		b.node("c:1")
		if b.nodes["a:1"] == nil || b.nodes["b:1"] != nil || b.nodes["c:1"] == nil {
			t.Errorf("the servers are %v, want one that moves a body and a new one", slices.Sorted(maps.Keys(b.nodes)))
		}
		for n := range 2 * maxFailedBodies {
			_ = b.countFailure(fmt.Sprint(n), large, 0, 1, &bodyError{sent: true, err: io.EOF})
		}
		storetest.Equal(t, len(b.failed), maxFailedBodies, "failed bodies")
		time.Sleep(2 * failedBodyLife)
		b.keepWritten("token", failedBody{})
		storetest.Equal(t, len(b.failed), 1, "failed bodies after a while")
		must(t, s.Close())
	})
}
