package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// copyBound is the published time within which all replicas see what an operator or a
// forced run has changed on another one.
const copyBound = 5 * time.Second

// What is changed on one replica is seen by the others within the published time.
func TestOtherReplicasCopiesAreGoneWithinTheBound(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, p *caddy, key string){
		"released":  func(t *testing.T, p *caddy, key string) { p.operator(t, http.MethodPost, key+"/release", 204) },
		"forgotten": func(t *testing.T, p *caddy, key string) { p.operator(t, http.MethodDelete, key, 204) },
		"forced": func(t *testing.T, p *caddy, _ string) {
			if got := p.post(t, "/", "k", "body", header("X-Force", "true")); got.Status != 201 || got.replayed() {
				t.Errorf("forced: %d %s", got.Status, got.Body)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			server.Do("ACL", "SETUSER", "default", "-publish") // no replica hears of it
			up := startUpstream(t, answers201)
			c := conf{store: storeAt(server.Addr), site: lines(keyHeader, dedupBlock("force X-Force"), proxyTo(up))}
			p, other := start(t, c), start(t, c)
			first := p.post(t, "/", "k", "body")
			wantReplay(t, other.post(t, "/", "k", "body"), first)

			changed := time.Now()
			change(t, p, first.Header.Get("X-Key"))
			second := p.post(t, "/", "k", "body")
			wantAnswer(t, second, 201, "run 2 of k") // here it is seen at once
			const slack = 5 * time.Second            // of a machine that has other things to do
			for {
				asked := time.Now()
				got := other.post(t, "/", "k", "body")
				if got.Body == second.Body {
					break
				}
				wantReplay(t, got, first)
				if asked.Sub(changed) > copyBound+slack {
					t.Fatalf("%s after the change a replica answers with what was before it", asked.Sub(changed))
				}
				time.Sleep(50 * time.Millisecond)
			}
			wantReplay(t, other.post(t, "/", "k", "body"), second)
			up.wantRuns(t, "k", 2)
		})
	}
}
