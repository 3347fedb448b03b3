package integration

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// Each of these takes the store away from a process, or makes it useless to it.
func TestRedisOutOfOrderIs503AndRecovers(t *testing.T) {
	t.Parallel()
	suffers := func(what toxic) func(*testing.T, *redistest.Server, *link) func() {
		return func(t *testing.T, _ *redistest.Server, way *link) func() { return way.suffer(t, what) }
	}
	for name, out := range map[string]func(*testing.T, *redistest.Server, *link) (back func()){
		"cut off": func(t *testing.T, _ *redistest.Server, way *link) func() {
			way.cut()
			return func() { way.mend(t) }
		},
		"too slow":      suffers(tooSlow),
		"lost requests": suffers(lostRequests),
		"lost replies":  suffers(lostReplies),
		"killed": func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Kill()
			return server.Restart
		},
		"hung": func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Pause()
			return server.Resume
		},
		"full": func(_ *testing.T, server *redistest.Server, _ *link) func() {
			server.Do("CONFIG", "SET", "maxmemory", "1")
			return func() { server.Do("CONFIG", "SET", "maxmemory", "0") }
		},
		"read-only": func(t *testing.T, server *redistest.Server, _ *link) func() {
			set := func(host, port string) {
				if err := redisClient(t, server).ReplicaOf(context.Background(), host, port).Err(); err != nil {
					t.Fatal(err)
				}
			}
			set("127.0.0.1", "1") // a replica of nothing keeps what it has
			return func() { set("NO", "ONE") }
		},
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
			})
			site, shop := bothModes(up, "on_unknown hold", "lease 1m"), host("shop.test")
			p := start(t, conf{store: storeAt(way.addr), site: site})
			kept := p.post(t, "/", "kept", "body")
			running := p.postLater("/", "running", "body", shop)
			up.awaitRuns(t, "running", 1)

			back := out(t, server, way)
			wantUnavailable(t, p, up, "new")
			g.open()
			first := running.reply(t)
			wantFresh(t, first, 201, "run 1 of running")
			wantReplay(t, p.post(t, "/", "running", "body", shop), first)
			back()
			wantServedAgain(t, p, up, "new")
			wantReplay(t, p.post(t, "/", "kept", "body"), kept)
			up.wantRuns(t, "kept", 1)
			p.awaitLog(t, "that the run's end is stored now", func(e entry) bool { return strings.Contains(e.text("msg"), "stored now") })
			other := start(t, conf{store: storeAt(server.Addr), site: site})
			wantReplay(t, other.post(t, "/", "running", "body", shop), first)
			up.wantRuns(t, "running", 1)
		})
	}
}
