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

// copying is a site whose answers show their key, and that may be forced.
func copying(up *upstream) string {
	return lines("header >X-Key {http.dedup.key}", dedupBlock("force X-Force"), proxyTo(up))
}

func TestStoreAwayServesDuplicatesFromCopies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	way := startLink(t, server.Addr)
	up := startUpstream(t, answers201)
	c := conf{store: storeAt(way.addr), site: copying(up)}
	p, other := start(t, c), start(t, c)
	first := p.post(t, "/", "k", "body", host("shop.test"))
	wantFresh(t, first, 201, "run 1 of k")
	wantReplay(t, other.post(t, "/", "k", "body", host("shop.test")), first)
	way.cut()

	for until := time.Now().Add(copyBound + time.Second); time.Now().Before(until); time.Sleep(250 * time.Millisecond) { // young copies, and old ones
		for _, replica := range []*caddy{p, other} {
			wantReplay(t, replica.post(t, "/", "k", "body", host("shop.test")), first)
		}
	}
	wantProblem(t, p.post(t, "/", "k", "another body", host("shop.test")), 422, "idempotency_key_reused")
	wantProblem(t, p.post(t, "/", "k", "body", host("shop.test"), header("X-Force", "true")), 503, "store_unavailable")
	wantProblem(t, p.post(t, "/", "new", "body", host("shop.test")), 503, "store_unavailable")
	wantProblem(t, p.post(t, "/elsewhere", "k", "body", host("shop.test")), 503, "store_unavailable")
	up.wantRuns(t, "k", 1)
	up.wantRuns(t, "new", 0)
}

// What is changed on one replica is seen by the others within the published time.
func TestOtherReplicasCopiesAreGoneWithinTheBound(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(t *testing.T, p *caddy, key string){
		"released":  func(t *testing.T, p *caddy, key string) { p.operator(t, http.MethodPost, key+"/release", 204) },
		"forgotten": func(t *testing.T, p *caddy, key string) { p.operator(t, http.MethodDelete, key, 204) },
		"forced": func(t *testing.T, p *caddy, _ string) {
			if got := p.post(t, "/", "k", "body", host("shop.test"), header("X-Force", "true")); got.Status != 201 || got.replayed() {
				t.Errorf("forced: %d %s", got.Status, got.Body)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			server.Do("ACL", "SETUSER", "default", "-publish") // no replica hears of it
			up := startUpstream(t, answers201)
			p := start(t, conf{store: storeAt(server.Addr), site: copying(up)})
			other := start(t, conf{store: storeAt(server.Addr), site: copying(up)})
			first := p.post(t, "/", "k", "body", host("shop.test"))
			wantReplay(t, other.post(t, "/", "k", "body", host("shop.test")), first)

			changed := time.Now()
			change(t, p, first.Header.Get("X-Key"))
			second := p.post(t, "/", "k", "body", host("shop.test"))
			wantAnswer(t, second, 201, "run 2 of k") // here it is seen at once
			const slack = 5 * time.Second            // of a machine that has other things to do
			for {
				asked := time.Now()
				got := other.post(t, "/", "k", "body", host("shop.test"))
				if got.Body == second.Body {
					break
				}
				wantReplay(t, got, first)
				if asked.Sub(changed) > copyBound+slack {
					t.Fatalf("%s after the change a replica answers with what was before it", asked.Sub(changed))
				}
				time.Sleep(50 * time.Millisecond)
			}
			wantReplay(t, other.post(t, "/", "k", "body", host("shop.test")), second)
			up.wantRuns(t, "k", 2)
		})
	}
}
