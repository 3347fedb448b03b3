package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// bodyClient returns the client for bodies of a store with one server.
func bodyClient(s *Store) *goredis.Client {
	return s.bodies.node(s.client.(*goredis.Client).Options().Addr).client
}

// idleConns are connections that the server can close while they are idle. The kernel takes what fits its
// send buffer, and then the reset comes.
type idleConns struct {
	mu   sync.Mutex
	open []*idleConn
	// write is called before a closed one takes bytes.
	write func()
}

func (c *idleConns) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	conn := &idleConn{Conn: raw, all: c}
	conn.left.Store(sendBuffer)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = append(c.open, conn)
	return conn, err
}

func (c *idleConns) close() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		conn.closed.Store(true)
	}
	return len(c.open)
}

// idleConn is like a connection over TLS: go-redis does not notice that it is closed.
type idleConn struct {
	net.Conn
	all    *idleConns
	closed atomic.Bool
	closes atomic.Bool // within a body
	left   atomic.Int64
}

func (c *idleConn) Write(b []byte) (int, error) {
	if c.closes.Load() && len(b) == pieceSize {
		c.closed.Store(true)
	}
	if !c.closed.Load() {
		return c.Conn.Write(b)
	}
	c.all.write()
	if c.left.Add(-int64(len(b))) < 0 {
		return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return len(b), nil
}

func (c *idleConn) Read(b []byte) (int, error) {
	if c.closed.Load() {
		return 0, &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return c.Conn.Read(b)
}

// A server that closes idle connections takes every body at the first attempt, also while others move.
func TestBodyAfterIdleConnectionsWereClosed(t *testing.T) {
	const bodies, size = 4, 1 << 20
	server := redistest.Start(t)
	var conns idleConns
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{server.Addr}, Timeout: busyTimeout, dial: conns.dial}))
	conns.write = func() { s.bodies.node(server.Addr).Moved() } // those of others
	claim := func(n int) (idempotency.Claim, *idempotency.Record) {
		c := claimOf(fmt.Sprint(n), fmt.Sprint("token ", n))
		return c, mustClaim(t, s, c, idempotency.Proceed).Record
	}
	var all sync.WaitGroup
	for n := range bodies {
		c, record := claim(n)
		all.Go(func() { wantErr(t, s.Settle(ctx, c.Key, record, bodyOf(n, size)), nil, n) })
	}
	all.Wait()
	if n := conns.close(); n < 2 {
		t.Fatalf("%d connections are closed, want one for bodies and one for others", n)
	}
	c, record := claim(bodies)
	mustSettle(t, s, c, record, bodyOf(bodies, size))
}

// A body goes to the server of its record, also while the seed of the cluster hangs.
func TestBodyWhileTheSeedHangs(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	seed := cluster.Masters[0]
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{seed.Addr}, Cluster: true, Timeout: busyTimeout}))
	c := claimOf(namesOn(1, 3, "beside the seed")(), "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	seed.Pause()
	defer seed.Resume()
	mustSettle(t, s, c, record, bodyOf(1, 1<<20))
	mustClaim(t, s, withToken(c, "again"), idempotency.ReplayKept)
}

// A settlement of which no byte was sent is no failure of its body, whatever else the server answers.
func TestBodyThatIsNeverSent(t *testing.T) {
	server := redistest.Start(t)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{server.Addr}, Timeout: busyTimeout,
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			if ctx.Value(moving{}) != nil {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	}))
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	for range 2 * maxBodyFailures {
		short, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
		if err := s.Settle(short, c.Key, record, bodyOf(1, 1<<20)); err == nil || errors.Is(err, idempotency.ErrTooLarge) {
			t.Errorf("settle: %v, want another error", err)
		}
		cancel()
		must(t, s.Renew(ctx, c))
	}
}

// The server closes each new connection within a body. The body is repeated once in each settlement, and the
// first failure counts only if the server has answered something since its settlement began.
func TestBodyBehindWhichEachConnectionIsClosed(t *testing.T) {
	for _, answers := range []bool{true, false} {
		server := redistest.Start(t)
		conns := idleConns{write: func() {}}
		s := closeAtEnd(t, openWith(t, Options{
			Addresses: []string{server.Addr}, Timeout: busyTimeout,
			dial: func(ctx context.Context, network, address string) (net.Conn, error) {
				conn, err := conns.dial(ctx, network, address)
				if ctx.Value(moving{}) != nil {
					conn.(*idleConn).closes.Store(true)
				}
				return conn, err
			},
		}))
		c := claimOf("a", "token")
		record := mustClaim(t, s, c, idempotency.Proceed).Record
		conns.write = func() {
			if answers {
				must(t, s.Renew(ctx, c))
			}
		}
		dialed, want := len(conns.open), maxBodyCloses
		if !answers {
			want++
		}
		for n := range want {
			err := s.Settle(ctx, c.Key, record, bodyOf(1, 1<<20))
			if errors.Is(err, idempotency.ErrTooLarge) != (n == want-1) {
				t.Errorf("attempt %d: %v", n+1, err)
			}
			must(t, s.Renew(ctx, c))
		}
		storetest.Equal(t, len(conns.open)-dialed, 2*want, "connections for the body")
	}
}

// What is known of servers and of failed bodies is bounded. A server with a body that moves stays.
func TestBodiesForgetWhatIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := openWith(t, Options{Addresses: []string{"a:1", "b:1"}, Cluster: true})
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

// A server need not know INFO, nor let the user call it. One that gives another answer cannot be used: it may
// be a replica.
func TestServerThatDoesNotAnswerInfo(t *testing.T) {
	for answer, usable := range map[string]bool{
		"NOPERM User x has no permissions to run the 'info' command": true,
		"ERR unknown command 'info', with args beginning with: ":     true,
		"LOADING Redis is loading the dataset in memory":             false,
		"BUSY Redis is busy running a script.":                       false,
		"ERR max number of clients reached":                          false,
	} {
		server, client := net.Pipe()
		s := openWith(t, Options{
			Addresses: []string{"pipe:1"},
			dial:      func(context.Context, string, string) (net.Conn, error) { return client, nil },
		})
		go func() {
			_, _ = server.Read(make([]byte, 512))
			_, _ = fmt.Fprintf(server, "-%s\r\n", answer)
		}()
		c, err := s.dialer.dialConn(ctx, "tcp", "pipe:1")
		must(t, err)
		err = c.(*conn).handshake(ctx)
		if usable != (err == nil) || err != nil && (!strings.Contains(err.Error(), answer) || refused(err)) {
			t.Errorf("%s: %v", answer, err)
		}
		must(t, s.Close())
		_ = c.Close()
	}
}

// A server that is not the one for a key, or takes no more clients, is unavailable; it does not refuse a value.
func TestUnavailableServer(t *testing.T) {
	for answer, want := range map[string]bool{
		"MOVED 1 127.0.0.1:6380":              false,
		"ASK 1 127.0.0.1:6380":                false,
		"ERR max number of clients reached":   false,
		"OOM command not allowed":             true,
		"READONLY You can't write against it": true,
	} {
		storetest.Equal(t, refused(serverError(answer)), want, answer)
	}
}

// Each of many addresses has the time for a round trip.
func TestDialManyAddresses(t *testing.T) {
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{"redis.test:6379"}}))
	addresses := make([]string, 30)
	for n := range addresses {
		addresses[n] = fmt.Sprint("127.0.0.", n+1)
	}
	s.dialer.resolver = resolver(t, addresses...)
	var dials int
	before := time.Now()
	s.dialer.control = func(ctx context.Context, _, _ string, _ syscall.RawConn) error {
		dials++
		if deadline, _ := ctx.Deadline(); deadline.Sub(before) < minAddressTimeout {
			t.Errorf("dial %d ends after %v", dials, deadline.Sub(before))
		}
		return errors.New("it is not dialed")
	}
	if _, err := s.dialer.connect(ctx, "tcp", "redis.test:6379", func(string) {}); err == nil || dials != len(addresses) {
		t.Errorf("%d dials: %v", dials, err)
	}
}
