package integration

import (
	"bytes"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// bothModes is a site with a webhook under /hook and an API elsewhere.
func bothModes(up *upstream, l ...string) string {
	return lines(
		"handle /hook {", dedupBlock(append([]string{"mode webhook"}, l...)...), proxyTo(up), "}",
		"handle {", dedupBlock(l...), proxyTo(up), "}")
}

func wantUnavailable(t *testing.T, p *caddy, up *upstream, key string) {
	t.Helper()
	for _, path := range []string{"/", "/hook"} {
		before := len(up.runs(key + path))
		got := p.post(t, path, key+path, "body")
		wantProblem(t, got, 503, "store_unavailable")
		wantRetryAfter(t, got)
		up.wantRuns(t, key+path, before)
	}
}

// wantServedAgain waits until a key that was refused runs, for the first time.
func wantServedAgain(t *testing.T, p *caddy, up *upstream, key string) {
	t.Helper()
	for _, path := range []string{"/", "/hook"} {
		var got reply
		eventually(t, key+path+" runs", func() bool {
			got = p.post(t, path, key+path, "body")
			if got.Status != 503 && got.Status != 201 {
				t.Fatalf("%s%s got %d %q, want it refused or run", key, path, got.Status, got.Body)
			}
			return got.Status == 201
		})
		wantFresh(t, got, 201, "run 1 of "+key+path)
		wantAttempt(t, up, key+path, 1, "1")
		wantReplay(t, p.post(t, path, key+path, "body"), got)
	}
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

func TestRedisAwayWhenTheUpstreamAnswers(t *testing.T) {
	t.Parallel()
	ways := map[string]struct {
		args     []string
		away     func(*redistest.Server)
		backPlan func(*redistest.Server)
	}{
		"hung": {nil, (*redistest.Server).Pause, (*redistest.Server).Resume},
		"killed, with its data on disk": {[]string{"--appendonly", "yes", "--appendfsync", "always"},
			func(s *redistest.Server) { s.Kill() }, func(s *redistest.Server) { s.Restart() }},
		"killed, without": {nil, func(s *redistest.Server) { s.Kill() }, func(s *redistest.Server) { s.Restart() }},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, way.args...)
			g := newGate(t)
			up := startUpstream(t, g.before(answers201))
			c := conf{store: storeAt(server.Addr), site: lines("header >X-Key {http.dedup.key}", dedupBlock("wait 10s"), proxyTo(up))}
			p, other := start(t, c), start(t, c)
			options := []option{host("shop.test")}

			running := p.postLater("/", "k", "body", options...)
			up.awaitRuns(t, "k", 1)
			waiter := p.postLater("/", "k", "body", options...)
			p.awaitWaiting(t, 1, waiter)
			way.away(server)
			g.open()
			first := running.reply(t)
			wantFresh(t, first, 201, "run 1 of k")
			wantReplay(t, waiter.reply(t), first)
			wantReplay(t, p.post(t, "/", "k", "body", options...), first)
			wantProblem(t, p.post(t, "/", "k", "another", options...), 422, "idempotency_key_reused")

			way.backPlan(server)
			p.awaitLog(t, "that the run's end is stored now", func(e entry) bool { return strings.Contains(e.text("msg"), "stored now") })
			wantReplay(t, other.post(t, "/", "k", "body", options...), first)
			up.wantRuns(t, "k", 1)

			// From now on the store knows better than the process.
			other.operator(t, http.MethodPost, first.Header.Get("X-Key")+"/release", 204)
			eventually(t, "the process asks the store", func() bool { return !p.post(t, "/", "k", "body", options...).replayed() })
			up.wantRuns(t, "k", 2)
		})
	}
}
