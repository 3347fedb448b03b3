package integration

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rssAnon = regexp.MustCompile(`RssAnon:\s+(\d+) kB`)

// anonymous returns the anonymous memory of the process, in bytes: its heap and its stacks, but
// not the files that it maps. It is 0 if the process has ended.
func (p *caddy) anonymous() int {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	found := rssAnon.FindSubmatch(status)
	if found == nil {
		return 0
	}
	kilobytes, _ := strconv.Atoi(string(found[1])) // the pattern has digits only
	return kilobytes << 10
}

// underMemoryLimit is the beginning of a command that makes Go collect garbage before the process takes
// more than so many bytes, if what is in use allows it. Otherwise the peak depends on how busy the
// machine is while garbage is collected.
func underMemoryLimit(bytes int) []string {
	return []string{"env", fmt.Sprintf("GOMEMLIMIT=%d", bytes)}
}

// wantAtMost fails the test if the process has taken more than so many bytes of anonymous memory,
// beyond those that it has now, when the returned function is called.
func (p *caddy) wantAtMost(t *testing.T, bytes int) (check func()) {
	t.Helper()
	p.liveMemory(t) // collects the garbage
	before, peak := p.anonymous(), 0
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				peak = max(peak, p.anonymous())
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
	const clients, size = 24, 6 << 20
	up := startUpstream(t, answersLarge(size))
	p := start(t, conf{store: redisStore(t), dedup: lines("local_copies off", limits("buffered 32MiB")), site: lines(dedupBlock("max_response_body 8MiB"), proxyTo(up)), under: underMemoryLimit(96 << 20)})
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
}

// However many clients read nothing, their responses take no more than the limit, and one beyond
// it. All are kept.
func TestClientsThatReadNothing(t *testing.T) {
	t.Parallel()
	const clients, size = 200, 1 << 20
	g := newGate(t)
	up := startUpstream(t, g.before(answersWhole(size)))
	p := start(t, conf{store: "store file", dedup: lines("local_copies off", limits("buffered 32MiB", "client_idle 1s")), site: lines("dedup", proxyTo(up))})
	for n := range clients {
		stalled(t, p, fmt.Sprint(n))
	}
	eventually(t, "all are in flight", func() bool { return p.scrape(t)["caddy_dedup_in_flight"] == clients })
	check := p.wantAtMost(t, 224<<20)
	g.open()
	eventually(t, "all are kept", func() bool { return p.scrape(t)[runs("api", "kept")] == clients })
	check()
}

// Streams that declare bodies and send none take no room.
func TestStreamsThatDeclareBodies(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", global: h2c, dedup: limits("buffered 3MiB"), site: lines("dedup", proxyTo(up))})
	check := p.wantAtMost(t, 32<<20)
	client := dialStuck(t, p)
	for n := range 240 {
		client.declare(n, 1<<20)
	}
	eventually(t, "their bodies are awaited", func() bool {
		_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
		return strings.Count(dump, "(*Body).readChunks(") == 240
	})
	if held := p.scrape(t)["caddy_dedup_buffered_bytes"]; held != 0 {
		t.Errorf("they take %v bytes", held)
	}
	wantFresh(t, p.post(t, "/", "other", strings.Repeat("x", 100_000)), 201, "run 1 of other")
	check()
}

// Replays that are not read take no more than the limit.
func TestReplaysThatAreNotRead(t *testing.T) {
	t.Parallel()
	const clients, size = 300, 512 << 10
	up := startUpstream(t, answersWhole(size))
	p := start(t, conf{store: "store file", dedup: lines("local_copies off", limits("buffered 32MiB", "client_idle 1s")), site: lines("dedup", proxyTo(up))})
	p.post(t, "/", "k", "body")
	check := p.wantAtMost(t, 144<<20)
	for range clients {
		stalled(t, p, "k")
	}
	eventually(t, "all were answered", func() bool { return p.scrape(t)[requests("api", "replayed")] == clients })
	check()
	up.wantRuns(t, "k", 1)
}

// Large responses that do not fit the limit together are all kept, one after the other.
func TestLargeResponsesTogether(t *testing.T) {
	t.Parallel()
	const size = 7 << 20
	g := newGate(t)
	up := startUpstream(t, g.before(answersLarge(size)))
	p := start(t, conf{store: "store file", dedup: lines("local_copies off", limits("buffered 32MiB")), site: lines(dedupBlock("max_response_body 8MiB"), proxyTo(up))})
	var all []*pending
	for n := range 5 {
		all = append(all, p.postLater("/", fmt.Sprint(n), "body"))
		up.awaitRuns(t, fmt.Sprint(n), 1)
	}
	check := p.wantAtMost(t, 128<<20)
	g.open()
	got := replies(t, all)
	check()
	for n, first := range got {
		if first.Status != 200 || len(first.Body) != size {
			t.Errorf("response %d: %d, %d bytes", n, first.Status, len(first.Body))
		}
		wantReplay(t, p.post(t, "/", fmt.Sprint(n), "body"), first)
	}
}

// What bodies are parsed into counts: no body makes the process take much more than the limit, whatever
// is in it. One that would take more than that by itself is too large.
func TestParsedBodiesCount(t *testing.T) {
	t.Parallel()
	const size = 8<<20 - 1<<10
	var wide strings.Builder
	for n := 0; wide.Len() < size; n++ {
		fmt.Fprintf(&wide, `"%07x":0,`, n)
	}
	for name, c := range map[string]struct {
		body     string // before a number and behind it
		tooLarge bool
	}{
		"digits":       {`{"a":[` + strings.Repeat("0,", size/2) + `0],`, true},
		"fewer digits": {`{"a":[` + strings.Repeat("0,", size/4) + `0],`, false},
		"members":      {"{" + wide.String(), false},
	} {
		t.Run(name, func(t *testing.T) {
			up := startUpstream(t, answers201)
			p := start(t, conf{store: "store memory", dedup: limits("buffered 64MiB"),
				site: lines("handle /id {", dedupBlock("key json /id", "fingerprint json"), proxyTo(up), "}",
					"handle /content {", dedupBlock("key content", "exclude /*/* /none"), proxyTo(up), "}")})
			for _, path := range []string{"/id", "/content"} {
				check := p.wantAtMost(t, 128<<20)
				var all []*pending
				for n := range 4 {
					all = append(all, p.postLater(path, "", fmt.Sprintf(`%s"id":%d}`, c.body, n)))
				}
				for _, got := range replies(t, all) {
					switch {
					case c.tooLarge:
						if problem := wantProblem(t, got, 413, "request_too_large"); !strings.Contains(problem.Detail, "limits { buffered }, 67108864 bytes") {
							t.Errorf("%s: the detail is %q", path, problem.Detail)
						}
					case got.Status == 503:
						wantProblem(t, got, 503, "overloaded")
					case got.Status != 201:
						t.Errorf("%s: got %d %s", path, got.Status, got.Body)
					}
				}
				check()
			}
			if held := p.scrape(t)["caddy_dedup_buffered_bytes"]; held != 0 {
				t.Errorf("%v bytes are still taken", held)
			}
		})
	}
}
