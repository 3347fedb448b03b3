package integration

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/integration/history"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// rig is what a load is for: a few processes, and what they need.
type rig struct {
	t       *testing.T
	site    string
	proxies []*caddy
	chance  *rand.Rand
	now     func() time.Duration
	faults  []history.Fault
	reloads int
	// Where the store is Redis, each process has a link of its own to it.
	server *redistest.Server
	links  []*link
}

func newRig(t *testing.T, seed uint64, now func() time.Duration, site string) *rig {
	return &rig{t: t, site: site, chance: rand.New(rand.NewPCG(seed, 1<<32)), now: now}
}

// rigging starts the processes of a rig.
type rigging func(*rig)

// threeOverRedis are three processes with one Redis. They ask it about each request: with
// local copies, what is freed or forced on one of them reaches the others a little later.
func threeOverRedis(redisArgs ...string) rigging {
	return func(g *rig) {
		g.server = redistest.Start(g.t, redisArgs...)
		for range 3 {
			l := startLink(g.t, g.server.Addr)
			g.links = append(g.links, l)
			g.proxies = append(g.proxies, start(g.t, conf{store: lines(storeAt(l.addr), "local_copies off"), site: g.site}))
		}
	}
}

// oneWithAFile is one process with a store file, and with local copies, which never are
// behind there.
func oneWithAFile(g *rig) {
	g.proxies = []*caddy{start(g.t, conf{store: "store file", site: g.site})}
}

func (g *rig) addrs() []string {
	var addrs []string
	for _, p := range g.proxies {
		addrs = append(addrs, p.addr)
	}
	return addrs
}

// fault is one thing that can be done to a rig, to one of its processes or to all.
type fault struct {
	name string
	kind history.FaultKind
	all  bool
	// do does it, keeps it up for a while, and undoes it.
	do func(g *rig, proxy int)
}

// inject does a fault and writes it down.
func (g *rig) inject(f fault) {
	proxy := history.Everyone
	if !f.all {
		proxy = g.chance.IntN(len(g.proxies))
	}
	if f.kind == history.Killed {
		f.do(g, proxy) // which writes it down itself
		return
	}
	g.as(f.name, f.kind, proxy, func() { f.do(g, proxy) })
}

func (g *rig) as(name string, kind history.FaultKind, proxy int, do func()) {
	begun := history.Fault{Kind: kind, Name: name, Proxy: proxy, Start: g.now()}
	do()
	begun.End = g.now()
	g.faults = append(g.faults, begun)
}

// last lets time pass under a fault: so many milliseconds, and up to half as many
// again.
func (g *rig) last(ms int) { time.Sleep(time.Duration(ms+g.chance.IntN(ms/2)) * time.Millisecond) }

func suffering(what toxic, ms int) func(*rig, int) {
	return func(g *rig, proxy int) {
		end := g.links[proxy].suffer(g.t, what)
		g.last(ms)
		end()
	}
}

func (g *rig) cutOff(proxy, ms int) {
	g.links[proxy].cut()
	g.last(ms)
	g.links[proxy].mend(g.t)
}

// kill ends a process as a power cut would, and starts it again.
func (g *rig) kill(proxy int) {
	g.as("killed", history.Killed, proxy, func() {
		old := g.proxies[proxy]
		old.kill(g.t)
		c := old.conf
		g.proxies[proxy] = start(g.t, c)
	})
}

// reload loads another configuration into a process, one that says no more than
// which it is.
func (g *rig) reload(proxy int) {
	g.reloads++
	g.proxies[proxy].reload(g.t, lines(fmt.Sprintf("header X-Configuration %d", g.reloads), g.site))
}

// stop has a process stand still for longer than a lease.
func (g *rig) stop(proxy int) {
	g.proxies[proxy].pause(g.t)
	g.last(beyondLease)
	g.proxies[proxy].resume(g.t)
}

const beyondLease = int(loadLease/time.Millisecond) * 13 / 10

// lossless are the faults in which a store that keeps what it has acknowledged
// loses nothing.
var lossless = []fault{
	{"a slow link", history.Unreachable, false, suffering(slow, 600)},
	{"lost replies", history.Unreachable, false, suffering(lostReplies, 300)},
	{"lost requests", history.Unreachable, false, suffering(lostRequests, 300)},
	{"cut replies", history.Unreachable, false, suffering(cutReplies, 500)},
	{"a cut link", history.Unreachable, false, func(g *rig, proxy int) { g.cutOff(proxy, 200) }},
	{"a link cut beyond the lease", history.Unreachable, false, func(g *rig, proxy int) { g.cutOff(proxy, beyondLease) }},
	{"a link cut and then killed", history.Unreachable, false, func(g *rig, proxy int) {
		g.links[proxy].cut()
		g.last(100)
		g.kill(proxy)
		g.links[proxy].mend(g.t)
	}},
	{"killed", history.Killed, false, (*rig).kill},
	{"stopped beyond the lease", history.Stopped, false, (*rig).stop},
	{"reloaded", history.Reloaded, false, (*rig).reload},
	{"Redis stopped", history.Unreachable, true, func(g *rig, _ int) {
		g.server.Pause()
		g.last(200)
		g.server.Resume()
	}},
	{"Redis stopped beyond the lease", history.Unreachable, true, func(g *rig, _ int) {
		g.server.Pause()
		g.last(beyondLease)
		g.server.Resume()
	}},
	{"Redis killed", history.Unreachable, true, func(g *rig, _ int) {
		g.server.Kill()
		g.last(50)
		g.server.Restart()
	}},
}

// faultsOfTheFile are those of a process with a store file. Some stand there twice,
// to come more often.
var faultsOfTheFile = []fault{
	{"killed", history.Killed, false, (*rig).kill},
	{"reloaded", history.Reloaded, false, (*rig).reload},
	{"killed", history.Killed, false, (*rig).kill},
	{"reloaded", history.Reloaded, false, (*rig).reload},
	{"stopped beyond the lease", history.Stopped, false, (*rig).stop},
}

// injectAll goes through the faults in random order, again and again, until the
// time is over. Between two there is peace, in which leases are renewed and
// operators work.
func (g *rig) injectAll(faults []fault, over func() bool, operate func(*caddy)) {
	for {
		for _, i := range g.chance.Perm(len(faults)) {
			if over() {
				return
			}
			g.inject(faults[i])
			g.last(150)
			operate(g.proxies[g.chance.IntN(len(g.proxies))])
			g.last(150)
		}
	}
}

// watchMachine writes down when the machine stood still for so long that a
// process may have done so, too, until it is told to end.
func watchMachine(now func() time.Duration, end <-chan struct{}) (stalls []history.Fault) {
	const tick, tolerated = 20 * time.Millisecond, 120 * time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for before := now(); ; {
		select {
		case <-ticker.C:
		case <-end:
			return stalls
		}
		after := now()
		if after-before > tolerated {
			stalls = append(stalls, history.Fault{
				Kind: history.Stopped, Name: fmt.Sprintf("the machine stood still for %s", after-before),
				Proxy: history.Everyone, Start: before, End: after,
			})
		}
		before = after
	}
}
