package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// Redis loses all it has while a forced run is in flight. The claim is written
// anew; the response that the run was to replace is gone, and must not be said to
// be there.
func TestForcedRunFailsAfterRedisLostWhatItReplaces(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]int{"small": 10, "large": 50_000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := redisClient(t, server)
			g := newGate(t)
			up := startUpstream(t, inTurn(answersText(strings.Repeat("x", size)), g.before(answersStatus(500)), answers201))
			p := start(t, conf{store: storeAt(server.Addr), site: lines(dedupBlock("force X-Force", "lease 1500ms"), proxyTo(up))})
			p.post(t, "/", "k", "body")
			forced := p.postLater("/", "k", "body", header("X-Force", "true"))
			up.awaitRuns(t, "k", 2)
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the claim is written anew", func() bool {
				n, err := client.DBSize(t.Context()).Result()
				return err == nil && n == 1
			})
			g.open()
			wantFresh(t, forced.reply(t), 500, "run 2 of k")
			wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 3 of k")
		})
	}
}

func answersText(text string) answering {
	return func(w http.ResponseWriter, _ *http.Request, _ run) { fmt.Fprint(w, text) }
}
