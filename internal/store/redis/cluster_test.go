package redis

import (
	"fmt"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/caddy-dedup/caddy-dedup/internal/store/storetest"
)

func slotOf(name string) int { return redistest.Slot(keyOf(name).String()) }

// namesIn makes new names whose keys are in slots from first on, before end.
func namesIn(first, end int, prefix string) func() string {
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

// namesOn makes new names whose keys are on one master of a new cluster with three masters.
func namesOn(master int, prefix string) func() string {
	return namesIn(master*redistest.Slots/3, (master+1)*redistest.Slots/3, prefix)
}

func TestCluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, 3, 0)
	t.Run("opened as another kind of server", func(t *testing.T) { testWrongKinds(t, cluster) })
	username, password := allowed(cluster.Masters...)
	o := Options{
		Addresses: []string{cluster.Masters[1].Addr}, Cluster: true,
		Username: username, Password: password, Timeout: busyTimeout,
	}
	for name, test := range map[string]func(*testing.T, *redistest.Cluster, Options){
		"lists all masters":            testClusterList,
		"forgets scripts":              testClusterScripts,
		"has a master that hangs":      testHungMaster,
		"goes on while slots move":     testClusterResharding,
		"settles in a slot half moved": testHalfMovedSlot,
		"loses replies over redirects": testLostRedirects,
	} {
		t.Run(name, func(t *testing.T) {
			cluster.Do("FLUSHALL")
			test(t, cluster, o)
		})
	}
}

// testClusterList has a cursor from before the masters changed. The conformance suite lists the rest.
func testClusterList(t *testing.T, _ *redistest.Cluster, o Options) {
	s := openWith(t, o)
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
	s := openWith(t, o)
	useAll(t, s, func() { cluster.Do("SCRIPT", "FLUSH") })
	for _, master := range cluster.Masters {
		if n := master.Do("DBSIZE"); n != int64(0) {
			t.Errorf("%v keys left at %s: %v", n, master.Addr, master.Do("KEYS", "*"))
		}
	}
}

// testHungMaster pauses the master that the store is configured with. The keys of the others are not affected, and their
// large responses neither.
func testHungMaster(t *testing.T, cluster *redistest.Cluster, o Options) {
	s := openWith(t, o)
	for master := range cluster.Masters {
		mustClaim(t, s, claimOf(namesOn(master, "warm")(), "token"), idempotency.Proceed)
	}
	slow, others := namesOn(1, "slow"), namesOn(0, "others")
	cluster.Masters[1].Pause()
	masters := must1(s.masters(ctx))
	sent := count(masters...)
	errs := make(chan error, 50)
	for range cap(errs) {
		c := claimOf(slow(), "token")
		go func() { errs <- storetest.ErrOf(s.Claim(ctx, c)) }()
	}
	eventually(t, "they wait", func() bool {
		waiting := int64(0)
		for _, master := range masters {
			waiting += s.pipes.to(target{node: master}).queued()
		}
		return waiting+sent.requests.Load() == int64(cap(errs))
	})
	for range 50 {
		ends(kept(large))(t, s, claimOf(others(), "token"))
	}
	storetest.Equal(t, len(errs), 0, "claims at the paused master are over")
	cluster.Masters[1].Resume()
	for range cap(errs) {
		wantErr(t, <-errs, nil)
	}
}

// testWrongKinds has options for another kind of Redis. The error says which.
func testWrongKinds(t *testing.T, cluster *redistest.Cluster) {
	server := redistest.Start(t)
	sentinel := redistest.StartSentinels(t, server, 0, 1)[0]
	for name, test := range map[string]struct {
		want string
		o    Options
	}{
		"a node of a cluster":   {"set cluster", Options{Addresses: []string{cluster.Masters[0].Addr}}},
		"a server alone":        {"without cluster", Options{Addresses: []string{server.Addr}, Cluster: true}},
		"a sentinel":            {"may be a sentinel", Options{Addresses: []string{sentinel.Addr}}},
		"no sentinel":           {"is not a sentinel", Options{Addresses: []string{server.Addr}, Sentinel: redistest.MasterName}},
		"another master's name": {`no sentinel knows a master with the name "other"`, Options{Addresses: []string{sentinel.Addr}, Sentinel: "other"}},
	} {
		test.o.Timeout = busyTimeout
		s := openWith(t, test.o)
		// of a slot that is not the first master's
		claimed, err := s.Claim(ctx, claimOf(namesOn(2, name)(), "token"))
		if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), test.o.Addresses[0]) || claimed.Record != nil {
			t.Errorf("%s: %+v, %v; want %q, the address, and nothing in doubt", name, claimed, err, test.want)
		}
	}
}
