package integration

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func storeWith(addr string, settings ...string) string {
	return lines(storeAt(addr)+" {", lines(settings...), "}")
}

// A reload that changes only how Redis is used keeps the open store, with what it still
// has to write: duplicates are answered with it meanwhile.
func TestReloadWithAnotherTimeoutKeepsWhatIsUnstored(t *testing.T) {
	t.Parallel()
	for name, changed := range map[string]string{"timeout": "timeout 400ms", "wait_replicas": "wait_replicas 1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			way := startLink(t, server.Addr)
			g := newGate(t)
			up := startUpstream(t, g.before(answers201))
			site := lines("dedup", proxyTo(up))
			p := start(t, conf{store: storeAt(way.addr), site: site})
			other := start(t, conf{store: storeAt(server.Addr), site: site})

			running := p.postLater("/", "k", "body", host("shop.test"))
			up.awaitRuns(t, "k", 1)
			way.cut()
			g.open()
			first := running.reply(t)
			wantFresh(t, first, 201, "run 1 of k")
			p.reloadAs(t, func(c *conf) { c.store = storeWith(way.addr, changed) })
			wantReplay(t, p.post(t, "/", "k", "body", host("shop.test")), first)
			way.mend(t)
			eventually(t, "the response is stored", func() bool {
				return other.post(t, "/", "k", "body", host("shop.test")).replayed()
			})
			wantReplay(t, other.post(t, "/", "k", "body", host("shop.test")), first)
			up.wantRuns(t, "k", 1)
		})
	}
}
