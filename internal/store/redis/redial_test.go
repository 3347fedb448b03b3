package redis

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestAddressThatLedToAReplica has an address that leads to a replica when the store first
// uses it, and then to the master. No connection ends by itself, and no server changes its
// role, so nothing but another dial finds the master.
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
			s := closeAtEnd(t, openWith(t, Options{Addresses: []string{p.addr}, TLS: test.tls, Timeout: generous}))
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
			// From here on no request is refused, by whichever connection it goes.
			records := claimMany(t, s, "many ", 50)
			settleMany(t, s, records)
			for name := range records {
				mustClaim(t, s, claimOf(name, "again"), idempotency.ReplayKept)
			}
		})
	}
}

// TestIdleConnectionsThatAreClosed has the other side close all connections that wait in
// the pool: a server that restarts, or one or a gateway that closes what nobody uses. No
// command goes out over one of them.
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
			o.Addresses, o.Timeout = []string{p.addr}, generous
			s := closeAtEnd(t, openWith(t, o))
			mustClaim(t, s, claimOf("before", "token"), idempotency.Proceed)
			client := s.client.(*goredis.Client)
			var several []*goredis.Conn
			for range 8 {
				conn := client.Conn()
				if err := conn.Ping(ctx).Err(); err != nil {
					t.Fatal(err)
				}
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

// TestReplicaIsDialedSeldom greets a replica often, as an address that is set wrongly has
// it with each request.
func TestReplicaIsDialedSeldom(t *testing.T) {
	c := &contact{servers: make(map[string]*server), log: zap.NewNop()}
	now := time.Now()
	for _, step := range []struct {
		after   time.Duration
		replica bool
		dials   int64
	}{
		{0, true, 1},
		{redialEvery / 2, true, 1},
		{redialEvery - 1, true, 1},
		{redialEvery, true, 2},
		{redialEvery + 1, true, 2},
		{redialEvery + 2, false, 3}, // other connections may still lead to the replica
		{10 * redialEvery, true, 4},
	} {
		c.redial(now.Add(step.after), step.replica)
		if n := c.epoch.Load(); n != step.dials {
			t.Errorf("after %s: all connections were given up %d times, want %d", step.after, n, step.dials)
		}
	}
	node := &contact{fixed: true}
	if node.redial(now, true); node.epoch.Load() != 0 {
		t.Error("a node of a cluster that is a replica is dialed again; the cluster says who is a master")
	}
}

// TestConnectionThatIsGivenUp looks at a connection as the pool does. Who is using it goes
// on: the pool takes it back and then drops it.
func TestConnectionThatIsGivenUp(t *testing.T) {
	l := listen(t)
	defer l.Close()
	for _, opaque := range []bool{false, true} {
		below, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		other, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if opaque { // as one with TLS is
			below = struct{ net.Conn }{below}
		}
		c := new(contact)
		conn := c.pooled(below, c.epoch.Load())
		look := func() error {
			raw, err := conn.(syscall.Conn).SyscallConn()
			if err == nil {
				err = raw.Read(func(uintptr) bool { return true })
			}
			return err
		}
		if err := look(); err != nil {
			t.Errorf("opaque %v: a fresh connection: %v", opaque, err)
		}
		c.redial(time.Now(), true)
		if look() == nil {
			t.Errorf("opaque %v: the pool would use the connection again", opaque)
		}
		if err := conn.SetWriteDeadline(time.Time{}); err != nil {
			t.Errorf("opaque %v: before the next write: %v", opaque, err)
		}
		if _, err := conn.Write([]byte("a")); err != nil {
			t.Errorf("opaque %v: who uses the connection: %v", opaque, err)
		}
		if _, err := io.ReadFull(other, make([]byte, 1)); err != nil {
			t.Errorf("opaque %v: the other side: %v", opaque, err)
		}
		// Where the pool does not look, the next command fails before anything is sent.
		conn.(*pooledConn).looks = false
		if err := conn.SetWriteDeadline(time.Time{}); !connectionFailed(err) || mayBeExecuted(err) {
			t.Errorf("opaque %v: where the pool does not look: %v; want an error after which another attempt follows", opaque, err)
		}
		_, _ = conn.Close(), other.Close()
	}
}
