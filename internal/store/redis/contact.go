package redis

import (
	"context"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
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

	mu      sync.Mutex
	servers map[string]*server // by the addresses that were dialed
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

// DialHook implements [goredis.Hook].
func (c *contact) DialHook(next goredis.DialHook) goredis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		if err != nil {
			return nil, &dialError{err}
		}
		c.connected(conn.RemoteAddr().String())
		return conn, nil
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

// deadline is the time after which a server refuses a command, an argument of
// claim.lua and free.lua. The contact sets it by the clock of the server to which the
// command is sent.
type deadline struct {
	// at is the deadline by the clock of this process; server is the same by the
	// server's clock, in ms.
	at     time.Time
	server int64
	// doubt says that a server may have executed the command, or may still do so,
	// in any of the attempts.
	doubt bool
}

// MarshalBinary implements [encoding.BinaryMarshaler], for go-redis.
func (d *deadline) MarshalBinary() ([]byte, error) {
	return strconv.AppendInt(nil, d.server, 10), nil
}

// deadlineOf returns the deadline of a command, nil if it has none.
func deadlineOf(command goredis.Cmder) *deadline {
	if !runsScript(command) {
		return nil
	}
	for _, arg := range command.Args() {
		if d, ok := arg.(*deadline); ok {
			return d
		}
	}
	return nil
}

func runsScript(command goredis.Cmder) bool {
	name := command.Name()
	return name == "evalsha" || name == "eval"
}

// ProcessHook implements [goredis.Hook].
func (c *contact) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, command goredis.Cmder) error {
		if err := c.before(ctx, command); err != nil {
			command.SetErr(err)
			return err
		}
		err := next(ctx, command)
		c.after(ctx, command, err)
		return err
	}
}

// ProcessPipelineHook implements [goredis.Hook].
func (c *contact) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return func(ctx context.Context, commands []goredis.Cmder) error {
		for _, command := range commands {
			if err := c.before(ctx, command); err != nil {
				for _, command := range commands {
					command.SetErr(err)
				}
				return err
			}
		}
		err := next(ctx, commands)
		for _, command := range commands {
			c.after(ctx, command, command.Err())
		}
		return err
	}
}

// before sets the deadline of a command that has one.
func (c *contact) before(ctx context.Context, command goredis.Cmder) error {
	if !runsScript(command) {
		return nil
	}
	d := deadlineOf(command)
	if s := c.current.Load(); s == nil || !s.greeted.Load() || d != nil && s.replica.Load() {
		if err := c.greet(ctx); err != nil {
			return err
		}
	}
	if d == nil {
		return nil
	}
	s := c.current.Load()
	if s.replica.Load() {
		return errReplica
	}
	d.server = s.clock.at(d.at)
	return nil
}

// after takes from an attempt what it tells: whether the command is in doubt, the
// server's time, and which server executed it.
func (c *contact) after(ctx context.Context, command goredis.Cmder, err error) {
	if d := deadlineOf(command); d != nil && mayBeExecuted(err) {
		d.doubt = true
	}
	script, ok := command.(*goredis.Cmd)
	if !ok || err != nil || !runsScript(command) {
		return
	}
	if _, now, ok := scriptReply(script.Val()); ok {
		c.current.Load().clock.learn(now)
		if e, ok := ctx.Value(executorKey{}).(*executor); ok {
			*e = executor{client: c.client, address: c.current.Load().address}
		}
	}
}

// executor is a server that has executed a script, and the client that is connected to
// it. After a failover the same client has another server.
type executor struct {
	client  *goredis.Client
	address string
}

type executorKey struct{}

// withExecutor returns a context for one operation that wants to know what has executed
// its script.
func withExecutor(ctx context.Context) (context.Context, *executor) {
	e := new(executor)
	return context.WithValue(ctx, executorKey{}, e), e
}
