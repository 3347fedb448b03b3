package integration

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// leadTo makes the link lead to another server, as an address does behind which a
// replica is promoted.
func (l *link) leadTo(t *testing.T, addr string) {
	t.Helper()
	l.cut()
	l.proxy.Upstream = addr
	l.mend(t)
}

// A replica that was behind is promoted. It has the record that the run before has
// released, and nothing of the run in flight, which is stored all the same.
func TestRunInFlightWhileAStaleReplicaIsPromoted(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]string{"it ends before a renewal": "lease 30s", "its claim is renewed": "lease 1500ms"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			master := redistest.Start(t)
			replica := redistest.StartReplica(t, master)
			way := startLink(t, master.Addr)
			g := newGate(t)
			up := startUpstream(t, inTurn(answersStatus(503), g.before(answers201)))
			site := lines(keyHeader, dedupBlock(lease, "wait off"), proxyTo(up))
			p := start(t, conf{store: storeAt(way.addr), site: site})
			other := start(t, conf{store: storeAt(replica.Addr), site: site})

			released := p.post(t, "/", "k", "body")
			wantFresh(t, released, 503, "run 1 of k")
			record, client := recordIn(released.Header.Get("X-Key")), redisClient(t, replica)
			eventually(t, "the replica has the released record", func() bool {
				return client.Exists(t.Context(), record).Val() == 1 && !runsIn(t, client, record)
			})
			replica.Do("REPLICAOF", "NO", "ONE")
			running := p.postLater("/", "k", "body")
			up.awaitRuns(t, "k", 2)
			way.leadTo(t, replica.Addr)
			if lease == "lease 1500ms" {
				eventually(t, "the claim is written anew", func() bool {
					return runsIn(t, client, record)
				})
				wantProblem(t, other.post(t, "/", "k", "body"), 409, "request_in_flight")
			}
			g.open()
			first := running.reply(t)
			wantFresh(t, first, 201, "run 2 of k")
			wantReplay(t, p.post(t, "/", "k", "body"), first)
			wantReplay(t, other.post(t, "/", "k", "body"), first)
			up.wantRuns(t, "k", 2)
		})
	}
}
