package integration

import (
	"flag"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var chaosFlood = flag.Duration("chaos.flood", 0, "how long the flood of unique keys lasts; it goes through two rounds at least")

const (
	// floodKeys is how many keys a round of the flood has.
	floodKeys = 2000
	// floodGrowth is how much the live memory of a process may differ between two
	// rounds: half a kilobyte that stays of each key would be as much.
	floodGrowth = 1000 << 10
	// secondFlush is the goroutine that makes a second flush to Redis, where the first one
	// takes long. It stays for the next time, and a quick first round may have had none.
	secondFlush = 1
)

// However many keys come, nothing of them stays in the process but local copies, which
// have a limit of their own: they are in the store. The memory store is bounded by its own limit.
func TestFloodOfUniqueKeysLeavesNothingInTheProcess(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, nil)
	up.answer = func(w http.ResponseWriter, r *http.Request, n run) {
		up.mu.Lock()
		up.seen = nil // the test itself must stay small, too
		up.mu.Unlock()
		if strings.HasSuffix(n.Key, "7") {
			answersStatus(500)(w, r, n)
			return
		}
		answers201(w, r, n)
	}
	for name, store := range map[string]string{"redis": redisStore(t), "file": "store file"} {
		t.Run(name, func(t *testing.T) {
			p := start(t, conf{store: store, dedup: "local_copies off", site: lines(dedupBlock("retention 1m"), proxyTo(up)), global: "log {\nexclude http.handlers.dedup dedup\n}"})
			flood(t, p, "first")
			before, routines := p.liveMemory(t), p.ownGoroutines(t)+secondFlush
			begun := time.Now()
			for n := 1; n == 1 || time.Since(begun) < *chaosFlood; n++ {
				flood(t, p, fmt.Sprint("round ", n))
				eventually(t, fmt.Sprintf("no more than %d goroutines are the module's own", routines), func() bool {
					return p.ownGoroutines(t) <= routines
				})
				if after := p.liveMemory(t); after > before+floodGrowth {
					t.Fatalf("after %d keys and again %d the process holds %d KiB, and it held %d KiB", floodKeys, n*floodKeys, after>>10, before>>10)
				}
			}
		})
	}
}

// flood sends a round of keys, each of them twice at once.
func flood(t *testing.T, p *caddy, round string) {
	t.Helper()
	share(16, 2*floodKeys, func(client *http.Client, n int) {
		r := p.newPost("/", fmt.Sprintf("%s key %d", round, n/2), strings.Repeat("x", 500))
		r.GetBody = nil
		if got, err := try(client, r); err != nil || got.Status != 201 && got.Status != 500 {
			t.Errorf("%s: key %d got %d %q, %v", round, n/2, got.Status, got.Body, err)
		}
	})
}

// share has so many clients, each with a connection of its own, send so many requests, one after the other.
func share(clients, requests int, send func(client *http.Client, n int)) {
	client := newLoadClient()
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = clients
	defer client.CloseIdleConnections()
	var next atomic.Int64
	var all sync.WaitGroup
	for range clients {
		all.Go(func() {
			for n := next.Add(1) - 1; n < int64(requests); n = next.Add(1) - 1 {
				send(client, int(n))
			}
		})
	}
	all.Wait()
}

var heapAlloc = regexp.MustCompile(`# HeapAlloc = (\d+)`)

// liveMemory returns the bytes on the process's heap that are in use.
func (p *caddy) liveMemory(t *testing.T) int {
	t.Helper()
	var profile string
	for range 3 { // what is pooled goes with the second collection
		_, profile = p.askAdmin(t, "GET", "/debug/pprof/heap?gc=1&debug=1", "", "")
	}
	found := heapAlloc.FindStringSubmatch(profile)
	if found == nil {
		t.Fatal("the heap profile does not tell HeapAlloc")
	}
	live, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return live
}

// ownGoroutines counts the goroutines of the process that were started by this
// module, or are in it.
func (p *caddy) ownGoroutines(t *testing.T) int {
	t.Helper()
	_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
	count := 0
	for stack := range strings.SplitSeq(dump, "\n\n") {
		if strings.Contains(stack, "github.com/caddy-dedup/caddy-dedup/internal/") {
			count++
		}
	}
	return count
}
