package integration

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// The upstream answered while the store was unavailable, and the process died before it could
// store the response: the outcome is unknown, and `on_unknown` decides.
func TestKilledBeforeTheAnswerCouldBeStored(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			way := startLink(t, server.Addr)
			g := newGate(t)
			up := startUpstream(t, g.before(answers201))
			site := lines(dedupBlock("on_unknown "+unknown, "lease 1500ms", "wait 3s"), proxyTo(up))
			p := start(t, conf{store: storeAt(way.addr), site: site})
			other := start(t, conf{store: storeAt(server.Addr), site: site})

			running := p.postLater("/", "k", "body")
			up.awaitRuns(t, "k", 1)
			way.cut()
			g.open()
			first := running.reply(t)
			wantFresh(t, first, 201, "run 1 of k")
			wantReplay(t, p.post(t, "/", "k", "body"), first)
			p.kill(t)

			got := other.post(t, "/", "k", "body")
			if unknown == "hold" {
				wantProblem(t, got, 409, "outcome_unknown")
				up.wantRuns(t, "k", 1)
				return
			}
			wantFresh(t, got, 201, "run 2 of k")
			wantAttempt(t, up, "k", 2, "2")
			wantReplay(t, other.post(t, "/", "k", "body"), got)
			up.wantRuns(t, "k", 2)
		})
	}
}
