package integration

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// health runs `caddy-dedup health` beside the process, with its admin API named.
func (p *caddy) health(t *testing.T, want int, args ...string) string {
	t.Helper()
	output, code := command(t, p.conf.dir, append([]string{"health", "--address", "unix/" + adminSocket(p.conf.dir)}, args...)...)
	if code != want {
		t.Fatalf("health %q ended with %d, want %d:\n%s", args, code, want, output)
	}
	return output
}

// What a probe of a site, and the command, see of a store that hangs and comes back, and of the process.
func TestHealthCommand(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup_health /live live", "dedup_health /ready", "dedup", proxyTo(up))})
	mustSay(t, p.health(t, 0), "ready: redis at "+server.Addr)
	mustSay(t, p.health(t, 0, "--live"), "live")
	probe := func(path string) reply { t.Helper(); return p.post(t, path, "", "", method("GET")) }
	_, said := p.askAdmin(t, "GET", "/dedup/ready", "", "")
	if got := probe("/ready"); got.Status != 200 || got.Body != said || got.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("a probe is answered %d %s %v; the admin API says %s", got.Status, got.Body, got.Header, said)
	}

	server.Pause()
	// The store's own timeout is over before that of the command.
	mustSay(t, p.health(t, 1, "--timeout", "20s"), "Error: A store cannot be asked: redis at "+server.Addr)
	mustSay(t, p.health(t, 1, "--timeout", "1ms"), "not answered within 1ms")
	mustSay(t, p.health(t, 0, "--live"), "live")
	if ready, live := probe("/ready"), probe("/live"); ready.Status != 503 || !strings.Contains(ready.Body, `"stores":[{"store":"redis`) || live.Status != 200 {
		t.Errorf("while the store hangs, probes are answered %d %s and %d", ready.Status, ready.Body, live.Status)
	}
	server.Resume()
	eventually(t, "it is ready again", func() bool {
		_, code := command(t, p.conf.dir, "health", "--address", "unix/"+adminSocket(p.conf.dir))
		return code == 0
	})

	p.terminate(t)
	p.awaitExit(t)
	mustSay(t, p.health(t, 1), "does not answer")
	mustSay(t, p.health(t, 1, "--live"), "does not answer")
}
