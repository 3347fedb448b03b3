package redis

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
)

// contact watches a client that is connected to one server at a time: to the only
// one, to the present master, or to one node of a cluster. It is a hook of that
// client, and so it sees every attempt, also those that go-redis makes by itself when
// a cluster redirects a command or does not answer it.
type contact struct {
	client *goredis.Client
	log    *zap.Logger
	// current is the server that was dialed last, nil before the first one.
	current atomic.Pointer[server]
	// fixed says that the address is that of one server for good: of a node of a cluster,
	// which may well be a replica. The cluster tells who is a master.
	fixed bool
	// refused makes a connection where none could be made, if there is another way, or
	// returns why there is none. It is nil without sentinels.
	refused func(ctx context.Context, network, address string, reason error) (net.Conn, error)
	// epoch is how often all connections were given up.
	epoch atomic.Int64

	mu       sync.Mutex
	servers  map[string]*server // by the addresses that were dialed
	redialed time.Time          // when connections to a replica were last given up
}

// server is what is known of a Redis server.
type server struct {
	address string
	clock   serverClock
	greeted atomic.Bool
	// replica says that the server was one when it was last asked.
	replica atomic.Bool
}

// newContact begins to watch a client, which must not have been used before.
func newContact(client *goredis.Client, log *zap.Logger) *contact {
	c := &contact{client: client, log: log, servers: make(map[string]*server)}
	client.AddHook(c)
	return c
}

// dialError says that there was no connection: no command was sent.
type dialError struct{ err error }

func (e *dialError) Error() string { return e.err.Error() }
func (e *dialError) Unwrap() error { return e.err }

// failedConn stands for a connection that could not be made: the first use of it fails
// with the reason. go-redis counts dials that fail, and when a pool has had as many as
// it may have connections, it tries only one a second: a store that is away for a blink
// would be away for a second more, which can be all that a lease has left.
type failedConn struct{ err *dialError }

func (c failedConn) Read([]byte) (int, error)         { return 0, c.err }
func (c failedConn) Write([]byte) (int, error)        { return 0, c.err }
func (c failedConn) Close() error                     { return nil }
func (c failedConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c failedConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c failedConn) SetDeadline(time.Time) error      { return nil }
func (c failedConn) SetReadDeadline(time.Time) error  { return nil }
func (c failedConn) SetWriteDeadline(time.Time) error { return nil }

// SyscallConn implements [syscall.Conn]. go-redis asks for it before it uses a connection
// that waits in a pool, and drops one that has none: whoever dialed it may have given up.
func (c failedConn) SyscallConn() (syscall.RawConn, error) { return nil, c.err }

// DialHook implements [goredis.Hook].
func (c *contact) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		epoch := c.epoch.Load()
		conn, err := next(ctx, network, address)
		if err != nil && c.refused != nil {
			conn, err = c.refused(ctx, network, address, err)
		}
		if err != nil {
			// Twice: go-redis takes one off, where it meets the error before the first command.
			return failedConn{&dialError{&dialError{err}}}, nil //nolint:nilerr // the connection has it
		}
		c.connected(conn.RemoteAddr().String())
		return c.pooled(conn, epoch), nil
	}
}

func (c *contact) connected(address string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.current.Load()
	if before != nil && before.address == address {
		return
	}
	s := c.servers[address]
	if s == nil {
		s = &server{address: address, clock: serverClock{started: time.Now()}}
		c.servers[address] = s
		if before != nil {
			c.log.Info("connected to another redis than before: a failover, or a name with several addresses",
				zap.String("address", address), zap.String("before", before.address))
		}
	}
	c.current.Store(s)
}

// ProcessHook implements [goredis.Hook].
func (c *contact) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		ours, ok := cmd.(*request)
		if !ok {
			return next(ctx, cmd)
		}
		s, err := c.meet(ctx, ours.claims, ours.asks)
		if err == nil && ours.claims && s.replica.Load() {
			err = errReplica
		}
		if err != nil {
			cmd.SetErr(err)
			return err
		}
		ours.aim(s)
		sent := time.Now()
		err = next(ctx, cmd)
		c.after(ours, err)
		c.learnFrom(ours, sent)
		return err
	}
}

// ProcessPipelineHook implements [goredis.Hook].
func (c *contact) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []goredis.Cmder) error {
		ours, claims, asks := false, false, false
		for _, cmd := range cmds {
			if cmd, ok := cmd.(*request); ok {
				ours, claims, asks = true, claims || cmd.claims, asks || cmd.asks
			}
		}
		if !ours {
			return next(ctx, cmds)
		}
		s, err := c.meet(ctx, claims, asks)
		if err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		if claims && s.replica.Load() {
			if cmds = withoutClaims(cmds); len(cmds) == 0 {
				return errReplica
			}
		}
		for _, cmd := range cmds {
			if cmd, ok := cmd.(*request); ok {
				cmd.aim(s)
			}
		}
		sent := time.Now()
		err = next(ctx, cmds)
		c.afterAll(cmds, err, sent)
		return err
	}
}

// withoutClaims returns the commands that a replica may execute. The others fail.
func withoutClaims(cmds []goredis.Cmder) []goredis.Cmder {
	var others []goredis.Cmder
	for _, cmd := range cmds {
		if ours, ok := cmd.(*request); ok && ours.claims {
			cmd.SetErr(errReplica)
		} else {
			others = append(others, cmd)
		}
	}
	return others
}

// meet returns the server that commands are about to go to. It greets one that it does
// not know, and before a claim also one that was a replica. A master it greets again only
// for who asks: one that is made a replica closes no connection, and tells so by refusing
// claims alone. In a cluster such a one refuses who asks as well, and names the master: to
// greet it would keep that answer from them, and from all claims of the next moment.
func (c *contact) meet(ctx context.Context, claims, asks bool) (*server, error) {
	s := c.current.Load()
	if s != nil && s.greeted.Load() && (!asks || c.fixed) && !(claims && s.replica.Load()) {
		return s, nil
	}
	if err := c.greet(ctx); err != nil {
		return nil, err
	}
	return c.current.Load(), nil
}

// afterAll takes from a flush that was sent at a local time what it tells, and the error
// with which it ended.
func (c *contact) afterAll(cmds []goredis.Cmder, failed error, sent time.Time) {
	var now int64
	for _, cmd := range cmds {
		switch cmd := cmd.(type) {
		case *goredis.TimeCmd:
			if cmd.Err() == nil && !cmd.Val().IsZero() { // see below
				now = cmd.Val().UnixMilli()
				c.current.Load().clock.learn(now, sent)
			}
		case *request:
			if cmd.Err() == nil && cmd.Val() == nil {
				// None of our commands has such a reply: it was not sent. go-redis tells the
				// commands of a pipeline nothing of a connection that the server refuses.
				if cmd.SetErr(failed); failed == nil {
					cmd.SetErr(io.ErrUnexpectedEOF)
				}
			}
			cmd.now = now
			c.after(cmd, cmd.Err())
			c.learnFrom(cmd, sent)
		}
	}
}

// learnFrom takes the server's time from the reply of a script that tells it. Whoever
// reads that time from the reply, and then writes by the estimate, must not write an
// earlier one.
func (c *contact) learnFrom(cmd *request, sent time.Time) {
	if cmd.Err() != nil {
		return
	}
	if answer, ok := scriptReply(cmd.Val()); ok && answer.now != 0 {
		c.current.Load().clock.learn(answer.now, sent)
	}
}

// after takes from an attempt what it tells: whether the command is in doubt, and which
// server executed it.
func (c *contact) after(cmd *request, err error) {
	if mayBeExecuted(err) {
		cmd.doubt = true
	}
	if err == nil {
		cmd.by = executor{client: c.client, address: c.current.Load().address}
	}
}
