package integration

import (
	"context"
	"net/http"
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

// Each of these takes the store away from a process, or makes it useless to it. What is kept is replayed from a copy
// meanwhile, what is in flight is answered from memory and stored when the store is back, and what is new is refused.
func TestRedisOutOfOrderIs503AndRecovers(t *testing.T) {
	t.Parallel()
	type outOfOrder func(*testing.T, *redistest.Server, *link) (back func())
	suffers := func(what toxic) outOfOrder {
		return func(t *testing.T, _ *redistest.Server, way *link) func() { return way.suffer(t, what) }
	}
	const stored, large = true, 50_000
	for name, c := range map[string]struct {
		out    outOfOrder
		stored bool // the end of the run in flight, while its process does not know
		size   int  // of what is kept, in bytes beyond its text
	}{
		"cut off": {func(t *testing.T, _ *redistest.Server, way *link) func() {
			way.cut()
			return func() { way.mend(t) }
		}, !stored, 0},
		"too slow":              {suffers(tooSlow), !stored, 0},
		"lost requests":         {suffers(lostRequests), !stored, 0},
		"lost replies":          {suffers(lostReplies), stored, 0},
		"lost replies to large": {suffers(lostReplies), stored, large},
		"killed": {func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Kill()
			return server.Restart
		}, !stored, 0},
		"killed, without its data": {func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Do("FLUSHALL")
			server.Kill()
			return server.Restart
		}, !stored, 0},
		"hung": {func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Pause()
			return server.Resume
		}, !stored, 0},
		"full": {func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Do("CONFIG", "SET", "maxmemory", "1")
			return func() { server.Do("CONFIG", "SET", "maxmemory", "0") }
		}, !stored, 0},
		"read-only": {func(t *testing.T, server *redistest.Server, _ *link) func() {
			set := func(host, port string) {
				if err := redisClient(t, server).ReplicaOf(context.Background(), host, port).Err(); err != nil {
					t.Fatal(err)
				}
			}
			set("127.0.0.1", "1") // a replica of nothing keeps what it has
			return func() { set("NO", "ONE") }
		}, !stored, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
			way := startLink(t, server.Addr)
			g := newGate(t)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if n.Key == "running" {
					<-g.opened
				}
				answers201(w, r, n)
				if n.Key == "running" || n.Key == "kept" {
					_, _ = w.Write(make([]byte, c.size)) // the proxy may be cut off meanwhile
				}
			})
			site := lines(keyHeader, bothModes(up, "on_unknown hold", "lease 1m"))
			p, other := start(t, conf{store: storeAt(way.addr), site: site}), start(t, conf{store: storeAt(server.Addr), site: site})
			// The proxy is connected, also for large responses, and Redis knows the scripts: else it replies first.
			kept := p.post(t, "/", "kept", "body")
			running := p.postLater("/", "running", "body")
			up.awaitRuns(t, "running", 1)
			waiter := p.postLater("/", "running", "body")
			p.awaitWaiting(t, 1, waiter)

			back := c.out(t, server, way)
			g.open()
			first := running.reply(t)
			wantFresh(t, first, 201, "run 1 of running"+string(make([]byte, c.size)))
			wantReplay(t, waiter.reply(t), first)
			wantReplay(t, p.post(t, "/", "running", "body"), first)
			wantProblem(t, p.post(t, "/", "running", "another body"), 422, "idempotency_key_reused")
			if c.stored {
				wantReplay(t, other.post(t, "/", "running", "body"), first)
			}
			wantReplay(t, p.post(t, "/", "kept", "body"), kept)
			wantUnavailable(t, p, up, "new")
			back()
			wantServedAgain(t, p, up, "new")
			wantReplay(t, p.post(t, "/", "kept", "body"), kept)
			up.wantRuns(t, "kept", 1)
			p.awaitLog(t, "that the run's end is stored now", func(e entry) bool { return strings.Contains(e.text("msg"), "stored now") })
			wantReplay(t, other.post(t, "/", "running", "body"), first)
			up.wantRuns(t, "running", 1)

			// From now on the store knows better than the process.
			other.operator(t, http.MethodPost, first.Header.Get("X-Key")+"/release", 204)
			eventually(t, "the process asks the store", func() bool { return !p.post(t, "/", "running", "body").replayed() })
			up.wantRuns(t, "running", 2)
		})
	}
}
