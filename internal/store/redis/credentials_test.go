package redis

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// A store whose password the server refuses uses that of the newest store of the same server.
func TestRefusedStoreUsesTheNewestCredentials(t *testing.T) {
	server := redistest.Start(t)
	username, old := allowed(server)
	o := Options{Addresses: []string{server.Addr}, Username: username, Password: old, Timeout: busyTimeout}
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
	must(t, s.Renew(ctx, c))
	mustSettle(t, s, c, claimed.Record, kept(small))
}

// Credentials that the server has never accepted are wrong, and the store of another handler must not
// hide that.
func TestCredentialsNeverAcceptedAreNotReplaced(t *testing.T) {
	server := redistest.Start(t)
	username, password := allowed(server)
	o := Options{Addresses: []string{server.Addr}, Username: username, Password: "wrong", Timeout: busyTimeout}
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

func refusesLogin(err error) bool { return hasCode(err, "WRONGPASS") || hasCode(err, "NOAUTH") }
