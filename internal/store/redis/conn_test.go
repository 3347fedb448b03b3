package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// TestReplica uses an address that leads to a replica, then to its master, which becomes a replica while its
// connections stay open, and then to the new master. A replica is not ready and gets no claim, and no operation fails
// once the address leads to the master.
func TestReplica(t *testing.T) {
	t.Parallel()
	for readOnly, args := range map[bool][]string{true: nil, false: {"--replica-read-only", "no"}} {
		for name, test := range map[string]struct{ tls, tooEarly bool }{ // whether the store is used before the address changes
			"in the clear": {}, "in the clear, too early": {tooEarly: true}, "TLS": {tls: true}, "TLS, too early": {tls: true, tooEarly: true},
		} {
			t.Run(fmt.Sprintf("read only %v, %s", readOnly, name), func(t *testing.T) {
				t.Parallel()
				master := redistest.Start(t, args...)
				replica := redistest.StartReplica(t, master, args...)
				l := linkTo(t, replica)
				l.tls = test.tls
				core, logs := observer.New(zap.ErrorLevel)
				s := closeAtEnd(t, openWith(t, Options{Addresses: []string{replica.Addr}, Timeout: busyTimeout, dial: l.dial, Logger: zap.New(core)}))
				refused := func(inDoubt bool) {
					t.Helper()
					claimed, err := s.Claim(ctx, claimOf("refused", "token"))
					if !errors.Is(err, errReplica) || !strings.Contains(err.Error(), "set the address of the master") || claimed.Verdict != 0 || !l.tls && (claimed.Record != nil) != inDoubt {
						t.Errorf("claimed %+v, %v; want %v, in doubt %v", claimed, err, errReplica, inDoubt)
					}
					wantErr(t, s.Ready(ctx), errReplica)
					wantErr(t, s.Renew(ctx, claimOf("a", "token")), errReplica)
				}
				for range 3 {
					refused(false)
				}
				storetest.Equal(t, logs.FilterMessageSnippet("is a replica").FilterField(zap.String("address", replica.Addr)).Len(), 1, "log lines")

				l.leadTo(master)
				c := claimOf("a", "token")
				record := mustClaim(t, s, c, idempotency.Proceed).Record
				for name, record := range claimMany(t, s, "many ", 50) {
					mustSettle(t, s, claimOf(name, "token"), record, kept(small))
				}
				warm(t, s)
				eventually(t, "the replica has all", func() bool { return replica.Do("EXISTS", named.record(keyOf("warm"))) == int64(1) })
				replica.Do("REPLICAOF", "NO", "ONE")
				master.Do("REPLICAOF", "127.0.0.1", replica.Port())
				if test.tooEarly {
					refused(!readOnly)
				}
				l.leadTo(replica)
				mustSettle(t, s, c, record, kept(large))
				mustClaim(t, s, claimOf("after", "token"), idempotency.Proceed)
				must(t, s.Ready(ctx))
				for _, name := range []string{"a", "after"} {
					storetest.Equal[any](t, replica.Do("EXISTS", named.record(keyOf(name))), int64(1), "at the new master", name)
				}
			})
		}
	}
}

// All idle connections in the pool are closed on the server's side, over real sockets. No command is sent over one of
// them, and with TLS each is sent again.
func TestIdleConnectionsThatAreClosed(t *testing.T) {
	t.Parallel()
	certificates := redistest.NewCertificates(t)
	for name, server := range map[string]*redistest.Server{"in the clear": redistest.Start(t), "TLS": redistest.StartTLS(t, certificates)} {
		o := Options{Addresses: []string{server.Addr}, Timeout: busyTimeout}
		if name == "TLS" {
			o.TLS = always(knownTo(t, certificates))
			o.Username, o.Password = allowed(server)
		}
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
		server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
		for _, key := range []string{"a", "b", "c"} {
			mustClaim(t, s, claimOf(key, "token"), idempotency.Proceed)
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
	listener := listen(t)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_ = conn.Close()
		}
	}()
	l := new(limits)
	l.set(busyTimeout, 0)
	d := newDialer(Options{TLS: always(&tls.Config{ServerName: "redis"})}, l, nil)
	if _, err := d.dialTLS(ctx, "tcp", listener.Addr().String(), func(string) {}); !connectionFailed(err) {
		t.Errorf("%v; want an error after which another attempt is made", err)
	}
}
