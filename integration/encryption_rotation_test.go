package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// reads reports whether a replica with some keys reads what one with others wrote.
func reads(keys, writer string) bool {
	return writer == "" || strings.Contains(keys, writer[:1])
}

// While a step is rolled out, replicas of both share a store: no request runs
// twice, whichever of them it comes to, and it is answered wherever it can be read.
// To put the new key behind the old one first is the way in which it always can.
func TestEncryptionKeysAreRotated(t *testing.T) {
	t.Parallel()
	for _, step := range [][2]string{{"", "a"}, {"a", "ba"}, {"ba", "b"}, {"a", "ab"}, {"ab", "ba"}} {
		before, after := step[0], step[1]
		t.Run(before+" to "+after, func(t *testing.T) {
			t.Parallel()
			gates := map[string]*gate{"slow 0": newGate(t), "slow 1": newGate(t)}
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				if g := gates[n.Key]; g != nil {
					<-g.opened
				}
				answers201(w, r, n)
			})
			store, dir := redisStore(t), shortTempDir(t)
			site := lines(keyHeader, "dedup", proxyTo(up))
			replicas := []*caddy{
				start(t, conf{store: store, dedup: keyFiles(t, dir, before), site: site}),
				start(t, conf{store: store, dedup: keyFiles(t, dir, after), site: site}),
			}
			for n, p := range replicas {
				other := replicas[1-n]
				readable := reads(step[1-n], step[n])
				kept := fmt.Sprint("kept ", n)
				first := p.post(t, "/", kept, "body")
				wantReplay(t, p.post(t, "/", kept, "body"), first)
				wantProblem(t, p.post(t, "/", kept, "another"), 422, "idempotency_key_reused")
				got := other.post(t, "/", kept, "body")
				if readable {
					wantReplay(t, got, first)
					wantProblem(t, other.post(t, "/", kept, "another"), 422, "idempotency_key_reused")
				} else {
					wantProblem(t, got, 500, "record_unreadable")
				}
				if got.Header.Get("X-Key") != first.Header.Get("X-Key") {
					t.Errorf("the replicas have two names for one key")
				}
				up.wantRuns(t, kept, 1)

				slow := fmt.Sprint("slow ", n)
				running := p.postLater("/", slow, "body")
				up.awaitRuns(t, slow, 1)
				waiting := p.postMany(5, "/", slow, "body")
				if readable {
					waiting = append(waiting, other.postMany(5, "/", slow, "body")...)
					other.awaitWaiting(t, 5, waiting...)
				} else {
					wantProblem(t, other.post(t, "/", slow, "body"), 500, "record_unreadable")
				}
				p.awaitWaiting(t, 5, waiting...)
				gates[slow].open()
				allAlike(t, append(replies(t, waiting), running.reply(t)))
				up.wantRuns(t, slow, 1)
			}
		})
	}
}
