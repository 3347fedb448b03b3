package redis

import (
	"net"
	"runtime"
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
}

func (c *contact) pooled(conn net.Conn, epoch int64) net.Conn {
	return &pooledConn{conn, c, epoch, runtime.GOOS != "windows"}
}

// errGivenUp says that nothing was sent, in a form in which another attempt follows.
var errGivenUp = &dialError{&net.OpError{Op: "write", Err: net.ErrClosed}}

func (c *pooledConn) givenUp() bool { return c.epoch != c.contact.epoch.Load() }

// SyscallConn implements [syscall.Conn]. See failedConn.
func (c *pooledConn) SyscallConn() (syscall.RawConn, error) {
	if c.givenUp() {
		return nil, errGivenUp
	}
	if below, ok := c.Conn.(syscall.Conn); ok {
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

// opaque stands for what is below a connection that does not show it, such as one with TLS.
// There, nothing is to be seen.
type opaque struct{}

func (opaque) Control(func(uintptr)) error    { return nil }
func (opaque) Read(func(uintptr) bool) error  { return nil }
func (opaque) Write(func(uintptr) bool) error { return nil }
