package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// reloadAs loads a configuration that differs in its global options.
func (p *caddy) reloadAs(t *testing.T, change func(*conf)) {
	t.Helper()
	change(&p.conf)
	p.reload(t, p.conf.site)
}

// A limit that a reload changes counts for a store that stays open, in both
// directions, and for what is in flight already.
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
		p := start(t, conf{store: store, dedup: limits("in_flight 1"), site: lines("dedup", proxyTo(up))})
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

// A store that stays open over a reload writes to the new log: here what the
// engine says of a run that is released.
func TestReloadReachesTheLogOfAnOpenStore(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		dir := shortTempDir(t)
		logTo := func(name string) string {
			return fmt.Sprintf("log {\noutput file %s\nformat json\n}", filepath.Join(dir, name))
		}
		read := func(name string) string {
			text, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			return string(text)
		}
		up := startUpstream(t, answersStatus(500))
		p := startQuiet(t, conf{store: store, global: logTo("old.log"), site: lines(keyHeader, "dedup", proxyTo(up))})
		const released = "released: the next request with the key runs"
		said := func(name, key string) bool {
			return strings.Contains(read(name), released) && strings.Contains(read(name), key)
		}
		first := p.post(t, "/", "first", "body").Header.Get("X-Key")
		eventually(t, "the old log says so", func() bool { return said("old.log", first) })
		p.reloadAs(t, func(c *conf) { c.global = logTo("new.log") })
		second := p.post(t, "/", "second", "body").Header.Get("X-Key")
		eventually(t, "the new log says so", func() bool { return said("new.log", second) })
		if said("old.log", second) {
			t.Error("the old log says so too")
		}
	})
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

// startQuiet is start for a process whose log goes elsewhere than to its standard
// error: that it serves is asked for.
func startQuiet(t *testing.T, c conf) *caddy {
	t.Helper()
	c.dir, c.port = shortTempDir(t), freeport.Of(t)
	file := filepath.Join(c.dir, "Caddyfile")
	if err := os.WriteFile(file, bytes.TrimSpace([]byte(c.caddyfile(c.dir, c.port))), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, c.dir, "run", "--config", file, "--adapter", "caddyfile")
	p.conf, p.addr = c, fmt.Sprintf("127.0.0.1:%d", c.port)
	eventually(t, "it serves, and its store is open", func() bool {
		got, err := try(oneShot, p.newPost("/", "startup", ""))
		return err == nil && got.Status != http.StatusServiceUnavailable
	})
	return p
}
