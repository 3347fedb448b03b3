package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

// dialFunc makes a connection to a server or a sentinel.
type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// dialer makes the connections of a store, limits their reads and writes, and can close all
// of them. It is also a go-redis hook, through which it sees dials that fail.
type dialer struct {
	dial   dialFunc
	limits *limits
	// master is the address that was connected to last, for logs: behind sentinels the
	// client has none.
	master atomic.Pointer[string]

	mu   sync.Mutex
	open map[*conn]struct{}
}

var _ goredis.Hook = (*dialer)(nil)

func newDialer(o Options, l *limits) *dialer {
	d := &dialer{dial: o.dial, limits: l, open: make(map[*conn]struct{})}
	if d.dial == nil {
		d.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			return dialTLS(ctx, netDialer(l.attempt()), o.TLS, network, address)
		}
	}
	return d
}

// netDialer leaves time for the IPv4 address of a name whose IPv6 address does not answer.
func netDialer(timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		FallbackDelay:   timeout / 4,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}
}

// dialTLS differs from what go-redis does by itself: each connection asks for its TLS
// settings, and the handshake ends with the context.
func dialTLS(ctx context.Context, d *net.Dialer, settings func() (*tls.Config, error), network, address string) (net.Conn, error) {
	if settings == nil {
		return d.DialContext(ctx, network, address)
	}
	config, err := settings()
	if err != nil {
		return nil, err
	}
	conn, err := (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, network, address)
	if errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*net.OpError)) {
		err = fmt.Errorf("the server does not answer the TLS handshake; it may have no TLS at this port: %w", err)
	}
	return conn, err
}

// subscribing marks the context of a subscription, whose connection may wait for messages.
type subscribing struct{}

func (d *dialer) dialConn(ctx context.Context, network, address string) (net.Conn, error) {
	limited, cancel := context.WithTimeout(ctx, d.limits.attempt())
	defer cancel()
	raw, err := d.dial(limited, network, address)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, dialer: d, waits: ctx.Value(subscribing{}) != nil}
	d.mu.Lock()
	d.open[c] = struct{}{}
	d.mu.Unlock()
	if raw, ok := raw.(syscall.Conn); ok { // go-redis checks idle ones, but not below TLS
		return struct {
			*conn
			syscall.Conn
		}{c, raw}, nil
	}
	return c, nil
}

// closeAll closes all connections, so that each is made again.
func (d *dialer) closeAll() {
	d.mu.Lock()
	open := make([]*conn, 0, len(d.open))
	for c := range d.open {
		open = append(open, c)
	}
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// conn ends each read and write after the attempt timeout, as it is then.
type conn struct {
	net.Conn
	dialer *dialer
	waits  bool
}

func (c *conn) limit(t time.Time) time.Time {
	if limit := time.Now().Add(c.dialer.limits.attempt()); !c.waits && limit.Before(t) {
		return limit
	}
	return t // also the zero time, for none
}

// SetReadDeadline implements [net.Conn].
func (c *conn) SetReadDeadline(t time.Time) error { return c.Conn.SetReadDeadline(c.limit(t)) }

// SetWriteDeadline implements [net.Conn].
func (c *conn) SetWriteDeadline(t time.Time) error { return c.Conn.SetWriteDeadline(c.limit(t)) }

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.dialer.mu.Lock()
	delete(c.dialer.open, c)
	c.dialer.mu.Unlock()
	return c.Conn.Close()
}

// dialError reports that there was no connection, so that no command was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// initError is a dialError for go-redis to return where it makes a connection: it unwraps
// such an error once.
func initError(err error) error { return &dialError{&dialError{err}} }

// DialHook implements [goredis.Hook]. It returns a connection that fails when it is used in
// place of the error of a dial. go-redis counts such errors: after as many as the pool has
// room for, it dials only once a second, and a server that was unavailable for a moment would
// stay so for a second more.
func (d *dialer) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := next(ctx, network, address)
		if err != nil {
			placeholder, _ := net.Pipe()
			return failedConn{placeholder, initError(err)}, nil
		}
		master := c.RemoteAddr().String()
		d.master.Store(&master)
		return c, nil
	}
}

// ProcessHook implements [goredis.Hook].
func (*dialer) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook { return next }

// ProcessPipelineHook implements [goredis.Hook].
func (*dialer) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

type failedConn struct {
	net.Conn
	err error
}

func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

// SyscallConn implements [syscall.Conn]. go-redis calls it before it uses an idle connection
// again, and drops this one.
func (c failedConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err }
