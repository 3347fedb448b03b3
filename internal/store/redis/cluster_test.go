package redis

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func slotOf(name string) int { return redistest.Slot(named.record(keyOf(name))) }

// namesOn makes new names whose keys are on one master of a new cluster with so many masters.
func namesOn(master, masters int, prefix string) func() string {
	first, end := master*redistest.Slots/masters, (master+1)*redistest.Slots/masters
	next := counting(prefix)
	return func() string {
		for {
			name := next()
			if slot := slotOf(name); slot >= first && slot < end {
				return name
			}
		}
	}
}

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	username, password := allowed(cluster.Masters...)
	o := Options{
		Addresses: []string{cluster.Masters[1].Addr}, Cluster: true,
		Username: username, Password: password, Timeout: busyTimeout,
	}
	for name, test := range map[string]func(*testing.T, *redistest.Cluster, Options){
		"lists all masters":                testClusterList,
		"forgets scripts":                  testClusterScripts,
		"has one master that stands still": testSlowMaster,
		"warns of each master that evicts": testClusterEviction,
		"has a clock for each master":      testClusterClocks,
		"goes on while slots move":         testClusterResharding,
		"settles in a slot half moved":     testHalfMovedSlot,
		"loses replies over redirects":     testLostRedirects,
	} {
		t.Run(name, func(t *testing.T) {
			cluster.Do("FLUSHALL")
			test(t, cluster, o)
		})
	}
}

// testClusterList has a cursor from before the masters changed. The conformance suite lists the rest.
func testClusterList(t *testing.T, _ *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	for i := range 30 {
		mustClaim(t, s, claimOf(fmt.Sprint(i), "token"), idempotency.Proceed)
	}
	eventually(t, "a cursor of other masters begins anew, once the client knows those whose slots other tests have moved", func() bool {
		_, cursor, err := s.List(ctx, "", 1)
		must(t, err)
		stale, err := parseCursor(cursor)
		must(t, err)
		stale.topology++
		stale.master, stale.scan = 2, 7
		_, next, err := s.List(ctx, stale.String(), 1)
		return err == nil && next == cursor
	})
}

func testClusterScripts(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	useAll(t, s, func() { cluster.Do("SCRIPT", "FLUSH") })
	for _, master := range cluster.Masters {
		if n := master.Do("DBSIZE"); n != int64(0) {
			t.Errorf("%v keys left at %s: %v", n, master.Addr, master.Do("KEYS", "*"))
		}
	}
}

func testClusterEviction(t *testing.T, cluster *redistest.Cluster, o Options) {
	for i, policy := range []string{"noeviction", "allkeys-lru", "volatile-ttl"} {
		cluster.Masters[i].Do("CONFIG", "SET", "maxmemory", "100mb")
		cluster.Masters[i].Do("CONFIG", "SET", "maxmemory-policy", policy)
	}
	defer cluster.Do("CONFIG", "SET", "maxmemory", "0")
	core, logs := observer.New(zap.WarnLevel)
	o.Logger = zap.New(core)
	s := closeAtEnd(t, openWith(t, o))
	for i := range 20 {
		mustClaim(t, s, claimOf(fmt.Sprint("eviction ", i), "token"), idempotency.Proceed)
	}
	warned := make(map[any]any)
	for _, entry := range logs.FilterMessageSnippet("may evict").All() {
		fields := entry.ContextMap()
		if before, twice := warned[fields["address"]]; twice {
			t.Errorf("warned twice of %v: %v", fields["address"], before)
		}
		warned[fields["address"]] = fields["maxmemory_policy"]
	}
	if len(warned) != 2 || warned[cluster.Masters[1].Addr] != "allkeys-lru" || warned[cluster.Masters[2].Addr] != "volatile-ttl" {
		t.Errorf("warned of %v; want the second and the third master", warned)
	}
}

// testClusterClocks has one master whose clock, as this process estimates it, is an hour behind those of
// the others.
func testClusterClocks(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	claim := func(master int) (sent int) {
		before := calls(t, cluster.Masters[master])["evalsha"]
		name := namesOn(master, 3, fmt.Sprint("clock ", time.Now().UnixNano()))()
		c := claimOf(name, name)
		c.Hold = true // so that it has a deadline
		mustClaim(t, s, c, idempotency.Proceed)
		return calls(t, cluster.Masters[master])["evalsha"] - before
	}
	for master := range cluster.Masters {
		claim(master)
	}
	jumping, err := s.nodeOf(ctx, named.record(keyOf(namesOn(0, 3, "clock")())))
	must(t, err)
	s.pipes.to(target{node: jumping}).clock.ahead.Add(-time.Hour.Milliseconds())
	for master, want := range map[int]int{1: 1, 2: 1} {
		storetest.Equal(t, claim(master), want, "claims sent to one whose clock did not jump", master)
	}
	storetest.Equal(t, claim(0), 2, "claims sent to the master whose clock jumped")
}
