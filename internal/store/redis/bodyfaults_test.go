package redis

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

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
	left   atomic.Int64
}

func (c *idleConn) Write(b []byte) (int, error) {
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
	conns.write = func() { s.bodies.node("").Moved() } // those of others
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
