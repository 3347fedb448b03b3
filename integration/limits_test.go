package integration

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
)

func limits(l ...string) string { return "limits {\n" + lines(l...) + "\n}" }

func TestRunsOverTheirLimitAreRefused(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", dedup: limits("in_flight 1"), site: lines(
		"handle /pass {", dedupBlock("on_store_error pass"), proxyTo(up), "}", "handle {", "dedup", proxyTo(up), "}")})
	first := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	wantProblem(t, p.post(t, "/", "other", "body"), 503, "overloaded")
	// A limit of ours is no failure of the store's: nothing passes unprotected.
	wantProblem(t, p.post(t, "/pass", "other", "body"), 503, "overloaded")
	g.open()
	wantFresh(t, first.reply(t), 201, "run 1 of k")
	wantFresh(t, p.post(t, "/", "other", "body"), 201, "run 1 of other")
}

func TestBodiesOverTheBufferAreRefused(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "large" {
			fmt.Fprint(w, strings.Repeat("x", 4096))
			return
		}
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", dedup: limits("buffered 2KiB"), site: lines("dedup", proxyTo(up))})
	wantProblem(t, p.post(t, "/", "k", strings.Repeat("x", 4096)), 503, "overloaded")
	up.wantRuns(t, "k", 0)
	wantFresh(t, p.post(t, "/", "k", "small"), 201, "run 1 of k")
	if got := p.post(t, "/", "large", "small"); got.Status != 200 || len(got.Body) != 4096 {
		t.Errorf("got %d and %d bytes", got.Status, len(got.Body))
	}
	// What is in flight goes on: its response is kept, though there was no room.
	if got := p.post(t, "/", "large", "small"); got.Status != 200 || len(got.Body) != 4096 || !got.replayed() {
		t.Errorf("the duplicate got %d and %d bytes", got.Status, len(got.Body))
	}
	up.wantRuns(t, "large", 1)
}

func TestMemoryStoreOverItsLimitRefuses(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", dedup: limits("memory_store 64KiB"), site: lines("dedup", proxyTo(up))})
	first := p.post(t, "/", "0", "body")
	for n := 1; ; n++ {
		got := p.post(t, "/", fmt.Sprint(n), "body")
		if got.Status == 201 {
			if n > 1000 {
				t.Fatal("the store takes more than its limit")
			}
			continue
		}
		wantProblem(t, got, 503, "overloaded")
		break
	}
	wantReplay(t, p.post(t, "/", "0", "body"), first) // nothing is evicted
}

// A reload that is refused changes nothing of the limits.
func TestRefusedReloadLeavesTheLimits(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	stopped := func(e entry) bool { return e.text("msg") == "stopped previous server" }
	for n := range 6 { // which app starts first is up to chance
		refused := conf{store: "store memory", dedup: limits("in_flight 1"), sites: fmt.Sprintf(
			"http://:PORT {\n%s\n}\nhttp://%s {\n%s\n}", lines("dedup", proxyTo(up)), taken.Addr(), lines("dedup", proxyTo(up)))}
		status, body := p.askAdmin(t, http.MethodPost, "/load", "text/caddyfile", refused.caddyfile(p.conf.dir, p.conf.port))
		if status == 200 {
			t.Fatalf("the configuration was loaded: %s", body)
		}
		eventually(t, "the admin endpoint of before, which resets the next connection, is gone", func() bool { return len(p.log.find(stopped)) > n })
	}
	var all []*pending
	for _, key := range []string{"one", "two", "three"} {
		request := p.postLater("/", key, "body")
		eventually(t, "the upstream has begun a run of "+key, func() bool {
			select {
			case <-request.done:
				// The refused configuration's listener, which Caddy closes in the
				// background, had taken the connection.
				if request.err != nil {
					request = p.postLater("/", key, "body")
				}
			default:
			}
			return len(up.runs(key)) > 0
		})
		all = append(all, request)
	}
	g.open()
	for _, reply := range replies(t, all) {
		if reply.Status != 201 {
			t.Errorf("got %d %s", reply.Status, reply.Body)
		}
	}
}
