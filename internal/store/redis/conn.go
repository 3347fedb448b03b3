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

// dialer dials the connections of a store, limits their reads and writes, and can close all of them.
// It is also a go-redis hook, because only the hooks can tell a server from a sentinel.
type dialer struct {
	options     Options
	limits      *limits
	credentials *credentials
	// accepted and refused have the run IDs of servers, and connected reports whether there is one.
	accepted, refused sync.Map
	connected         atomic.Bool
	// comparesValues reports whether the server of the last handshake has SET with IFEQ.
	comparesValues atomic.Bool
	// roundTrip is how long the last handshake waited for the first reply, in ns.
	roundTrip atomic.Int64
	// ctx ends the dials under way when the store is closed.
	ctx    context.Context
	cancel context.CancelFunc
	// master is the address of the last connection for small commands. Behind sentinels, bodies go to
	// it too: the sentinels do not all know a new master at the same time.
	master atomic.Pointer[string]

	// lookUp returns the addresses of a host. control is called before each of them is dialed; nil in
	// production. Tests set both.
	lookUp  func(ctx context.Context, host string) ([]net.IPAddr, error)
	control func(ctx context.Context, network, address string, c syscall.RawConn) error

	mu   sync.Mutex
	open map[*conn]struct{}
}

var _ goredis.Hook = (*dialer)(nil)

func newDialer(o Options, l *limits, c *credentials) *dialer {
	d := &dialer{options: o, limits: l, credentials: c, lookUp: net.DefaultResolver.LookupIPAddr, open: make(map[*conn]struct{})}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	return d
}

// moving marks the context of a dial for bodies. Its value is the [bodyNode].
type moving struct{}

// dialBody returns a function that dials a connection for the bodies of a server.
func (d *dialer) dialBody(n *bodyNode) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if address == sentinelClient {
			master := d.master.Load()
			if master == nil {
				return nil, errors.New("no sentinel has named the master yet")
			}
			address = *master
		}
		return d.dialConn(context.WithValue(ctx, moving{}, n), network, address)
	}
}

func (d *dialer) dialConn(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	defer context.AfterFunc(d.ctx, cancel)()
	c := &conn{dialer: d, address: address, startTime: time.Now(), subscribes: ctx.Value(subscribing{}) != nil}
	c.setAwaits(awaitingConnect)
	d.mu.Lock()
	d.open[c] = struct{}{}
	d.mu.Unlock()
	var raw net.Conn
	var err error
	if d.options.dial != nil {
		raw, err = d.options.dial(ctx, network, address)
	} else {
		raw, err = d.dialTLS(ctx, network, address, c.setAwaits)
	}
	c.setAwaits(awaitingReply)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		delete(d.open, c)
		if d.ctx.Err() != nil {
			err = goredis.ErrClosed
		}
		return nil, err
	}
	c.Conn = raw
	if n, ok := ctx.Value(moving{}).(*bodyNode); ok {
		c.body = n
		setSendBuffer(raw)
	}
	if raw, ok := raw.(syscall.Conn); ok { // go-redis checks idle connections by it, except with TLS
		return struct {
			*conn
			syscall.Conn
		}{c, raw}, nil
	}
	return c, nil
}

// explainNoConn adds to an error why there is no connection to an address: what the oldest dial to it
// waits for. Behind sentinels, and for an empty address, all dials count.
func (d *dialer) explainNoConn(address string, err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	anywhere := address == "" || address == sentinelClient
	var oldest *conn
	var awaits string
	for c := range d.open {
		if what := c.awaits.Load(); what != nil && (anywhere || c.address == address) && (oldest == nil || c.startTime.Before(oldest.startTime)) {
			oldest, awaits = c, *what
		}
	}
	if oldest == nil {
		return fmt.Errorf("no connection was free: %w", err)
	}
	return fmt.Errorf("no connection to %s yet: %s: %w", oldest.address, awaits, err)
}

// closeOpen closes the open connections for which closes is true.
func (d *dialer) closeOpen(closes func(*conn) bool) {
	d.mu.Lock()
	var open []*conn
	for c := range d.open {
		if c.Conn != nil && closes(c) {
			open = append(open, c)
		}
	}
	d.mu.Unlock()
	for _, c := range open {
		_ = c.Close()
	}
}

// conn limits each read and write by the attempt timeout that is set at that time, and by the
// handshake timeout before the first reply. Over a slow link, an attempt may take twice as long as the first
// reply: a second attempt would not be faster.
type conn struct {
	net.Conn   // nil during the dial
	dialer     *dialer
	address    string
	startTime  time.Time
	subscribes bool
	// early is what the server sent behind the replies of the handshake.
	early []byte
	// roundTrip is how long the handshake waited for the first reply.
	roundTrip time.Duration
	// body is the server whose bodies the connection moves; nil for small commands. sent reports whether
	// it has sent bytes since the last reply.
	body *bodyNode
	sent bool
	// awaits says what the connection waits for; nil after the first reply.
	awaits atomic.Pointer[string]
}

func (c *conn) setAwaits(what string) { c.awaits.Store(&what) }

// setSendBuffer limits what the kernel holds of a body.
func setSendBuffer(raw net.Conn) {
	if over, ok := raw.(*tls.Conn); ok {
		raw = over.NetConn()
	}
	if tcp, ok := raw.(interface{ SetWriteBuffer(bytes int) error }); ok {
		_ = tcp.SetWriteBuffer(sendBuffer)
	}
}

// Write implements [net.Conn]. It writes a body in pieces, each with a deadline of its own.
func (c *conn) Write(b []byte) (n int, err error) {
	if c.body == nil {
		return c.Conn.Write(b)
	}
	for n < len(b) {
		_ = c.SetWriteDeadline(time.Now().Add(noLimit)) // fails only if it is closed, as the write does
		m, err := c.Conn.Write(b[n:min(len(b), n+pieceSize)])
		if n += m; m > 0 {
			c.sent = true
			c.body.Moved()
		}
		if err != nil {
			return n, c.bodyError(err)
		}
	}
	return n, nil
}

// bodyError is the error of a connection for bodies.
type bodyError struct {
	err    error
	dialed time.Time
	sent   bool // some bytes of the flush
}

func (e *bodyError) Error() string { return e.err.Error() }
func (e *bodyError) Unwrap() error { return e.err }

func (c *conn) bodyError(err error) error { return &bodyError{err, c.startTime, c.sent} }

// Read implements [net.Conn]. Before the first reply, no command of the store has been sent, so an
// error is an [initError].
func (c *conn) Read(b []byte) (int, error) {
	if len(c.early) > 0 {
		n := copy(b, c.early)
		c.early = c.early[n:]
		return n, nil
	}
	if c.body != nil {
		_ = c.SetReadDeadline(time.Now().Add(noLimit)) // as in Write
	}
	n, err := c.Conn.Read(b)
	switch awaits := c.awaits.Load() != nil; {
	case n > 0 && c.body != nil:
		c.sent = false
		c.body.Moved()
	case n > 0 && awaits:
		c.awaits.Store(nil)
	case err != nil && awaits:
		err = initError(err)
	case err != nil && c.body != nil:
		err = c.bodyError(err)
	}
	return n, err
}

func (c *conn) limit(t time.Time) time.Time {
	timeout := max(c.dialer.limits.attemptTimeout(), 2*c.roundTrip)
	switch {
	case c.awaits.Load() != nil:
		timeout = c.dialer.limits.handshakeTimeout()
	case c.subscribes:
		return t // perhaps the zero time, for no deadline
	case c.body != nil:
		timeout = c.dialer.limits.idleTimeout()
	}
	if limit := time.Now().Add(timeout); limit.Before(t) {
		return limit
	}
	return t
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

// dialError is the error if there was no connection, so that no command was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// initError returns a dialError that go-redis may unwrap once, as it does with errors while it
// initializes a connection.
func initError(err error) error { return &dialError{&dialError{err}} }

// DialHook implements [goredis.Hook]. It makes the handshake. Instead of an error, it returns a connection
// that fails when it is used. go-redis counts the errors of dials: after as many as the size of the pool,
// it dials only once a second, and a server that was unavailable for a moment would remain unavailable for
// a second.
func (d *dialer) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := next(ctx, network, address)
		if err != nil {
			return newFailedConn(initError(err)), nil
		}
		if err := c.(interface{ handshake(context.Context) error }).handshake(ctx); err != nil {
			_ = c.Close()
			return newFailedConn(err), nil
		}
		return c, nil
	}
}

// ProcessHook implements [goredis.Hook]. go-redis sends HELLO over each new connection.
func (*dialer) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if cmd.Name() == "hello" {
			return nil // the handshake has logged in
		}
		return next(ctx, cmd)
	}
}

// ProcessPipelineHook implements [goredis.Hook].
func (*dialer) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

type failedConn struct {
	net.Conn
	err error
}

func newFailedConn(err error) failedConn {
	placeholder, _ := net.Pipe()
	return failedConn{placeholder, err}
}

func (c failedConn) Write([]byte) (int, error) { return 0, c.err }

// SyscallConn implements [syscall.Conn]. go-redis calls it before it reuses an idle connection, and
// its error makes go-redis drop this one.
func (c failedConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err }
