package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// slowLink lets bytes through at a rate, those of all connections together.
type slowLink struct {
	mu  sync.Mutex
	per time.Duration // for each KiB
}

func (l *slowLink) pass(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	time.Sleep(time.Duration(n) * l.per / 1024)
}

func (l *slowLink) dial(ctx context.Context, network, address string) (net.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, network, address)
	return &linkedConn{Conn: raw, link: l}, err
}

type linkedConn struct {
	net.Conn
	link     *slowLink
	mu       sync.Mutex
	deadline time.Time
}

func (c *linkedConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *linkedConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	return c.Conn.SetWriteDeadline(t)
}

func (c *linkedConn) Write(b []byte) (n int, err error) {
	for err == nil && n < len(b) {
		piece := b[n:min(len(b), n+8<<10)]
		c.link.pass(len(piece))
		c.mu.Lock()
		late := !c.deadline.IsZero() && time.Now().After(c.deadline)
		c.mu.Unlock()
		if late {
			return n, &net.OpError{Op: "write", Net: "tcp", Err: context.DeadlineExceeded}
		}
		var m int
		m, err = c.Conn.Write(piece)
		n += m
	}
	return n, err
}

func (c *linkedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b[:min(len(b), 8<<10)])
	c.link.pass(n)
	return n, err
}

func bodyOf(n, size int) idempotency.Settlement {
	settlement := kept(small)
	settlement.Response.Body = fmt.Appendf(make([]byte, 0, size), "%08d", n)[:size]
	return settlement
}

// Each body needs longer than an operation may take, and together they need far longer than a connection
// may be idle.
func TestLargeResponsesOverASlowLink(t *testing.T) {
	const bodies, size = 8, 1 << 20
	server := redistest.Start(t)
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{server.Addr}, Timeout: 300 * time.Millisecond,
		dial: (&slowLink{per: 400 * time.Microsecond}).dial, // 2.5 MB/s
	}))
	each := func(what string, f func(n int, c idempotency.Claim) error) {
		t.Helper()
		var all sync.WaitGroup
		for n := range bodies {
			all.Go(func() {
				if err := f(n, claimOf(fmt.Sprint(n), fmt.Sprint("token ", n))); err != nil {
					t.Errorf("%s %d: %v", what, n, err)
				}
			})
		}
		all.Wait()
	}
	records := make([]*idempotency.Record, bodies)
	for n := range records {
		records[n] = mustClaim(t, s, claimOf(fmt.Sprint(n), fmt.Sprint("token ", n)), idempotency.Proceed).Record
	}
	step := func() (context.Context, context.CancelFunc) {
		return idempotency.WithProgress(context.Background(), 300*time.Millisecond)
	}
	each("settle", func(n int, c idempotency.Claim) error {
		ctx, cancel := step()
		defer cancel()
		return s.Settle(ctx, c.Key, records[n], bodyOf(n, size))
	})
	each("read", func(n int, c idempotency.Claim) error {
		ctx, cancel := step()
		defer cancel()
		response, err := s.Response(ctx, c.Key, c.Token)
		if err == nil && !bytes.Equal(response.Body, bodyOf(n, size).Response.Body) {
			err = errors.New("another body")
		}
		return err
	})
}

// failing makes the flushes of bodies fail.
func failing(s *Store, fail func() error) {
	bodyClient(s).AddHook(pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
		err := fail()
		if err == nil || commands[0].Name() != "set" {
			return next(ctx, commands)
		}
		for _, c := range commands {
			c.SetErr(err)
		}
		return err
	}))
}

func TestBodyThatTheServerNeverTakes(t *testing.T) {
	var timeout error = &bodyError{sent: true, err: &net.OpError{Op: "write", Err: context.DeadlineExceeded}}
	var closed error = &bodyError{sent: true, err: io.EOF, dialed: time.Now().Add(time.Hour)} // for the body
	for name, test := range map[string]struct {
		errs    []error
		answers bool // other commands, in between
		want    string
	}{
		"four do not get through":         {[]error{timeout, timeout, timeout, timeout}, true, "4 times a body"},
		"two close the connection":        {[]error{closed, closed}, true, "raise its limit for one value"},
		"two protocol errors":             {[]error{protocolError{}, protocolError{}}, true, "raise its limit for one value"},
		"closed in turn with one that is": {[]error{closed, timeout, closed}, true, ""},
		"a server that hangs":             {slices.Repeat([]error{timeout}, 20), false, ""},
		"a server that restarts":          {slices.Repeat([]error{closed}, 20), false, ""},
		"a server that is full":           {slices.Repeat([]error{outOfMemory{}}, 20), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := start(t)
			c := claimOf("a", "token")
			record := mustClaim(t, s, c, idempotency.Proceed).Record
			var fails error
			failing(s, func() error {
				if test.answers && fails != nil {
					must(t, s.Renew(ctx, c))
				}
				return fails
			})
			for n, err := range test.errs {
				fails = err
				got := s.Settle(ctx, c.Key, record, bodyOf(1, 1<<20))
				last := n == len(test.errs)-1 && test.want != ""
				if errors.Is(got, idempotency.ErrTooLarge) != last || last && !strings.Contains(got.Error(), test.want) {
					t.Fatalf("attempt %d: %v", n+1, got)
				}
			}
			fails = nil
			mustSettle(t, s, c, record, bodyOf(1, 1<<20))
			mustClaim(t, s, withToken(c, "again"), idempotency.ReplayKept)
		})
	}
}

type protocolError struct{}

func (protocolError) Error() string { return "ERR Protocol error: invalid bulk length" }
func (protocolError) RedisError()   {}

type outOfMemory struct{}

func (outOfMemory) Error() string {
	return "OOM command not allowed when used memory > 'maxmemory'."
}
func (outOfMemory) RedisError() {}

// Redis closes the connection of a client that announces a larger value than it takes.
func TestServerWithALimitForOneValue(t *testing.T) {
	server := redistest.Start(t, "--proto-max-bulk-len", "1mb")
	s := closeAtEnd(t, openAt(t, server.Addr))
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	var err error
	for range 1 + maxBodyCloses { // the first does not count: the server has answered nothing else meanwhile
		if errors.Is(err, idempotency.ErrTooLarge) {
			t.Fatalf("too early: %v", err)
		}
		err = s.Settle(ctx, c.Key, record, bodyOf(1, 8<<20))
		must(t, s.Renew(ctx, c))
	}
	if !errors.Is(err, idempotency.ErrTooLarge) {
		t.Errorf("settle: %v, want that it is too large", err)
	}
	mustSettle(t, s, c, record, bodyOf(1, 512<<10))
}

type tryAgain struct{}

func (tryAgain) Error() string {
	return "TRYAGAIN Multiple keys request during rehashing of slot"
}
func (tryAgain) RedisError() {}

// While a slot is moved, the script is repeated, and not the body, also by later settlements, which may be
// encrypted differently.
func TestBodyIsWrittenOnce(t *testing.T) {
	server, s := start(t)
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	moving := true
	unlessMoving := pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
		for i, command := range commands {
			if moving && strings.HasPrefix(command.Name(), "eval") {
				command.SetErr(tryAgain{})
				if i == 0 {
					return tryAgain{}
				}
				return next(ctx, commands[:i])
			}
		}
		return next(ctx, commands)
	})
	s.client.(*goredis.Client).AddHook(unlessMoving)
	bodyClient(s).AddHook(unlessMoving)
	sealed := func(nonce byte) idempotency.Settlement {
		settlement := bodyOf(1, 1<<20)
		settlement.Response.SealedBy, settlement.Response.Body[0] = "key", nonce
		return settlement
	}
	before := calls(t, server)["set"]
	for n := range 3 {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		if err := s.Settle(short, c.Key, record, sealed('a'+byte(n))); !hasCode(err, "TRYAGAIN") {
			t.Fatalf("settle: %v", err)
		}
		cancel()
	}
	moving = false
	mustSettle(t, s, c, record, sealed('z'))
	if n := calls(t, server)["set"] - before; n != 2 { // the body, and the record by the script
		t.Errorf("%d values were set, want the body once and the record", n)
	}
	response, err := s.Response(ctx, c.Key, c.Token)
	if err != nil || response.Body[0] != 'a' {
		t.Errorf("replayed %v, %v; want the body that was written", response, err)
	}
	if n := command(t, server, "DBSIZE"); n != int64(2) {
		t.Errorf("%v keys are left: %v", n, command(t, server, "KEYS", "*"))
	}
}

// A server gets two large bodies at a time and gives four, and as many as are together not larger than
// those. Each server of a cluster does.
func TestBodiesTakeTurns(t *testing.T) {
	for name, c := range map[string]struct {
		options Options
		reads   bool
		size    int
		want    int // that move at a time
	}{
		"writes":         {Options{Addresses: []string{"a:1"}}, false, 8 << 20, 2},
		"small writes":   {Options{Addresses: []string{"a:1"}}, false, 16 << 10, 16},
		"reads":          {Options{Addresses: []string{"a:1"}}, true, 8 << 20, 4},
		"in two masters": {Options{Addresses: []string{"a:1", "b:1"}, Cluster: true}, false, 8 << 20, 4},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := openWith(t, c.options)
				moving, done := 0, make(chan struct{})
				var mu sync.Mutex
				for range 20 {
					for _, address := range c.options.Addresses {
						n := s.bodies.node(address)
						turns := n.writes
						if c.reads {
							turns = n.reads
						}
						go func() {
							_, _ = moveBody(t.Context(), s, n, turns, c.size, func() (any, error) {
								mu.Lock()
								moving++
								mu.Unlock()
								<-done
								return nil, nil
							})
						}()
					}
				}
				synctest.Wait()
				storetest.Equal(t, moving, c.want, "moving at a time")
				close(done)
				synctest.Wait()
				storetest.Equal(t, moving, 20*len(c.options.Addresses), "moved")
				must(t, s.Close())
			})
		})
	}
}

// bufferedConn notes the size of its send buffer, and of the largest write.
type bufferedConn struct {
	net.Conn
	buffer, largest atomic.Int64
}

func (c *bufferedConn) SetWriteBuffer(bytes int) error {
	c.buffer.Store(int64(bytes))
	return nil
}

func (c *bufferedConn) Write(b []byte) (int, error) {
	c.largest.Store(max(c.largest.Load(), int64(len(b))))
	return c.Conn.Write(b)
}

// The kernel holds little of a body, and the connections of small commands move none.
func TestBodyConnectionsHaveSmallBuffers(t *testing.T) {
	server := redistest.Start(t)
	var mu sync.Mutex
	var conns []*bufferedConn
	s := closeAtEnd(t, openWith(t, Options{
		Addresses: []string{server.Addr}, Timeout: busyTimeout,
		dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			raw, err := new(net.Dialer).DialContext(ctx, network, address)
			c := &bufferedConn{Conn: raw}
			mu.Lock()
			defer mu.Unlock()
			conns = append(conns, c)
			return c, err
		},
	}))
	c := claimOf("a", "token")
	record := mustClaim(t, s, c, idempotency.Proceed).Record
	mustSettle(t, s, c, record, bodyOf(1, 1<<20))
	mustClaim(t, s, c, idempotency.ReplayKept)
	mu.Lock()
	defer mu.Unlock()
	bodies := 0
	for _, conn := range conns {
		switch buffer := conn.buffer.Load(); {
		case buffer == 0 && conn.largest.Load() > 16<<10:
			t.Errorf("a connection for small commands wrote %d bytes at once", conn.largest.Load())
		case buffer == 128<<10 && conn.largest.Load() == 32<<10:
			bodies++
		case buffer != 0:
			t.Errorf("a connection for bodies has a send buffer of %d bytes and wrote %d at once", buffer, conn.largest.Load())
		}
	}
	if bodies == 0 {
		t.Error("no connection for bodies wrote one")
	}
}

// Behind sentinels, bodies go to the master of the small commands, also while a sentinel still names
// another one.
func TestBodiesFollowTheSmallCommands(t *testing.T) {
	t.Parallel()
	named, actual := redistest.Start(t), redistest.Start(t)
	sentinels := redistest.StartSentinels(t, named, 0, 1)
	s := closeAtEnd(t, openWith(t, Options{Addresses: []string{sentinels[0].Addr}, Sentinel: redistest.MasterName, Timeout: busyTimeout}))
	mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
	must(t, s.setBody(ctx, redirect{}, "before", make([]byte, large)))
	s.dialer.master.Store(&actual.Addr)
	s.dialer.closeBodies(actual.Addr)
	must(t, s.setBody(ctx, redirect{}, "after", make([]byte, large)))
	for server, want := range map[*redistest.Server][]any{named: {"before"}, actual: {"after"}} {
		if got := command(t, server, "KEYS", "[ab]*e*"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the server has %v, want %v", got, want)
		}
	}
}
