package redis

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestAddressThatLedToAReplica uses an address that leads to a replica at first, and then to the master.
// No connection is closed and no server changes its role, so only another dial finds the master.
func TestAddressThatLedToAReplica(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	t.Cleanup(web.Close)
	listenTLS := func(t testing.TB) net.Listener {
		return tls.NewListener(listen(t), &tls.Config{Certificates: web.TLS.Certificates})
	}
	roots := web.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	for name, test := range map[string]struct {
		listen  func(testing.TB) net.Listener
		tls     func() (*tls.Config, error)
		replica []string
	}{
		"in the clear":                {listen: listen},
		"over TLS":                    {listen: listenTLS, tls: always(&tls.Config{RootCAs: roots})},
		"a replica that takes writes": {listen: listen, replica: []string{"--replica-read-only", "no"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master := redistest.Start(t)
			replica := redistest.StartReplica(t, master, test.replica...)
			p := startProxy(t, test.listen(t), replica.Addr)
			s := closeAtEnd(t, openWith(t, Options{Addresses: []string{p.addr}, TLS: test.tls, Timeout: busyTimeout}))
			for range 3 {
				if _, err := s.Claim(ctx, claimOf("a", "token")); err == nil {
					t.Fatal("a replica took a claim")
				}
			}
			p.leadTo(master.Addr)
			eventually(t, "a claim at the master", func() bool {
				_, err := s.Claim(ctx, claimOf("a", "token"))
				return err == nil
			})
			// From here on, no connection refuses a request.
			records := claimMany(t, s, "many ", 50)
			settleMany(t, s, small, records)
			for name := range records {
				mustClaim(t, s, claimOf(name, "again"), idempotency.ReplayKept)
			}
		})
	}
}

// TestIdleConnectionsThatAreClosed closes all idle connections in the pool on the server's side, as a
// restart of the server does, or a server or gateway that closes idle connections. No command is sent
// over one of them.
func TestIdleConnectionsThatAreClosed(t *testing.T) {
	t.Parallel()
	web := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	t.Cleanup(web.Close)
	roots := web.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	certificates := redistest.NewCertificates(t)
	overTLS, inTheClear := redistest.StartTLS(t, certificates), redistest.Start(t)
	username, password := allowed(overTLS)
	for name, test := range map[string]struct {
		listener net.Listener
		backend  string
		options  Options
	}{
		"in the clear": {listen(t), inTheClear.Addr, Options{}},
		"TLS that says goodbye": {
			tls.NewListener(listen(t), &tls.Config{Certificates: web.TLS.Certificates}), inTheClear.Addr,
			Options{TLS: always(&tls.Config{RootCAs: roots})},
		},
		"TLS that says nothing": {
			listen(t), overTLS.Addr,
			Options{TLS: always(knownTo(t, certificates)), Username: username, Password: password},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := startProxy(t, test.listener, test.backend)
			o := test.options
			o.Addresses, o.Timeout = []string{p.addr}, busyTimeout
			s := closeAtEnd(t, openWith(t, o))
			mustClaim(t, s, claimOf("before", "token"), idempotency.Proceed)
			client := s.client.(*goredis.Client)
			var several []*goredis.Conn
			for range 8 {
				conn := client.Conn()
				must(t, conn.Ping(ctx).Err())
				several = append(several, conn)
			}
			for _, conn := range several {
				_ = conn.Close() // into the pool
			}
			if n := client.PoolStats().IdleConns; n < 8 {
				t.Fatalf("%d connections wait in the pool, so nothing is tested", n)
			}
			p.cut()
			for _, name := range []string{"a", "b", "c"} {
				mustClaim(t, s, claimOf(name, "token"), idempotency.Proceed)
			}
		})
	}
}

// TestDemotedMaster makes a master a replica of another server while it keeps its connections open. The
// next flush notices. If the address leads to the new master by then, no operation fails.
func TestDemotedMaster(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"read-only": nil, "takes writes": {"--replica-read-only", "no"}} {
		for when, tooEarly := range map[string]bool{"before the address changes": true, "after": false} {
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				former := redistest.Start(t, args...)
				next := redistest.StartReplica(t, former)
				p := startProxy(t, listen(t), former.Addr)
				s := closeAtEnd(t, openWith(t, Options{Addresses: []string{p.addr}, Timeout: busyTimeout}))
				c := claimOf("before", "token")
				record := mustClaim(t, s, c, idempotency.Proceed).Record
				eventually(t, "the replica has the claim", func() bool { return next.Do("EXISTS", named.record(c.Key)) == int64(1) })
				warm(t, s)
				next.Do("REPLICAOF", "NO", "ONE")
				former.Do("REPLICAOF", "127.0.0.1", next.Port())

				if tooEarly {
					claimed, err := s.Claim(ctx, claimOf("too early", "token"))
					if !errors.Is(err, errReplica) || claimed.Verdict != 0 {
						t.Errorf("at the former master: %v, %v; want %v", claimed.Verdict, err, errReplica)
					}
					if maybe := args != nil; (claimed.Record != nil) != maybe {
						t.Errorf("the claim is in doubt: %v, want %v", claimed.Record != nil, maybe)
					}
					wantErr(t, s.Renew(ctx, c), errReplica)
				}
				p.leadTo(next.Addr)
				mustSettle(t, s, c, record, kept(large))
				mustClaim(t, s, claimOf("after", "token"), idempotency.Proceed)
				for _, name := range []string{"before", "after"} {
					if next.Do("EXISTS", named.record(keyOf(name))) != int64(1) {
						t.Errorf("%s is not at the new master", name)
					}
				}
			})
		}
	}
}

// If only the server or only the store uses TLS, the error says so.
func TestTLSOnOneSideOnly(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	for name, o := range map[string]Options{
		"the server": {Addresses: []string{redistest.StartTLS(t, certificates).Addr}},
		"the store":  {Addresses: []string{redistest.Start(t).Addr}, TLS: always(knownTo(t, certificates))},
	} {
		s := closeAtEnd(t, openWith(t, o))
		eventually(t, "the error of a claim says that "+name+" has TLS", func() bool {
			_, err := s.Claim(ctx, claimOf("a", "token"))
			return err != nil && strings.Contains(err.Error(), "TLS")
		})
	}
}

// An error before the TLS handshake counts as a failed connection.
func TestHangUpBeforeTheHandshake(t *testing.T) {
	t.Parallel()
	l := new(limits)
	l.set(busyTimeout, 0)
	d := newDialer(Options{TLS: always(&tls.Config{ServerName: "redis"})}, l, nil)
	_, err := d.dialTLS(ctx, "tcp", hangsUp(t, ""), func(string) {})
	if !connectionFailed(err) {
		t.Errorf("%v; want an error after which another attempt is made", err)
	}
}

// hangsUp returns the address of a server that sends greeting to each connection and closes it.
func hangsUp(t *testing.T, greeting string) (address string) {
	l := listen(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, greeting)
			_ = conn.Close()
		}
	}()
	return l.Addr().String()
}
