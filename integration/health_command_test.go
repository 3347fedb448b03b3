package integration

import (
	"bytes"
	"os/exec"
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

// A full Redis can be read: who asks whether it is ready, or for its keys, gets them and a warning.
func TestRefusedWritesFromOutside(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--maxmemory-policy", "noeviction")
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup_health /ready", "dedup", proxyTo(up))})
	p.post(t, "/", "kept", "body")
	ask := func() (printed, warned, probed, ready string, metric float64) {
		t.Helper()
		printed, warned = p.split(t, "keys", "list", "--json")
		_, ready = p.askAdmin(t, "GET", "/dedup/ready", "", "")
		return printed, warned, p.post(t, "/ready", "", "", method("GET")).Body, ready, p.scrape(t)["caddy_dedup_writes_refused"]
	}
	printed, warned, probed, ready, metric := ask()
	if warned != "" || ready != probed || metric != 0 {
		t.Errorf("before: %q, %s, %s, %v", warned, ready, probed, metric)
	}
	server.Do("CONFIG", "SET", "maxmemory", "1")
	wantProblem(t, p.post(t, "/", "new", "body"), 503, "store_unavailable")
	const reason = "maxmemory is reached and nothing can be evicted"
	printedNow, warned, probedNow, ready, metric := ask()
	if printedNow != printed || strings.Count(printed, "\n") != 1 || probedNow != probed || metric != 1 {
		t.Errorf("keys list --json prints %s, a probe gets %s, the metric is %v", printedNow, probedNow, metric)
	}
	mustSay(t, warned, "Warning: redis at "+server.Addr, "refuses writes", reason, "(since 20")
	mustSay(t, ready, `"ready":true`, `"writes":"redis at `+server.Addr, reason, "(since 20")
	printed, warned = p.split(t, "health")
	mustSay(t, printed, "ready: redis at "+server.Addr)
	mustSay(t, warned, "refuses writes", reason)
}

// split runs a command that must succeed, and returns its standard output and its standard error.
func (p *caddy) split(t *testing.T, args ...string) (output, errors string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, append(args, "--address", "unix/"+adminSocket(p.conf.dir))...)
	cmd.Env = homeEnv(p.conf.dir)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s", args, err, errs.String())
	}
	return out.String(), errs.String()
}
