package redis

import (
	"crypto/tls"
	"errors"
	"strings"
	"testing"

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
	for name, test := range map[string]struct{ readOnly, tls, tooEarly bool }{ // used before the address changes
		"read only": {readOnly: true}, "read only, TLS, too early": {readOnly: true, tls: true, tooEarly: true},
		"writable, too early": {tooEarly: true}, "writable, TLS": {tls: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var args []string
			if !test.readOnly {
				args = []string{"--replica-read-only", "no"}
			}
			master := redistest.Start(t, args...)
			replica := redistest.StartReplica(t, master, args...)
			l := linkTo(t, replica)
			l.tls = test.tls
			core, logs := observer.New(zap.ErrorLevel)
			s := openWith(t, Options{Addresses: []string{replica.Addr}, Timeout: busyTimeout, dial: l.dial, Logger: zap.New(core)})
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
				refused(!test.readOnly)
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
