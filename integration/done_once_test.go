package integration

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

var doneOnceKills = flag.Int("doneonce.kills", 4, "how often TestDoneOnce kills proxies, and how often the service")

// A service with the lines of docs/done-once.md for FastAPI does every operation once, though its proxies, the
// service itself, and the data of Redis are lost in the middle of runs.
func TestDoneOnce(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH, in which the service is written")
	}
	redis := redistest.Start(t)
	port, database, snippet := freeport.Of(t), shortTempDir(t)+"/orders", blockWith(t, "python", "ON CONFLICT (dedup_key)")
	service := &restarted{start: func() *caddy {
		return startProcessWith(t, ".", os.Environ(), python, "testdata/done_once.py", fmt.Sprint(port), database, snippet)
	}}
	proxy := func() *restarted {
		c := conf{store: storeAt(redis.Addr), port: freeport.Of(t), dir: shortTempDir(t),
			site: lines(dedupBlock("lease 2s", "release_on 5xx 4xx"), fmt.Sprintf("reverse_proxy 127.0.0.1:%d", port))}
		return &restarted{start: func() *caddy { return start(t, c) }}
	}
	proxies := []*restarted{proxy(), proxy()}
	for _, p := range append(proxies, service) {
		p.now = p.start()
	}

	// Each client sends one operation after the other, each until it is done.
	var done atomic.Int64
	stop := make(chan struct{})
	var ids sync.Map // of the answers, by operation
	var clients sync.WaitGroup
	for n := range 8 {
		clients.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				item := fmt.Sprintf("item-%d-%d", n, i)
				for retry := 0; ; retry++ {
					got, err := try(oneShot, proxies[(n+retry)%2].current().newPost("/orders", item, item))
					if err == nil && got.Status == http.StatusCreated {
						ids.Store(item, got.Body)
						break
					}
					time.Sleep(10 * time.Millisecond) // as a client that waits before its retry
				}
				done.Add(1)
			}
		})
	}
	progress := func() {
		before := done.Load()
		eventually(t, "operations go on", func() bool { return done.Load() >= before+16 })
	}
	for kill := range *doneOnceKills {
		progress()
		proxies[kill%2].restart(t)
		progress()
		service.restart(t)
		if kill == *doneOnceKills/2 {
			redis.Do("FLUSHALL")
		}
	}
	progress()
	close(stop)
	clients.Wait()

	answered := map[string]string{}
	ids.Range(func(item, id any) bool { answered[id.(string)] += item.(string); return true })
	var got reply
	eventually(t, "the service answers", func() bool {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/", port), nil)
		if err == nil {
			got, err = try(oneShot, request)
		}
		return err == nil
	})
	operations, twice := int64(0), 0
	for line := range strings.Lines(got.Body) {
		var item string
		var delivered, times int
		if _, err := fmt.Sscan(line, &item, &delivered, &times); err != nil || times != 1 {
			t.Errorf("done other than once: %s", line)
		}
		operations++
		if delivered > 1 {
			twice++
		}
	}
	if operations != done.Load() || int64(len(answered)) != done.Load() {
		t.Errorf("of %d operations the service knows %d, and has answered with %d orders", done.Load(), operations, len(answered))
	}
	t.Logf("%d operations, %d of them delivered more than once, each done once", operations, twice)
}

// restarted is a process that is killed and started again.
type restarted struct {
	start func() *caddy
	mu    sync.Mutex
	now   *caddy
}

func (r *restarted) current() *caddy {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (r *restarted) restart(t *testing.T) {
	t.Helper()
	r.now.kill(t)
	next := r.start()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = next
}
