package integration

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

var rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// anonymous returns the anonymous memory of the process, in bytes: its heap and its stacks, but
// not the files that it maps.
func (p *caddy) anonymous(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := rssAnon.FindSubmatch(status)
	if found == nil {
		t.Fatal("the process has no RssAnon")
	}
	kilobytes, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes << 10
}

// wantAtMost fails the test if the process has taken more than so many bytes of anonymous memory,
// beyond those that it has now, when the returned function is called.
func (p *caddy) wantAtMost(t *testing.T, bytes int) (check func()) {
	t.Helper()
	p.liveMemory(t) // collects the garbage
	before, peak := p.anonymous(t), 0
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				peak = max(peak, p.anonymous(t))
			}
		}
	}()
	return func() {
		t.Helper()
		close(stop)
		<-stopped
		t.Logf("the process took %d MiB more", (peak-before)>>20)
		if peak-before > bytes {
			t.Errorf("the process took %d MiB more, want at most %d MiB", (peak-before)>>20, bytes>>20)
		}
	}
}

// The body of a replay is read from the store when there is room for it.
func TestReplaysAreReadWhenThereIsRoom(t *testing.T) {
	t.Parallel()
	const clients, size = 40, 6 << 20
	for name, store := range map[string]string{"redis": redisStore(t), "file": "store file"} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, answersLarge(size))
			p := start(t, conf{store: store, dedup: lines("local_copies off", limits("buffered 32MiB")), site: lines(dedupBlock("max_response_body 8MiB"), proxyTo(up))})
			for n := range clients {
				p.post(t, "/", fmt.Sprint(n), "body")
			}
			check := p.wantAtMost(t, 96<<20)
			var all []*pending
			for n := range clients {
				all = append(all, p.postLater("/", fmt.Sprint(n), "body"))
			}
			for _, got := range replies(t, all) {
				if got.Status != 200 || len(got.Body) != size || !got.replayed() {
					t.Errorf("a replay got %d and %d bytes", got.Status, len(got.Body))
				}
			}
			check()
		})
	}
}

// Slow downloads leave the room to others when their clients have read what was recorded.
func TestSlowDownloadsHoldNoRoom(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "other" {
			answers201(w, r, n)
			return
		}
		answersLarge(30<<20)(w, r, n)
	})
	p := start(t, conf{store: "store memory", dedup: limits("buffered 3MiB"), site: lines(dedupBlock("max_response_body 512KiB"), proxyTo(up))})
	for n := range 6 {
		slowly(stalled(t, p, fmt.Sprint(n)))
	}
	for n := range 6 {
		up.awaitRuns(t, fmt.Sprint(n), 1)
	}
	eventually(t, "they take no place in in_flight", func() bool { return p.scrape(t)["caddy_dedup_in_flight"] == 0 })
	eventually(t, "they take no room", func() bool { return p.scrape(t)["caddy_dedup_buffered_bytes"] == 0 })
	check := p.wantAtMost(t, 16<<20)
	wantFresh(t, p.post(t, "/", "other", ""), 201, "run 1 of other")
	check()
}
