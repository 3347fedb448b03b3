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
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
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
	s.bodies.client.(*goredis.Client).AddHook(pipelines(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
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
	var timeout error = &net.OpError{Op: "write", Err: context.DeadlineExceeded}
	for name, test := range map[string]struct {
		errs    []error
		answers bool // other commands, in between
		want    string
	}{
		"four do not get through":         {[]error{timeout, timeout, timeout, timeout}, true, "4 times a body"},
		"two close the connection":        {[]error{io.EOF, io.EOF}, true, "raise its limit for one value"},
		"two protocol errors":             {[]error{protocolError{}, protocolError{}}, true, "raise its limit for one value"},
		"closed in turn with one that is": {[]error{io.EOF, timeout, io.EOF}, true, ""},
		"a server that hangs":             {slices.Repeat([]error{timeout}, 20), false, ""},
		"a server that restarts":          {slices.Repeat([]error{io.EOF}, 20), false, ""},
		"a server that is full":           {slices.Repeat([]error{outOfMemory{}}, 20), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, s := start(t)
			c := claimOf("a", "token")
			record := mustClaim(t, s, c, idempotency.Proceed).Record
			var fails error
			failing(s, func() error { return fails })
			for n, err := range test.errs {
				fails = err
				got := s.Settle(ctx, c.Key, record, bodyOf(1, 1<<20))
				last := n == len(test.errs)-1 && test.want != ""
				if errors.Is(got, idempotency.ErrTooLarge) != last || last && !strings.Contains(got.Error(), test.want) {
					t.Fatalf("attempt %d: %v", n+1, got)
				}
				if test.answers {
					must(t, s.Renew(ctx, c))
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
	for range maxBodyCloses {
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
	s.bodies.client.(*goredis.Client).AddHook(unlessMoving)
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
