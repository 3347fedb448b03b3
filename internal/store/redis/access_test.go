package redis

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

// useAll has a store do every operation, and then forgets its key. It calls before each of them.
func useAll(t *testing.T, s *Store, before ...func()) {
	t.Helper()
	woken := make(chan idempotency.Key, 1)
	stop, run := s.Subscribe(func(key idempotency.Key) { woken <- key }), claimOf("waited for", "token")
	record := mustClaim(t, s, run, idempotency.Proceed).Record
	awaitSubscription(t, s)
	mustWait(t, s, withToken(run, "waits"))
	mustSettle(t, s, run, record, kept(small))
	mustBeWoken(t, woken, run.Key)
	stop()
	forgets(t, s, run)
	for name, o := range operations {
		c := claimOf(name, "token")
		if o.claims != nil {
			o.claims(&c)
		}
		found := o.finds(t, s, c)
		for _, do := range before {
			do()
		}
		must(t, storetest.ErrOf(o.do(s, c, found)), name)
		o.check(t, s, c, found)
		if record, _, err := s.Lookup(ctx, c.Key); err == nil && record != nil {
			if record.State == idempotency.InFlight {
				mustSettle(t, s, c, record, kept(small))
			}
			forgets(t, s, c)
		}
	}
}

// allowed creates a user on every server. Its rules are exactly those that the error after a NOPERM
// names.
func allowed(servers ...*redistest.Server) (username, password string) {
	username, password = "dedup", "s3cret"
	allow(username, password, access(DefaultPrefix), servers...)
	return username, password
}

// allow creates a user on every server.
func allow(username, password, rules string, servers ...*redistest.Server) {
	set := []any{"ACL", "SETUSER", username, "on", ">" + password}
	for rule := range strings.FieldsSeq(rules) {
		set = append(set, rule)
	}
	for _, server := range servers {
		server.Do(set...)
	}
}

// docs/redis.md has the rules that the error after a NOPERM names.
func TestAccessRulesOfThePage(t *testing.T) {
	page, err := os.ReadFile("../../../docs/redis.md")
	must(t, err)
	for _, rules := range []string{access(DefaultPrefix), sentinelAccess} {
		if !strings.Contains(string(page), "\n"+rules+"\n") {
			t.Errorf("redis.md lacks the line %s", rules)
		}
	}
}

// The rules that the error after a NOPERM names are sufficient for every operation.
func TestAccessRules(t *testing.T) {
	server := redistest.Start(t)
	username, password := allowed(server)
	s := openWith(t, Options{
		Addresses: []string{server.Addr}, Username: username, Password: password, Timeout: busyTimeout,
	})
	useAll(t, s)
	storetest.Equal[any](t, command(t, server, "DBSIZE"), int64(0), "keys left")

	command(t, server, "ACL", "SETUSER", "dedup", "-set")
	claimed, err := s.Claim(ctx, claimOf("a", "token"))
	if err == nil || !strings.Contains(err.Error(), "needs the rules "+access(DefaultPrefix)) || claimed.Record != nil {
		t.Errorf("claim without set: %+v, %v; want the rules that are needed, and nothing in doubt", claimed, err)
	}
}

func TestUnixSocketAndDatabase(t *testing.T) {
	server := redistest.Start(t)
	o, err := ParseURL(fmt.Sprintf("unix://%s?db=3", server.Socket))
	must(t, err)
	o.Timeout = busyTimeout
	s := openWith(t, o)
	mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
	if keyspace := command(t, server, "INFO", "keyspace").(string); !strings.Contains(keyspace, "db3:keys=1") {
		t.Errorf("the record is not in database 3: %s", keyspace)
	}
}

// always returns the same settings for every connection.
func always(config *tls.Config) func() (*tls.Config, error) {
	return func() (*tls.Config, error) { return config, nil }
}

// The server of this test requires a client certificate.
func TestTLSOfRedis(t *testing.T) {
	certificates := redistest.NewCertificates(t)
	server := redistest.StartTLS(t, certificates)
	username, password := allowed(server)
	known := knownTo(t, certificates)
	roots, pair := known.RootCAs, known.Certificates
	for name, test := range map[string]struct {
		config *tls.Config
		want   string // in the error; "" for none
	}{
		"with all it needs":           {known, ""},
		"by another name":             {&tls.Config{RootCAs: roots, Certificates: pair, ServerName: "redis.test"}, ""},
		"by a name of another":        {&tls.Config{RootCAs: roots, Certificates: pair, ServerName: "other.test"}, "other.test"},
		"of an unknown authority":     {&tls.Config{Certificates: pair}, "unknown authority"},
		"without a certificate of it": {&tls.Config{RootCAs: roots}, server.Addr}, // the error depends on timing
	} {
		t.Run(name, func(t *testing.T) {
			s := openWith(t, Options{
				Addresses: []string{server.Addr}, TLS: always(test.config), Username: username, Password: password, Timeout: busyTimeout,
			})
			if test.want == "" {
				useAll(t, s)
			} else if claimed, err := s.Claim(ctx, claimOf("a", "token")); err == nil || !strings.Contains(err.Error(), test.want) || claimed.Record != nil {
				t.Errorf("claim: %+v, %v; want %q, and nothing in doubt", claimed, err, test.want)
			}
		})
	}
	for name, o := range map[string]Options{
		"the server": {Addresses: []string{server.Addr}},
		"the store":  {Addresses: []string{redistest.Start(t).Addr}, TLS: always(known)},
	} {
		s := openWith(t, o)
		eventually(t, "the error of a claim says that only "+name+" has TLS", func() bool {
			err := storetest.ErrOf(s.Claim(ctx, claimOf("a", "token")))
			return err != nil && strings.Contains(err.Error(), "TLS")
		})
	}
}

// knownTo returns a TLS config that a server with these certificates accepts.
func knownTo(t *testing.T, certificates redistest.Certificates) *tls.Config {
	t.Helper()
	authority, err := os.ReadFile(certificates.CA)
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	pair, err := tls.LoadX509KeyPair(certificates.Cert, certificates.Key)
	must(t, err)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}
}

// The documented rules are sufficient for users on the sentinels and on the servers.
func TestSentinelUsers(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	sentinels := redistest.StartSentinels(t, master, 1, 1)
	username, password := allowed(master, replica)
	allow("watcher", "s3ntinel", sentinelAccess, sentinels[0])
	sentinels[0].Do("ACL", "SETUSER", "default", "off")
	master.Do("ACL", "SETUSER", "default", "-evalsha")
	o := Options{
		Addresses: []string{sentinels[0].Addr}, Sentinel: redistest.MasterName,
		SentinelUsername: "watcher", SentinelPassword: "s3ntinel",
		Username: username, Password: password, Timeout: busyTimeout, WaitReplicas: 1,
	}
	s := openWith(t, o)
	useAll(t, s)
	storetest.Equal(t, s.Unreplicated(), 0, "responses were answered without their replica")

	for _, wrong := range []struct{ username, password string }{{"", ""}, {"watcher", "wr0ng"}, {"", "wr0ng"}} {
		o.SentinelUsername, o.SentinelPassword = wrong.username, wrong.password
		s := openWith(t, o)
		_, err := s.Claim(ctx, claimOf("a", "token"))
		if err == nil || !strings.Contains(err.Error(), "sentinel_password") {
			t.Errorf("with %q: %v; want the setting that is wrong", wrong, err)
		}
		if err != nil && (strings.Contains(err.Error(), "s3cret") || strings.Contains(err.Error(), "s3ntinel") || strings.Contains(err.Error(), "wr0ng")) {
			t.Errorf("the error shows a password: %v", err)
		}
	}
	mustClaim(t, s, claimOf("a", "token"), idempotency.Proceed)
}
