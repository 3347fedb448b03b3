package integration

import (
	"cmp"
	"fmt"
	"net/http"
	"os"
	"testing"
)

// A store passes from one version to the next and back: what ran under one is replayed under the
// other, or refused as unreadable, and runs a second time under neither. DEDUP_PREVIOUS names the
// binary of the version before; without one, this version takes its place.
func TestUpgradeAndBack(t *testing.T) {
	t.Parallel()
	previous := cmp.Or(os.Getenv("DEDUP_PREVIOUS"), binary)
	for name, store := range map[string]func(*testing.T) string{
		"file":  func(*testing.T) string { return "store file" },
		"redis": redisStore,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if n.Key == "held" {
					noAnswer(w, r, n)
					return
				}
				answers201(w, r, n)
			})
			c := conf{store: store(t), dir: shortTempDir(t), site: lines(keyHeader, dedupBlock("on_unknown hold"), proxyTo(up))}
			firsts := map[string]reply{}
			for step, program := range []string{previous, binary, previous} {
				c.under = []string{"sh", "-c", `shift; exec "$0" "$@"`, program} // in place of the binary
				p := start(t, c)
				c.port = p.conf.port
				for key, first := range firsts {
					got := p.post(t, "/", key, "body")
					if previous != binary && got.Status == http.StatusInternalServerError {
						wantProblem(t, got, 500, "record_unreadable")
					} else {
						wantReplay(t, got, first)
					}
					up.wantRuns(t, key, 1)
				}
				key := fmt.Sprint("step ", step)
				firsts[key] = p.post(t, "/", key, "body")
				wantFresh(t, firsts[key], 201, "run 1 of "+key)
				if step == 0 {
					p.post(t, "/", "held", "body")
				}
				if got := p.post(t, "/", "held", "body"); previous != binary && got.Status == http.StatusInternalServerError {
					wantProblem(t, got, 500, "record_unreadable")
				} else {
					wantProblem(t, got, 409, "outcome_unknown")
				}
				up.wantRuns(t, "held", 1)
				p.terminate(t)
				if code := p.awaitExit(t); code != 0 {
					t.Errorf("step %d ended with %d", step, code)
				}
			}
		})
	}
}
