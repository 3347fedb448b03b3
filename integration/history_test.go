package integration

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/integration/history"
)

var (
	chaosFor  = flag.Duration("chaos.for", 16*time.Second, "how long the checked histories last")
	chaosKeys = flag.Int("chaos.keys", 0, "how many keys a checked history must have, within chaos.for; 0 for no such limit")
	chaosSeed = flag.Uint64("chaos.seed", 0, "the seed of the checked histories; 0 for a new one")
	chaosKeep = flag.String("chaos.keep", "", "the directory for histories that fail; empty for the system's temporary one")
)

const (
	// loadLease is the lease of the claims in a load.
	loadLease = 2 * time.Second
	// loadJitter is how late a process may be without a fault.
	loadJitter = 300 * time.Millisecond
	// loadShared is how long a process may not know that a run elsewhere has ended: it
	// looks for each request that comes, or has begun to look before, and gives each
	// look half a second, twice.
	loadShared = time.Second
	// loadRetry is how long a process may need to store what it could not: it pauses
	// for up to a third of the lease, and a try asks the store up to four times, half
	// a second each. The rest is for new connections.
	loadRetry = 4 * time.Second
)

// loadTerms is what a key of the load is served under, and its path.
type loadTerms string

const (
	underRelease loadTerms = "release"
	underHold    loadTerms = "hold"
	onceAtMost   loadTerms = "once"
	twiceAtMost  loadTerms = "twice"
)

var allTerms = []loadTerms{underRelease, underHold, onceAtMost, twiceAtMost}

// maxAttempts is the limit of attempts, 0 for none.
func (l loadTerms) maxAttempts() int {
	return map[loadTerms]int{onceAtMost: 1, twiceAtMost: 2}[l]
}

// loadSite serves keys under both answers to an unknown end, and with limits of
// their attempts. A dial lasts longer than any fault: else a process that stood still
// would answer 502 for a run that its upstream never saw, and which no history has.
func loadSite(upstream string) string {
	proxy := lines("reverse_proxy "+upstream+" {", "transport http {", "dial_timeout 1m", "}", "}")
	block := func(terms loadTerms, words ...string) string {
		words = append(words, "force X-Force", fmt.Sprintf("lease %s", loadLease), "wait 1s")
		return lines("handle /"+string(terms)+" {", "header >X-Key {http.dedup.key}", dedupBlock(words...), proxy, "}")
	}
	return lines(block(underRelease, "on_unknown release"), block(underHold, "on_unknown hold"),
		block(onceAtMost, "max_attempts 1"), block(twiceAtMost, "max_attempts 2"))
}

// Random requests for random keys over three processes and one Redis, which keeps
// what it has acknowledged, while one after the other of the faults is on.
func TestHistoriesUnderFaults(t *testing.T) {
	size := loadSize{*chaosFor, *chaosKeys, []string{"replayed", "run", "run again", "forced", "lost", "request_in_flight", "outcome_unknown",
		"idempotency_key_reused", "attempts_exhausted", "failure kept", "freed"}}
	checkHistory(t, makeHistory(t, size, threeOverRedis("--appendonly", "yes", "--appendfsync", "always"), lossless))
}

// The same over one process with a file, which is killed and started again.
func TestHistoriesOfTheFileStore(t *testing.T) {
	size := loadSize{lasts: *chaosFor / 4, kinds: []string{"replayed", "run", "run again", "lost"}}
	h := makeHistory(t, size, oneWithAFile, faultsOfTheFile)
	h.Exclusive = true
	checkHistory(t, h)
}

// A store that loses what it has acknowledged cannot keep a key from running
// again. No answer may be a wrong one all the same.
func TestHistoriesWhereRedisLosesItsData(t *testing.T) {
	forgetful := []fault{
		{"Redis killed, with all its data", history.Unreachable, true, func(g *rig, _ int) {
			g.server.Kill()
			g.last(50)
			g.server.Restart()
		}},
		{"Redis emptied", history.Unreachable, true, func(g *rig, _ int) {
			client := redisClient(g.t, g.server)
			if err := client.FlushAll(g.t.Context()).Err(); err != nil {
				g.t.Fatal(err)
			}
		}},
	}
	size := loadSize{lasts: min(*chaosFor/4, time.Minute), kinds: []string{"replayed", "run", "run again"}}
	h := makeHistory(t, size, threeOverRedis(), append(forgetful, lossless[:5]...))
	h.Forgetful = true
	checkHistory(t, h)
}

// loadSize is how long a load lasts, and after how many keys it ends before; 0 for no
// such end.
type loadSize struct {
	lasts time.Duration
	keys  int
	// kinds are the answers and runs that it has to come to. Without a number of keys
	// it lasts longer for them on a slow machine, for up to patience.
	kinds []string
}

// makeHistory has a load run under faults. A load that does not come to its keys or
// kinds fails the test.
func makeHistory(t *testing.T, size loadSize, start rigging, faults []fault) *history.History {
	t.Helper()
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed: -chaos.seed %d", seed)
	begun := time.Now()
	now := func() time.Duration { return time.Since(begun) }
	up := startWitness(t, seed, now)
	g := newRig(t, seed, now, loadSite(up.addr))
	start(g)
	l := &load{seed: seed, addrs: g.addrs(), now: now}

	endOfWatch, stalls := make(chan struct{}), make(chan []history.Fault, 1)
	go func() { stalls <- watchMachine(now, endOfWatch) }()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	loaded := make(chan struct{})
	go func() {
		defer close(loaded)
		l.run(ctx)
	}()
	over := func() bool {
		if size.keys > 0 { // which have to come within its time
			return now() > size.lasts || l.keyCount() >= size.keys
		}
		if now() <= size.lasts {
			return false
		}
		return now() > size.lasts+patience || len(missingKinds(l.soFar(nil, up.written()), size.kinds)) == 0
	}
	g.injectAll(faults, over, func(p *caddy) { l.free(t, p, g.chance) })
	stop()
	<-loaded
	l.lookAtAll(g.faults, up.written)
	close(endOfWatch)

	h := l.soFar(append(g.faults, <-stalls...), up.written())
	h.Requests, h.Runs = slices.Clone(h.Requests), slices.Clone(h.Runs)
	slices.SortFunc(h.Requests, func(a, b history.Request) int { return cmp.Compare(a.End, b.End) })
	slices.SortFunc(h.Runs, func(a, b history.Run) int { return cmp.Compare(a.Start, b.Start) })
	slices.SortFunc(h.Faults, func(a, b history.Fault) int { return cmp.Compare(a.Start, b.Start) })
	t.Logf("%s: %d keys, %d requests, %d runs: %v", now().Round(time.Second), l.keyCount(), len(h.Requests), len(h.Runs), kinds(h))
	for _, f := range h.Faults {
		t.Logf("%7d to %7d ms: %s, process %d", f.Start.Milliseconds(), f.End.Milliseconds(), f.Name, f.Proxy)
	}
	for _, kind := range missingKinds(h, size.kinds) {
		t.Errorf("the load never came to %q: %v", kind, kinds(h))
	}
	if l.keyCount() < size.keys {
		t.Errorf("%d keys within %s, want %d", l.keyCount(), size.lasts, size.keys)
	}
	return h
}

func (l *load) keyCount() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.keys)
}

// checkHistory fails the test for each key whose history is not allowed, and
// keeps the first few.
func checkHistory(t *testing.T, h *history.History) {
	t.Helper()
	const keep = 5
	for i, v := range h.Check() {
		if i == keep {
			t.Error("there are more")
			return
		}
		path, err := h.Save(*chaosKeep, v)
		if err != nil {
			t.Error(err)
		}
		t.Errorf("the history of %s is not allowed; it is kept in %s", v.Key, path)
		for _, wrong := range v.Wrong {
			t.Errorf("%s: %s", v.Key, wrong)
		}
	}
}
