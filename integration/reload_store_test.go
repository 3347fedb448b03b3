package integration

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// reloadAs loads a configuration that differs in its global options.
func (p *caddy) reloadAs(t *testing.T, change func(*conf)) {
	t.Helper()
	change(&p.conf)
	p.reload(t, p.conf.site)
}

// A limit that a reload changes counts for a store that stays open, in both
// directions, and for what is in flight already. It is no failure of the store's: nothing passes unprotected.
func TestReloadReachesTheLimits(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		gates := map[string]*gate{"one": newGate(t), "two": newGate(t)}
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if g := gates[n.Key]; g != nil {
				<-g.opened
			}
			answers201(w, r, n)
		})
		p := start(t, conf{store: store, dedup: limits("in_flight 1"), site: lines(dedupBlock("on_store_error pass"), proxyTo(up))})
		one := p.postLater("/", "one", "body")
		up.awaitRuns(t, "one", 1)
		wantProblem(t, p.post(t, "/", "two", "body"), 503, "overloaded")
		p.reloadAs(t, func(c *conf) { c.dedup = limits("in_flight 2") })
		two := p.postLater("/", "two", "body")
		up.awaitRuns(t, "two", 1)
		wantProblem(t, p.post(t, "/", "three", "body"), 503, "overloaded")
		gates["one"].open()
		gates["two"].open()
		wantFresh(t, one.reply(t), 201, "run 1 of one")
		wantFresh(t, two.reply(t), 201, "run 1 of two")
		wantFresh(t, p.post(t, "/", "three", "body"), 201, "run 1 of three")
	})
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

// Encryption keys that were replaced behind the same path are those that count
// after a reload.
func TestReloadReadsEncryptionKeysAgain(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answers201)
		dir := shortTempDir(t)
		c := conf{store: store, dedup: keyFiles(t, dir, "a"), site: lines("dedup", proxyTo(up))}
		p := start(t, c)
		first := p.post(t, "/", "k", "body")
		wantReplay(t, p.post(t, "/", "k", "body"), first)

		other := keyFiles(t, shortTempDir(t), "b")
		from, to := strings.Trim(strings.Fields(other)[1], "{}"), filepath.Join(dir, "a.key")
		key, err := os.ReadFile(strings.TrimPrefix(from, "file."))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, key, 0o600); err != nil {
			t.Fatal(err)
		}
		wantReplay(t, p.post(t, "/", "k", "body"), first) // until the reload
		p.reloadAs(t, func(c *conf) { c.global = "grace_period 20s" })
		wantProblem(t, p.post(t, "/", "k", "body"), 500, "record_unreadable")
		wantFresh(t, p.post(t, "/", "next", "body"), 201, "run 1 of next")
		up.wantRuns(t, "k", 1)
	})
}

// A configuration that names a store which is taken by another process fails to
// load, and the one that runs goes on serving meanwhile.
func TestReloadToAStoreThatDoesNotOpen(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir := shortTempDir(t)
	taken := filepath.Join(dir, "taken")
	start(t, conf{store: "store file " + taken, site: lines("dedup", proxyTo(up))})
	p := start(t, conf{store: "store file", site: lines("dedup", proxyTo(up))})
	first := p.post(t, "/", "k", "body")

	next := p.conf
	next.store = "store file " + taken
	failed := make(chan string)
	go func() {
		_, answer := p.askAdmin(t, "POST", "/load", "text/caddyfile", next.caddyfile(p.conf.dir, p.conf.port))
		failed <- answer
	}()
	for done := false; !done; {
		select {
		case answer := <-failed:
			done = true
			if !strings.Contains(answer, "is in use by process") {
				t.Errorf("the reload was answered %s", answer)
			}
		default:
			// The failing configuration may have opened its listener before its store:
			// who comes to that one is refused, or cut off when it ends.
			got, err := try(oneShot, p.newPost("/", "k", "body"))
			if err == nil && got.Status == http.StatusServiceUnavailable {
				wantProblem(t, got, 503, "store_unavailable")
			} else if err == nil {
				wantReplay(t, got, first)
			}
		}
	}
	eventually(t, "the port has one listener again", func() bool { return listeners(t, p.conf.port) <= 1 })
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	up.wantRuns(t, "k", 1)
}
