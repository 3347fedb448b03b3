package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// answersBytes answers with so many bytes.
func answersBytes(n int) answering {
	return func(w http.ResponseWriter, _ *http.Request, _ run) { fmt.Fprint(w, strings.Repeat("x", n)) }
}

// A claim fits into a memory store where the response of its run does not. So while responses
// wait for room, there are no new runs, and who is refused is told that the store is full.
// What waits is held, counts, and is replayed. A process that exits does not wait for room.
func TestResponsesThatWaitForRoomInTheMemoryStore(t *testing.T) {
	t.Parallel()
	const together, size = 60, 20_000
	g := newGate(t)
	up := startUpstream(t, g.before(answersBytes(size)))
	p := start(t, conf{store: "store memory", dedup: limits("memory_store 1MiB"), site: lines("dedup", proxyTo(up))})
	var firsts []*pending
	for n := range together {
		firsts = append(firsts, p.postLater("/", fmt.Sprint("first ", n), "body"))
	}
	eventually(t, "all are in flight", func() bool { return len(up.all()) == together })
	g.open()
	for _, first := range replies(t, firsts) {
		if first.Status != 200 || len(first.Body) != size {
			t.Fatalf("got %d and %d bytes", first.Status, len(first.Body))
		}
	}
	eventually(t, "only what waits for room is held", func() bool {
		now := p.scrape(t)
		waiting := now["caddy_dedup_in_flight"]
		return waiting >= 5 && waiting <= 20 && now["caddy_dedup_buffered_bytes"] >= waiting*size && now["caddy_dedup_buffered_bytes"] < (waiting+1)*2*size
	})
	before := p.scrape(t)
	const refused = 50
	for n := range refused {
		if got := wantProblem(t, p.post(t, "/", fmt.Sprint("new ", n), "body"), 503, "overloaded"); !strings.Contains(got.Detail, "the store is full") {
			t.Fatalf("the refusal says %q", got.Detail)
		}
	}
	eventuallyEqual(t, "the refusals", series{
		requests("api", "overloaded"): refused, `caddy_dedup_overloads_total{limit="memory_store"}`: refused,
	}, func() series {
		grown := p.scrape(t).since(before)
		for name := range grown { // the ends that wait are tried meanwhile
			if strings.HasPrefix(name, "caddy_dedup_store_") {
				delete(grown, name)
			}
		}
		return grown
	})
	if now := p.scrape(t); now["caddy_dedup_in_flight"] != before["caddy_dedup_in_flight"] || now["caddy_dedup_buffered_bytes"] > before["caddy_dedup_buffered_bytes"] {
		t.Errorf("what waits has become more: %v", now)
	}
	for n := range together {
		if got := p.post(t, "/", fmt.Sprint("first ", n), "body"); !got.replayed() || len(got.Body) != size {
			t.Errorf("the duplicate %d got %d %q", n, got.Status, shorten(got.Body))
		}
	}
	if n := len(up.all()); n != together {
		t.Errorf("%d runs, want %d", n, together)
	}
	p.terminate(t)
	p.awaitExit(t) // it would wait for the longest timeout, which is longer than this does
	if len(p.log.find(func(e entry) bool { return e.text("msg") == "the run's end was never stored: the process stops" })) == 0 {
		t.Error("the log does not say what was given up")
	}
}

// A response for which the memory store will never have room waits for none: its status and
// header are kept, and new keys go on.
func TestResponseThatTheMemoryStoreCanNeverKeep(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "large" || r.URL.Path == "/hook" {
			w.WriteHeader(202)
			answersBytes(500_000)(w, r, n)
			return
		}
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", dedup: limits("memory_store 200KiB"), site: lines(
		"handle /hook {", dedupBlock("mode webhook", "key header Idempotency-Key"), proxyTo(up), "}", "handle {", "dedup", proxyTo(up), "}")})
	for _, path := range []string{"/", "/hook"} {
		if got := p.post(t, path, "large", "body"); got.Status != 202 || len(got.Body) != 500_000 {
			t.Fatalf("%s: got %d and %d bytes", path, got.Status, len(got.Body))
		}
	}
	wantProblem(t, p.post(t, "/", "large", "body"), 409, "response_not_kept")
	if got := p.post(t, "/hook", "large", "body"); got.Status != 202 || got.Body != "" {
		t.Errorf("the webhook's duplicate got %d %q", got.Status, shorten(got.Body))
	}
	up.wantRuns(t, "large", 2) // one on each path
	wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 1 of k")
	eventually(t, "nothing waits", func() bool {
		now := p.scrape(t)
		return now["caddy_dedup_in_flight"] == 0 && now["caddy_dedup_buffered_bytes"] == 0
	})
	p.awaitLog(t, "that it is too large", func(e entry) bool {
		return strings.HasPrefix(e.text("msg"), "too large: ") && e.text("bytes") == "500000" && hexKey.MatchString(e.text("key"))
	})
}
