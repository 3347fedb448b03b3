package redis

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// TestWrongKindOfServer has settings for another kind of Redis than the one that is
// there.
func TestWrongKindOfServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	sentinel := redistest.StartSentinels(t, server, 0, 1)[0]
	cluster := redistest.StartCluster(t, 3, 0)
	for name, test := range map[string]struct {
		want string
		o    Options
	}{
		"a node of a cluster":   {"set cluster", Options{Addresses: []string{cluster.Masters[0].Addr}}},
		"a server alone":        {"without cluster", Options{Addresses: []string{server.Addr}, Cluster: true}},
		"a sentinel":            {"may be a sentinel", Options{Addresses: []string{sentinel.Addr}}},
		"no sentinel":           {"is no sentinel", Options{Addresses: []string{server.Addr}, Sentinel: redistest.MasterName}},
		"another master's name": {`no sentinel knows a master of the name "other"`, Options{Addresses: []string{sentinel.Addr}, Sentinel: "other"}},
	} {
		o := test.o
		o.Timeout = generous
		s := closeAtEnd(t, openWith(t, o))
		// Slots of two masters, so that one at least is not of the server that is asked.
		for _, key := range []string{namesOn(0, 3, name)(), namesOn(2, 3, name)()} {
			claimed, err := s.Claim(ctx, claimOf(key, "token"))
			if err == nil && name == "a node of a cluster" {
				continue // one of the two keys is its own
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), o.Addresses[0]) {
				t.Errorf("%s: %v; want %q and the address", name, err, test.want)
			}
			if claimed.Record != nil {
				t.Errorf("%s: a refused claim may have been executed", name)
			}
		}
	}
}

// TestSentinelUsers has users on the sentinels and on the servers, each with
// exactly the rules that are documented.
func TestSentinelUsers(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	sentinels := redistest.StartSentinels(t, master, 1, 1)
	username, password := allowed(master, replica)
	set := []any{"ACL", "SETUSER", "watcher", "on", ">s3ntinel"}
	for rule := range strings.FieldsSeq(sentinelAccess) {
		set = append(set, rule)
	}
	sentinels[0].Do(set...)
	sentinels[0].Do("ACL", "SETUSER", "default", "off")
	master.Do("ACL", "SETUSER", "default", "-evalsha")
	o := Options{
		Addresses: []string{sentinels[0].Addr}, Sentinel: redistest.MasterName,
		SentinelUsername: "watcher", SentinelPassword: "s3ntinel",
		Username: username, Password: password, Timeout: generous, WaitReplicas: 1,
	}
	s := closeAtEnd(t, openWith(t, o))
	useAll(t, s)
	if n := s.Unreplicated(); n != 0 {
		t.Errorf("%d responses were answered without their replica", n)
	}

	for _, wrong := range []struct{ username, password string }{{"", ""}, {"watcher", "wr0ng"}, {"", "wr0ng"}} {
		o.SentinelUsername, o.SentinelPassword = wrong.username, wrong.password
		s := closeAtEnd(t, openWith(t, o))
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
