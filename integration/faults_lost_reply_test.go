package integration

import (
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// The claim stands in the store, and its process does not know: it refuses the
// request, and takes the claim back as soon as it can.
func TestLostReplyToAClaimRunsNothingAndLocksNothing(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			way := startLink(t, server.Addr)
			up := startUpstream(t, answers201)
			site := bothModes(up, "on_unknown "+unknown, "lease 1m", "wait off")
			p := start(t, conf{store: storeAt(way.addr), site: site})
			other := start(t, conf{store: storeAt(server.Addr), site: site})
			p.post(t, "/", "warm", "body") // a connection is open

			end := way.suffer(t, lostReplies)
			refused := p.post(t, "/", "k", "body")
			wantProblem(t, refused, 503, "store_unavailable")
			wantRetryAfter(t, refused)
			wantProblem(t, other.post(t, "/", "k", "body"), 409, "request_in_flight")
			hook := p.post(t, "/hook", "hook", "body")
			wantProblem(t, hook, 503, "store_unavailable")
			up.wantRuns(t, "k", 0)
			end()

			// The lease is far longer than the test's patience: only the withdrawal
			// frees the key.
			for path, key := range map[string]string{"/": "k", "/hook": "hook"} {
				var got reply
				eventually(t, key+" is free again", func() bool {
					got = other.post(t, path, key, "body")
					return got.Status == 201
				})
				wantFresh(t, got, 201, "run 1 of "+key)
				wantAttempt(t, up, key, 1, "1")
				wantReplay(t, p.post(t, path, key, "body"), got)
			}
		})
	}
}
