package redis

import (
	"net"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// redialEvery is the least time between two times at which all connections are given up
// because they lead to a replica.
const redialEvery = time.Second

// redial gives up all connections, after a server has said whether it is a replica: each of
// them is replaced when it is used next. An address can lead to another server than it did
// when it was dialed: a virtual one, a service of Kubernetes, a name. Where it led to a
// replica, nothing else ends the connections: no claim is sent there, so none is refused.
//
// Where the address is that of a replica and stays so, each claim comes here, and few dial.
// Where another connection has found a master, those that are left may still lead to the
// replica.
func (c *contact) redial(now time.Time, replica bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fixed || replica && now.Sub(c.redialed) < redialEvery {
		return
	}
	if replica {
		c.redialed = now
	}
	c.epoch.Add(1)
}

// pooledConn is a connection that can be given up. Whoever uses it then goes on, and the
// pool drops it when it would be used again. A subscription keeps its own: it is a hint, and
// a replica passes on what its master is told.
type pooledConn struct {
	net.Conn
	contact *contact
	epoch   int64 // in which it was dialed
	// looks says that go-redis looks at a connection that waits in a pool before it uses
	// that, as it does at those that have a file descriptor.
	looks bool
	// heard says that a reply has come over it.
	heard atomic.Bool
}

func (c *contact) pooled(conn net.Conn, epoch int64) net.Conn {
	return &pooledConn{Conn: conn, contact: c, epoch: epoch, looks: runtime.GOOS != "windows"}
}

// Read implements [net.Conn].
func (c *pooledConn) Read(to []byte) (int, error) {
	n, err := c.Conn.Read(to)
	if c.heard.Load() {
		return n, err
	}
	if n > 0 {
		c.heard.Store(true)
		if refused := refusal(to[:n]); refused != nil {
			return 0, refused
		}
		return n, err
	}
	if _, overTLS := c.Conn.(interface{ NetConn() net.Conn }); err != nil && !overTLS {
		err = hungUp(err)
	}
	return n, err
}

// errGivenUp says that nothing was sent, in a form in which another attempt follows.
var errGivenUp = &dialError{&net.OpError{Op: "write", Err: net.ErrClosed}}

func (c *pooledConn) givenUp() bool { return c.epoch != c.contact.epoch.Load() }

// SyscallConn implements [syscall.Conn]. See failedConn.
//
// go-redis drops a connection that the other side has closed, and one over which something
// has come that nobody asked for. By itself it does not look below TLS. A server that
// restarts, or closes what is idle, closes all connections that wait, and a command that
// goes out over one of those is in doubt: so we have it look there too. Before the first
// reply, what is left of the handshake may lie there (tickets of TLS 1.3), and means nothing.
func (c *pooledConn) SyscallConn() (syscall.RawConn, error) {
	if c.givenUp() {
		return nil, errGivenUp
	}
	below := c.Conn
	if over, ok := below.(interface{ NetConn() net.Conn }); ok && c.heard.Load() {
		below = over.NetConn()
	}
	if below, ok := below.(syscall.Conn); ok {
		return below.SyscallConn()
	}
	return opaque{}, nil
}

// SetWriteDeadline implements [net.Conn]. go-redis calls it before it sends anything: where
// it does not look, this is the last moment in which nothing is in doubt. A subscription
// ends by it there, and is made anew.
func (c *pooledConn) SetWriteDeadline(t time.Time) error {
	if !c.looks && c.givenUp() {
		return errGivenUp
	}
	return c.Conn.SetWriteDeadline(t)
}

// opaque stands for what is below a connection that does not show it, such as one with TLS
// over which no reply has come yet. There, nothing is to be seen.
type opaque struct{}

func (opaque) Control(func(uintptr)) error    { return nil }
func (opaque) Read(func(uintptr) bool) error  { return nil }
func (opaque) Write(func(uintptr) bool) error { return nil }
