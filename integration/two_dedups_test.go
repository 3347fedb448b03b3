package integration

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Two dedups that make one key of a request: the inner one refuses it at once, and says what to
// change.
func TestTwoDedupsOfOneKeyAreALoop(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	one := start(t, conf{store: "store memory", site: lines("route {", "dedup", dedupBlock("wait 1h"), proxyTo(up), "}")})
	store := redisStore(t)
	sidecar := start(t, conf{store: store, site: lines(dedupBlock("wait 1h"), proxyTo(up))})
	gateway := start(t, conf{store: store, site: lines("dedup", "reverse_proxy "+sidecar.addr)})
	for outer, inner := range map[*caddy]*caddy{one: one, gateway: sidecar} {
		wantProblem(t, outer.post(t, "/", "k", "body"), 508, "loop_detected")
		line := inner.awaitLog(t, "a line about the loop", func(e entry) bool { return e.text("code") == "loop_detected" })
		if line.text("level") != "error" || !strings.Contains(line.text("detail"), "set another namespace") {
			t.Errorf("the log has %v", line)
		}
		if n := inner.scrape(t)[requests("api", "loop")]; n != 1 {
			t.Errorf("%v loops are counted", n)
		}
	}
	up.wantRuns(t, "k", 0)
	wantFresh(t, sidecar.post(t, "/", "k", "body"), 201, "run 1 of k")
}

// Two dedups of two keys work independently: each keeps the response, under the name of its own
// run, and the wish of the upstream counts for the inner one, which reads it.
func TestTwoDedupsOfTwoKeysAreIndependent(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answersStatus(500), func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Dedup-Retention", "0")
		answers201(w, r, n)
	}))
	store := redisStore(t)
	sidecar := start(t, conf{store: store, dedup: "namespace sidecar", site: lines("dedup", proxyTo(up))})
	for key, outer := range map[string]*caddy{
		"in two processes": start(t, conf{store: store, dedup: "namespace gateway", site: lines("dedup", "reverse_proxy "+sidecar.addr)}),
		"in one":           start(t, conf{store: "store memory", site: lines("route {", "dedup", dedupBlock("scope shared inner"), proxyTo(up), "}")}),
	} {
		wantFresh(t, outer.post(t, "/", key, "body"), 500, "run 1 of "+key)
		first := outer.post(t, "/", key, "body")
		wantFresh(t, first, 201, "run 2 of "+key)
		wantReplay(t, outer.post(t, "/", key, "body"), first)
		if v, ok := first.Header["Dedup-Retention"]; ok {
			t.Errorf("%s: the client got Dedup-Retention %q", key, v)
		}
		up.wantRuns(t, key, 2)
		wantAttempt(t, up, key, 2, "2")
		inner := up.nth(t, key, 2).Header["Dedup-Execution-Id"]
		if outer := first.Header["Dedup-Execution-Id"]; len(inner) != 1 || len(outer) != 1 || inner[0] == outer[0] {
			t.Errorf("%s: the upstream got the execution IDs %q, the client %q", key, inner, outer)
		}
		one, two := up.nth(t, key, 1).Header["Dedup-Key"], up.nth(t, key, 2).Header["Dedup-Key"]
		if len(one) != 1 || len(one[0]) != 64 || !slices.Equal(one, two) {
			t.Errorf("%s: two attempts have the Dedup-Key %q and %q", key, one, two)
		}
	}
	wantFresh(t, sidecar.post(t, "/", "in two processes", "body"), 201, "run 3 of in two processes")
}

// A dedup that does not claim a request leaves the upstream's wish to the one that does, and the
// outcome too.
func TestDedupThatDoesNotClaimIsTransparent(t *testing.T) {
	t.Parallel()
	for _, inner := range []string{
		"dedup github", dedupBlock("methods PUT"), dedupBlock("mode webhook", "fingerprint body", "max_request_body 1"),
	} {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			w.Header().Set("Dedup-Retention", "0")
			answers201(w, r, n)
		})
		p := start(t, conf{store: "store memory", site: lines("log", "header >X-Outcome {http.dedup.outcome}",
			"route {", "dedup", inner, proxyTo(up), "}")})
		for _, body := range []string{"run 1 of k", "run 2 of k"} {
			got := p.post(t, "/", "k", "body")
			wantFresh(t, got, 201, body)
			if v, ok := got.Header["Dedup-Retention"]; ok {
				t.Errorf("behind it %s: the client got Dedup-Retention %q", inner, v)
			}
			if shown := got.Header.Get("X-Outcome"); shown != "executed" {
				t.Errorf("behind it %s: outcome %q, want executed", inner, shown)
			}
			if id := up.all()[len(up.all())-1].Header.Get("Dedup-Execution-Id"); id != got.executionID() {
				t.Errorf("behind it %s: the upstream got the execution ID %q, the client %q", inner, id, got.executionID())
			}
		}
		if got := p.post(t, "/", "", "body"); got.Header.Get("X-Outcome") != "missing" {
			t.Errorf("behind it %s: a request without a key has outcome %q", inner, got.Header.Get("X-Outcome"))
		}
	}
}
