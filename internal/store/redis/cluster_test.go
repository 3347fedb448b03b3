package redis

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
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

func testClusterList(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	want := make(map[idempotency.Key]bool)
	for i := range 30 {
		c := claimOf(fmt.Sprint(i), "token")
		mustClaim(t, s, c, idempotency.Proceed)
		want[c.Key] = true
	}
	for _, limit := range []int{1, 7, 1000} {
		found := make(map[idempotency.Key]bool)
		cursor := ""
		for pages := 0; ; pages++ {
			page, next, err := s.List(ctx, cursor, limit)
			if err != nil {
				t.Fatalf("a page of %d: %d records, %v", limit, len(page), err)
			}
			for _, listed := range page {
				found[listed.Key] = true
			}
			if cursor = next; cursor == "" {
				break
			}
			if pages > 100 {
				t.Fatalf("the list has no end; at %q", cursor)
			}
		}
		for key := range want {
			if !found[key] {
				t.Errorf("pages of %d: %s is missing", limit, key)
			}
		}
		if len(found) != len(want) {
			t.Errorf("pages of %d: %d records, want %d", limit, len(found), len(want))
		}
	}

	// A cursor from before the masters changed.
	_, cursor, err := s.List(ctx, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	stale, err := parseCursor(cursor)
	if err != nil {
		t.Fatal(err)
	}
	stale.topology++
	stale.master, stale.scan = 2, 7
	page, next, err := s.List(ctx, stale.String(), 1)
	if err != nil || next != cursor {
		t.Errorf("with a cursor of other masters: %d records, %q, %v; want the first page again", len(page), next, err)
	}
}

func testClusterScripts(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := closeAtEnd(t, openWith(t, o))
	woken := make(chan idempotency.Key, 10)
	defer s.Subscribe(func(key idempotency.Key) { woken <- key })()
	for master := range cluster.Masters {
		names := namesOn(master, 3, "name")
		for _, settlement := range []idempotency.Settlement{kept(small), kept(large), released()} {
			c := claimOf(names(), "token")
			claimed := mustClaim(t, s, c, idempotency.Proceed)
			waiting := c
			waiting.Token, waiting.Waits = "waiting", true
			mustClaim(t, s, waiting, idempotency.WaitForRun)
			cluster.Do("SCRIPT", "FLUSH")
			mustSettle(t, s, c, claimed.Record, settlement)
			mustBeWoken(t, woken, c.Key)
			if response, err := s.Response(ctx, c.Key, c.Token); err != nil || response == nil {
				t.Fatalf("response: %v, %v", response, err)
			}
		}
	}
	cluster.Do("SCRIPT", "FLUSH")
	listed := 0
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, next, err := s.List(ctx, cursor, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range page {
			wantErr(t, s.Forget(ctx, one.Key, idempotency.Precondition{}), nil)
		}
		listed += len(page)
		cursor = next
	}
	if listed != 9 {
		t.Errorf("%d records listed, want 9", listed)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	s.pipes.to(target{node: jumping}).clock.ahead.Add(-time.Hour.Milliseconds())
	for master, want := range map[int]int{1: 1, 2: 1} {
		if sent := claim(master); sent != want {
			t.Errorf("master %d, whose clock did not jump: %d claims sent, want %d", master, sent, want)
		}
	}
	if sent := claim(0); sent != 2 {
		t.Errorf("the master whose clock jumped: %d claims sent, want 2", sent)
	}
}
