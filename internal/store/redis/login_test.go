package redis

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// A store that the server refuses goes on as the one that was opened last at the same place.
func TestRefusedStoreLogsInAsTheLatest(t *testing.T) {
	server := redistest.Start(t)
	username, old := allowed(server)
	o := Options{Addresses: []string{server.Addr}, Username: username, Password: old, Timeout: generous}
	s := closeAtEnd(t, openWith(t, o))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)

	command(t, server, "ACL", "SETUSER", username, "resetpass", ">new")
	command(t, server, "CLIENT", "KILL", "USER", username)
	if err := s.Renew(ctx, c); !refusesLogin(err) {
		t.Fatalf("renew with the old password alone: %v; want it refused", err)
	}
	o.Password = "new"
	closeAtEnd(t, openWith(t, o))
	if err := s.Renew(ctx, c); err != nil {
		t.Fatalf("renew beside a store with the new password: %v", err)
	}
	mustSettle(t, s, c, claimed.Record, kept(small))
}

// A store that the sentinels refuse has them asked by the one that was opened last at the same
// place: else, once its connections are gone, it never finds the master again.
func TestStoreRefusedBySentinelsAsksAsTheLatest(t *testing.T) {
	server := redistest.Start(t)
	sentinel := redistest.StartSentinels(t, server, 0, 1)[0]
	replace := func(password string) {
		command(t, sentinel, "ACL", "SETUSER", "dedup", "on", "&*", "+@all", "resetpass", ">"+password)
		command(t, sentinel, "CLIENT", "KILL", "USER", "dedup")
		command(t, server, "CLIENT", "KILL", "TYPE", "normal")
	}
	replace("old")
	o := Options{
		Addresses: []string{sentinel.Addr}, Sentinel: redistest.MasterName,
		SentinelUsername: "dedup", SentinelPassword: "old", Timeout: generous,
	}
	s := closeAtEnd(t, openWith(t, o))
	c := claimOf("a", "token")
	claimed := mustClaim(t, s, c, idempotency.Proceed)

	replace("new")
	if err := s.Renew(ctx, c); !refusesLogin(err) {
		t.Fatalf("renew with the old password alone: %v; want it refused", err)
	}
	o.SentinelPassword = "new"
	closeAtEnd(t, openWith(t, o))
	if err := s.Renew(ctx, c); err != nil {
		t.Fatalf("renew beside a store with the new password: %v", err)
	}
	mustSettle(t, s, c, claimed.Record, kept(small))
}

// A store that the sentinels have never let in is a mistake, as with the server's own login.
func TestStoreNeverLetInBySentinelsAsksAsNobodyElse(t *testing.T) {
	server := redistest.Start(t)
	sentinel := redistest.StartSentinels(t, server, 0, 1)[0]
	command(t, sentinel, "ACL", "SETUSER", "dedup", "on", "&*", "+@all", ">right")
	o := Options{
		Addresses: []string{sentinel.Addr}, Sentinel: redistest.MasterName,
		SentinelUsername: "dedup", SentinelPassword: "wrong", Timeout: generous,
	}
	s := closeAtEnd(t, openWith(t, o))
	o.SentinelPassword = "right"
	other := closeAtEnd(t, openWith(t, o))
	mustClaim(t, other, claimOf("other", "token"), idempotency.Proceed)
	if _, err := s.Claim(ctx, claimOf("a", "token")); !refusesLogin(err) {
		t.Errorf("claim with a wrong password for the sentinels: %v; want it refused", err)
	}
}

func TestLogins(t *testing.T) {
	begun := time.Now()
	at := func(change func(*Options)) *logins {
		o := Options{Addresses: []string{"redis.test:6379"}, Password: "own"}
		change(&o)
		l := enterLogins(o.withDefaults())
		t.Cleanup(l.leave)
		return l
	}
	l := at(func(*Options) {})
	l.accept()
	want := func(when, password string) {
		t.Helper()
		if got := l.now().password; got != password {
			t.Errorf("%s, the password is %q; want %q", when, got, password)
		}
	}
	at(func(o *Options) { o.Password = "elsewhere"; o.Addresses = []string{"other.test:6379"} })
	at(func(o *Options) { o.Password = "other names"; o.Prefix = "other:" })
	at(func(o *Options) {
		o.Password = "for TLS alone"
		o.TLS = func() (*tls.Config, error) { return nil, nil }
	})
	l.refused(begun)
	want("with no other store at its place", "own")
	latest := at(func(o *Options) { o.Password = "latest" })
	want("refused", "latest")
	l.refused(begun.Add(turnEvery / 2))
	want("refused again at the same time", "latest")
	l.refused(begun.Add(turnEvery))
	want("with the latest refused, too", "own")
	l.refused(begun.Add(2 * turnEvery))
	latest.leave()
	want("when the latest is closed", "own")
}

// A login that the server has never accepted was not replaced: it is a mistake, which another
// handler's store at the same place must not hide.
func TestLoginNeverAcceptedIsNoOthers(t *testing.T) {
	server := redistest.Start(t)
	username, password := allowed(server)
	o := Options{Addresses: []string{server.Addr}, Username: username, Password: "wrong", Timeout: generous}
	s := closeAtEnd(t, openWith(t, o))
	o.Password = password
	other := closeAtEnd(t, openWith(t, o))
	mustClaim(t, other, claimOf("other", "token"), idempotency.Proceed)
	for range 2 {
		if _, err := s.Claim(ctx, claimOf("a", "token")); !refusesLogin(err) {
			t.Fatalf("claim with a wrong password: %v; want it refused", err)
		}
	}
}
