package integration

import (
	"net/http"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// handsOnItsKey is a site whose upstream gets the key in place of whatever the sender
// has sent in that field.
func handsOnItsKey(up *upstream, field string, l ...string) string {
	return lines("header >X-Key {http.dedup.key}", dedupBlock(l...), "reverse_proxy "+up.addr+" {", "header_up "+field+" {http.dedup.key}", "}")
}

// A service behind gets the key as a stable name of the request: over all attempts, on
// all replicas, whatever host they are reached under, and when a request is forced.
func TestKeyIsHandedOn(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if r.Header.Get("X-Fails") != "" {
			answersStatus(503)(w, r, n)
			return
		}
		answers201(w, r, n)
	})
	site := handsOnItsKey(up, "Idempotency-Key", "key header Idempotency-Key", "key header X-Event-Id", "scope {http.request.orig_uri.path}", "force X-Force")
	a := start(t, conf{store: storeAt(server.Addr), site: site})
	b := start(t, conf{store: storeAt(server.Addr), site: site})
	fails, force := header("X-Fails", "true"), header("X-Force", "true")

	want := map[string]int{}
	for _, id := range []option{header("Idempotency-Key", "a"), header("Idempotency-Key", "b"), header("X-Event-Id", "a")} {
		key := a.post(t, "/", "", "body", id, fails, host("a.test")).Header.Get("X-Key")
		if !hexKey.MatchString(key) || want[key] != 0 {
			t.Fatalf("the key is %q, after %v", key, want)
		}
		b.post(t, "/", "", "body", id, fails, host("b.test:8080"))
		first := b.post(t, "/", "", "body", id, host("b.test"))
		wantReplay(t, a.post(t, "/", "", "body", id, host("a.test")), first)
		a.post(t, "/", "", "body", id, force, host("a.test"))
		want[key] = 4
	}
	got := map[string]int{}
	for _, ran := range up.all() {
		sent := ran.Header["Idempotency-Key"]
		if len(sent) != 1 {
			t.Fatalf("the upstream got the keys %q", sent)
		}
		got[sent[0]]++
	}
	for key, n := range want {
		if got[key] != n {
			t.Errorf("the upstream got the key %s %d times, want %d: %v", key, got[key], n, got)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the upstream got the keys %v, want %v", got, want)
	}
}

// In a request without a body a field of another name is the one to take: documented.
func TestKeyOfAnEmptyRequestIsHandedOn(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answersStatus(500), answers201))
	p := start(t, conf{store: "store memory", site: handsOnItsKey(up, "X-Run-Key")})
	for n := range 2 {
		key := p.post(t, "/", "k", "").Header.Get("X-Key")
		ran := up.nth(t, "k", n+1)
		if got := ran.Header["X-Run-Key"]; len(got) != 1 || got[0] != key || !hexKey.MatchString(key) {
			t.Errorf("run %d: the upstream got the key %q, want %q", n+1, got, key)
		}
		if got := ran.Header["Idempotency-Key"]; len(got) != 1 || got[0] != "k" {
			t.Errorf("run %d: the client's own key became %q", n+1, got)
		}
	}
}

// A request without a key hands on none: the placeholder's own text would be one key
// for all of them, and the service behind would take them for one request.
func TestNoKeyIsHandedOn(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("header >X-Outcome {http.dedup.outcome}", handsOnItsKey(up, "X-Run-Key"))})
	p.post(t, "/", "", "body")
	got := p.post(t, "/", "k", "body", method("PUT"))
	if got.Header.Get("X-Outcome") != "" || got.Header.Get("X-Key") != "" {
		t.Errorf("a request that is not deduplicated has the outcome %q and the key %q", got.Header.Get("X-Outcome"), got.Header.Get("X-Key"))
	}
	for _, ran := range up.all() {
		if got := ran.Header.Get("X-Run-Key"); got != "" {
			t.Errorf("%s %s: the upstream got the key %q", ran.Method, ran.URI, got)
		}
	}
}
