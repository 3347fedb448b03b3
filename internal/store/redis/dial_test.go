package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// TestDistantRedis has dials that take longer than an operation may: the name server or the network is
// slow, with TLS or behind a proxy. Callers time out with an error that says what they waited for, and
// the connection serves later callers.
func TestDistantRedis(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	overTLS, inTheClear := redistest.StartTLS(t, certificates), redistest.Start(t)
	cluster := redistest.StartCluster(t, 1, 0)
	sentinels := redistest.StartSentinels(t, inTheClear, 0, 1)
	username, password := allowed(overTLS)
	const delay = 9 * DefaultTimeout / 5 // per connection: at least one caller gives up meanwhile
	for name, test := range map[string]struct {
		backend string
		options Options
		slowDNS bool
		waits   string
	}{
		"a slow name server":   {inTheClear.Addr, Options{}, true, "its name is not resolved"},
		"a slow first command": {inTheClear.Addr, Options{}, false, "does not answer the first command"},
		"a slow handshake": {
			overTLS.Addr, Options{TLS: always(knownTo(t, certificates)), Username: username, Password: password},
			false, "the TLS handshake is not answered",
		},
		"a cluster":   {cluster.Masters[0].Addr, Options{Cluster: true}, false, "does not answer the first command"},
		"by sentinel": {sentinels[0].Addr, Options{Sentinel: redistest.MasterName}, false, "does not answer the first command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, listen(t), test.backend)
			o := test.options
			o.Addresses = []string{p.addr}
			if test.slowDNS {
				_, port, _ := net.SplitHostPort(p.addr)
				o.Addresses = []string{net.JoinHostPort("redis.test", port)}
			}
			s := closeAtEnd(t, openWith(t, o))
			if test.slowDNS {
				s.dialer.resolver = resolver(t, delay, "127.0.0.1")
			} else {
				p.slowStart.Store(int64(2 * delay))
			}
			reported := false
			eventually(t, "a claim of a later caller", func() bool {
				_, err := s.Claim(ctx, claimOf("a", "token"))
				reported = reported || err != nil && strings.Contains(err.Error(), test.waits)
				return err == nil
			})
			if !reported {
				t.Errorf("no error says %q", test.waits)
			}
		})
	}
}

// TestSlowLink has a round trip of 240 ms and the default timeout. A dial and the first commands take longer
// than the first caller waits. The dial goes on, and its connection serves the next one. A caller that
// times out in between closes no connection. The error of a caller that times out names the timeout to set.
func TestSlowLink(t *testing.T) {
	for name, use := range map[string]func(s *Store) error{
		"claim and settle": func(s *Store) error {
			c := claimOf("a", "token")
			claimed, err := s.Claim(ctx, c)
			if err == nil {
				err = s.Settle(ctx, c.Key, claimed.Record, kept(small))
			}
			return err
		},
		"renew": func(s *Store) error {
			if err := s.Renew(ctx, claimOf("a", "token")); !errors.Is(err, idempotency.ErrGone) {
				return err
			}
			return nil
		},
		"look up": func(s *Store) error { return s.Ready(ctx) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server := miniredis.NewMiniRedis()
				server.ClockTTL(true)
				defer server.Close()
				t.Cleanup(func() { time.Sleep(time.Second) }) // for what is under way when the store is closed
				const oneWay = 120 * time.Millisecond
				var dials atomic.Int64
				s := closeAtEnd(t, openWith(t, Options{Addresses: []string{"pipe:1"}, dial: func(context.Context, string, string) (net.Conn, error) {
					dials.Add(1)
					time.Sleep(2 * oneWay) // SYN and its reply
					conn, err := server.Dial()
					return delayed(conn, oneWay), err
				}}))
				// The dial, its first reply and the time take three round trips. Two callers give up
				// meanwhile, the second one perhaps.
				err := use(s)
				for n := 1; err != nil; n++ {
					if want := "timeout to 1.2s"; n > 1 && !strings.Contains(err.Error(), want) {
						t.Errorf("caller %d: %v; want %q", n, err, want)
					}
					if n == 3 {
						t.Fatalf("caller %d: %v", n, err)
					}
					err = use(s)
				}
				wantErr(t, use(s), nil)
				if n := dials.Load(); n > maxFlushes {
					t.Errorf("%d dials; one for each flush is enough", n)
				}
			})
		})
	}
}

// delayed returns the client's end of a connection over which data takes some time in each direction.
func delayed(server net.Conn, oneWay time.Duration) net.Conn {
	type packet struct {
		arrives time.Time
		data    []byte
	}
	client, far := net.Pipe()
	carry := func(to, from net.Conn) {
		packets := make(chan packet, 1<<10)
		go func() {
			defer close(packets)
			for {
				buffer := make([]byte, 64<<10)
				n, err := from.Read(buffer)
				packets <- packet{time.Now().Add(oneWay), buffer[:n]}
				if err != nil {
					return
				}
			}
		}()
		go func() {
			for p := range packets {
				time.Sleep(time.Until(p.arrives))
				_, _ = to.Write(p.data) // fails if the other end is closed
			}
			_ = to.Close()
		}()
	}
	carry(server, far)
	carry(far, server)
	return client
}

// If only the last address of a name answers, a dial reaches it within one operation.
func TestNameWithSilentAddresses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	_, port, _ := net.SplitHostPort(server.Addr)
	for _, silent := range [][]string{{"::1"}, {"127.0.0.2"}, {"::1", "127.0.0.2"}} {
		t.Run(strings.Join(silent, " "), func(t *testing.T) {
			t.Parallel()
			s := closeAtEnd(t, openWith(t, Options{Addresses: []string{net.JoinHostPort("redis.test", port)}, Timeout: busyTimeout}))
			s.dialer.resolver = resolver(t, 0, append(slices.Clone(silent), "127.0.0.1")...)
			s.dialer.control = func(ctx context.Context, _, address string, _ syscall.RawConn) error {
				if host, _, _ := net.SplitHostPort(address); slices.Contains(silent, host) {
					<-ctx.Done()
					return ctx.Err()
				}
				return nil
			}
			mustClaim(t, s, claimOf(t.Name(), "token"), idempotency.Proceed)
		})
	}
}

// Dials that hang are never more than flushes, and Close ends them.
func TestDialEndsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var dials, under atomic.Int64
		o := Options{Addresses: []string{"pipe:1"}}
		o.dial = func(ctx context.Context, _, _ string) (net.Conn, error) {
			dials.Add(1)
			under.Add(1)
			defer under.Add(-1)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		s := openWith(t, o)
		start := time.Now()
		for time.Since(start) < dialTimeout-DefaultTimeout {
			if _, err := s.Claim(ctx, claimOf("a", "token")); err == nil {
				t.Fatal("a claim without a connection")
			}
		}
		storetest.Equal(t, dials.Load(), maxFlushes, "dials within the time of one")
		wantErr(t, s.Close(), nil)
		synctest.Wait()
		if n := under.Load(); n != 0 || time.Since(start) >= dialTimeout {
			t.Errorf("%d dials go on after the store was closed", n)
		}
	})
}

// resolver returns a slow resolver, which resolves each name to the same addresses.
func resolver(t *testing.T, delay time.Duration, addresses ...string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = server.Close() })
	go func() {
		query := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			time.Sleep(delay)
			_, _ = server.WriteTo(answerDNS(query[:n], addresses), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("udp", server.LocalAddr().String())
	}}
}

// answerDNS answers the question of a query (RFC 1035), for A and AAAA.
func answerDNS(query []byte, addresses []string) []byte {
	const header, a, aaaa = 12, 1, 28
	end := header
	for query[end] != 0 { // the labels of the name
		end += 1 + int(query[end])
	}
	kind := binary.BigEndian.Uint16(query[end+1:])
	var found []net.IP
	for _, address := range addresses {
		ip := net.ParseIP(address)
		if four := ip.To4(); four != nil && kind == a {
			found = append(found, four)
		} else if four == nil && kind == aaaa {
			found = append(found, ip)
		}
	}
	answer := append([]byte{}, query[:2]...)                                   // the ID
	answer = append(answer, 0x81, 0x80, 0, 1, 0, byte(len(found)), 0, 0, 0, 0) // one question
	answer = append(answer, query[header:end+5]...)
	for _, ip := range found {
		answer = append(answer, 0xc0, header) // the name is that of the question
		answer = binary.BigEndian.AppendUint16(answer, kind)
		answer = append(answer, 0, 1, 0, 0, 0, 60, 0, byte(len(ip))) // class, TTL, length
		answer = append(answer, ip...)
	}
	return answer
}
