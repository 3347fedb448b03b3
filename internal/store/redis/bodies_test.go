package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
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

func bodyOf(n, size int) idempotency.Settlement {
	settlement := kept(small)
	settlement.Response.Body = fmt.Appendf(make([]byte, 0, size), "%08d", n)[:size]
	return settlement
}

// slowConn needs so much time for each KiB, of all connections together. Of turn, one moves at a time: with a mutex, the
// clock of synctest would stop, and so it takes at once what a server sends.
type slowConn struct {
	net.Conn // what the server has sent
	server   net.Conn
	per      time.Duration
	turn     chan struct{}
	writeBy  atomic.Int64
}

func slowly(server net.Conn, per time.Duration, turn chan struct{}) *slowConn {
	received, sends := net.Pipe()
	c := &slowConn{Conn: received, server: server, per: per, turn: turn}
	sent := make(chan []byte, 4096)
	go func() {
		defer close(sent)
		for b := make([]byte, 8<<10); ; {
			n, err := server.Read(b)
			if err != nil {
				return
			}
			sent <- bytes.Clone(b[:n])
		}
	}()
	go func() {
		for b := range sent {
			c.pass(len(b))
			_, _ = sends.Write(b)
		}
		_ = sends.Close()
	}()
	return c
}

func (c *slowConn) pass(n int) {
	c.turn <- struct{}{}
	time.Sleep(time.Duration(n) * c.per / 1024)
	<-c.turn
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.pass(len(b))
	if by := c.writeBy.Load(); by > 0 && time.Now().UnixNano() > by {
		return 0, os.ErrDeadlineExceeded
	}
	return c.server.Write(b)
}

func (c *slowConn) SetWriteDeadline(t time.Time) error {
	c.writeBy.Store(max(0, t.UnixNano()))
	return nil
}

func (c *slowConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *slowConn) Close() error { return errors.Join(c.Conn.Close(), c.server.Close()) }

// Each body needs longer than an operation may take, and together they need far longer than a connection
// may be idle.
func TestLargeResponsesOverASlowLink(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		const bodies, size, timeout = 8, 1 << 20, 300 * time.Millisecond
		turn := make(chan struct{}, 1)
		s := openWith(t, Options{Addresses: []string{"pipe:1"}, Timeout: timeout, dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dialMini(server.Miniredis)(ctx, network, address)
			return slowly(conn, 400*time.Microsecond, turn), err // 2.5 MB/s
		}})
		records := claimMany(t, s, "", bodies)
		each := func(do func(ctx context.Context, n int, key idempotency.Key) error) {
			var all sync.WaitGroup
			for n := range bodies {
				all.Go(func() {
					ctx, cancel := idempotency.WithProgress(ctx, timeout)
					defer cancel()
					wantErr(t, do(ctx, n, keyOf(fmt.Sprint(n))), nil, n)
				})
			}
			all.Wait()
		}
		each(func(ctx context.Context, n int, key idempotency.Key) error {
			return s.Settle(ctx, key, records[fmt.Sprint(n)], bodyOf(n, size))
		})
		each(func(ctx context.Context, n int, key idempotency.Key) error {
			response, err := s.Response(ctx, key, "token")
			if err == nil && (response == nil || !bytes.Equal(response.Body, bodyOf(n, size).Response.Body)) {
				err = errors.New("another body")
			}
			return err
		})
	})
}

// failing makes the flushes of bodies fail.
func failing(s *Store, fail func() error) {
	bodyClient(s).AddHook(hook(func(ctx context.Context, commands []goredis.Cmder, next goredis.ProcessPipelineHook) error {
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
	protocol := answerError("ERR Protocol error: invalid bulk length")
	for name, test := range map[string]struct {
		errs    []error
		answers bool // other commands, in between
		want    string
	}{
		"four do not get through":         {[]error{timeout, timeout, timeout, timeout}, true, "4 times a body"},
		"two close the connection":        {[]error{closed, closed}, true, "raise its limit for one value"},
		"two protocol errors":             {[]error{protocol, protocol}, true, "raise its limit for one value"},
		"closed in turn with one that is": {[]error{closed, timeout, closed}, true, ""},
		"of which nothing is sent":        {slices.Repeat([]error{&bodyError{err: context.DeadlineExceeded}}, 20), true, ""},
		"of which only TIME is sent":      {slices.Repeat([]error{&dialError{timeout}}, 20), true, ""},
		"that is given up unsent":         {slices.Repeat([]error{errAbandoned}, 20), true, ""},
		"a server that hangs":             {slices.Repeat([]error{timeout}, 20), false, ""},
		"a server that restarts":          {slices.Repeat([]error{closed}, 20), false, ""},
		"a server that is full":           {slices.Repeat([]error{answerError("OOM command not allowed when used memory > 'maxmemory'.")}, 20), true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, server fake) {
				s, _ := server.open(t, Options{})
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
		})
	}
}

// Redis closes the connection of a client that announces a larger value than it takes.
func TestServerWithALimitForOneValue(t *testing.T) {
	server := redistest.Start(t, "--proto-max-bulk-len", "1mb")
	s := openAt(t, server.Addr)
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

// While a slot is moved, the script is repeated, and not the body, also by later settlements, which may be
// encrypted differently.
func TestBodyIsWrittenOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		s, _ := server.open(t, Options{})
		c := claimOf("a", "token")
		record := mustClaim(t, s, c, idempotency.Proceed).Record
		moves, sets := true, 0
		server.on(func(command string, _ ...string) (string, bool, bool) {
			if command == "set" {
				sets++
			}
			return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n", moves && strings.HasPrefix(command, "eval"), false
		})
		for n := range 3 {
			if err := s.Settle(withTime(t, 50*time.Millisecond), c.Key, record, sealed('a'+byte(n))); !hasCode(err, "TRYAGAIN") {
				t.Fatalf("settle: %v", err)
			}
		}
		moves = false
		mustSettle(t, s, c, record, sealed('z'))
		storetest.Equal(t, sets, 2, "values were set, the body, and the record by the script")
		response, err := s.Response(ctx, c.Key, c.Token)
		if err != nil || response.Body[0] != 'a' {
			t.Errorf("replayed %v, %v; want the body that was written", response, err)
		}
		storetest.Equal(t, len(server.Keys()), 2, "keys are left")
	})
}

// sealed returns a settlement with a large body that is encrypted with this nonce.
func sealed(nonce byte) idempotency.Settlement {
	settlement := kept(large)
	settlement.Response.SealedBy, settlement.Response.Body[0] = "key", nonce
	return settlement
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
				s := must1(Open(c.options))
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

// The kernel holds little of a body, and the connections of small commands move none.
func TestBodyConnectionsHaveSmallBuffers(t *testing.T) {
	inBubble(t, func(t *testing.T, server fake) {
		s, l := server.open(t, Options{})
		c := claimOf("a", "token")
		ends(bodyOf(1, 1<<20))(t, s, c)
		mustClaim(t, s, c, idempotency.ReplayKept)
		answer := released()
		answer.Response.Body = make([]byte, 1<<20)
		ends(answer)(t, s, claimOf("released", "token"))
		bodies := 0
		for _, conn := range l.conns {
			switch buffer, largest := conn.buffer.Load(), conn.largest.Load(); {
			case buffer == 128<<10 && largest == 32<<10:
				bodies++
			case buffer != 0, largest > 16<<10:
				t.Errorf("a connection with a send buffer of %d bytes wrote %d at once", buffer, largest)
			}
		}
		if bodies == 0 {
			t.Error("no connection for bodies wrote one")
		}
	})
}

// Behind sentinels, bodies go to the master of the small commands, also while a sentinel still names
// another one.
func TestBodiesFollowTheSmallCommands(t *testing.T) {
	t.Parallel()
	named, actual := redistest.Start(t), redistest.Start(t)
	sentinels := redistest.StartSentinels(t, named, 0, 1)
	s := openWith(t, Options{Addresses: []string{sentinels[0].Addr}, Sentinel: redistest.MasterName, Timeout: busyTimeout})
	mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
	must(t, s.setBody(ctx, redirect{}, "before", make([]byte, large)))
	eventually(t, "no connection of small commands is being made any more, which follows the sentinel", func() bool {
		s.dialer.master.Store(&actual.Addr)
		s.dialer.closeOpen(func(c *conn) bool { return c.body != nil })
		err := s.setBody(ctx, redirect{}, "after", make([]byte, large))
		if err != nil && !strings.Contains(err.Error(), "another master meanwhile") {
			t.Fatal(err)
		}
		return err == nil
	})
	for server, want := range map[*redistest.Server][]any{named: {"before"}, actual: {"after"}} {
		if got := command(t, server, "KEYS", "[ab]*e*"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("the server has %v, want %v", got, want)
		}
	}
}
