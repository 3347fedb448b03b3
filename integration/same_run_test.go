package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

func TestTwoDedupsOnOnePathRunOnce(t *testing.T) {
	t.Parallel()
	for name, inner := range map[string]string{
		"alike":            "dedup",
		"with other rules": dedupBlock("fingerprint none", "in_flight reject", "unknown hold", "timeout 1m"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, inTurn(answersStatus(500), answers201))
				p := start(t, conf{store: store, site: lines("route {", "dedup", inner, proxyTo(up), "}")})
				wantFresh(t, p.post(t, "/", "k", "body"), 500, "run 1 of k")
				first := p.post(t, "/", "k", "body")
				wantFresh(t, first, 201, "run 2 of k")
				wantReplay(t, p.post(t, "/", "k", "body"), first)
				up.wantRuns(t, "k", 2)
				if ids := up.nth(t, "k", 2).Header["Dedup-Execution-Id"]; len(ids) != 1 || ids[0] != first.executionID() {
					t.Errorf("the upstream got the execution IDs %q, the client %q", ids, first.executionID())
				}
				wantAttempt(t, up, "k", 2, "2")
				if ids := first.Header["Dedup-Execution-Id"]; len(ids) != 1 {
					t.Errorf("the client got the execution IDs %q", ids)
				}
			})
		})
	}
}

// The inner one does not see that a run is forced, and has a response of its own key: it lets
// the run pass if it is the one that has the key in flight, and replays if its key is another.
func TestForcedRunPassesASecondDedupOfTheSameKey(t *testing.T) {
	t.Parallel()
	for inner, runs := range map[string]int{"force X-Force": 2, "scope another": 1} {
		up := startUpstream(t, answers201)
		p := start(t, conf{store: "store memory", site: lines("route {", dedupBlock("force X-Force"), dedupBlock(inner), proxyTo(up), "}")})
		p.post(t, "/", "k", "body")
		forced := p.post(t, "/", "k", "body", header("X-Force", "true"))
		wantAnswer(t, forced, 201, fmt.Sprintf("run %d of k", runs))
		if forced.replayed() != (runs == 1) || forced.Header.Get("Dedup-Parent-Id") == "" {
			t.Errorf("%s: the forced run is answered with %v", inner, forced.Header)
		}
		up.wantRuns(t, "k", runs)
	}
}

// The inner one sees the run that the outer one has claimed, or nothing that it knows. In the
// log that run must neither be an ordinary one if it was forced, nor a request that nobody has
// protected.
func TestOutcomeBehindASecondDedup(t *testing.T) {
	t.Parallel()
	for inner, sameKey := range map[string]bool{
		"dedup": true, "dedup github": false, dedupBlock("mode webhook", "fingerprint body", "max_request_body 1"): false,
	} {
		up := startUpstream(t, answers201)
		p := start(t, conf{store: "store memory", site: lines("log", "header >X-Outcome {http.dedup.outcome}",
			"route {", dedupBlock("force X-Force"), inner, proxyTo(up), "}")})
		want := func(got reply, outcome string) {
			t.Helper()
			if shown := got.Header.Get("X-Outcome"); shown != outcome {
				t.Errorf("behind it %s: outcome %q, want %q", inner, shown, outcome)
			}
			p.awaitLog(t, "the access log entry of "+outcome, func(e entry) bool {
				return e.text("dedup_outcome") == outcome && e.text("dedup_execution_id") == got.executionID()
			})
		}
		want(p.post(t, "/", "k", "body"), "fresh")
		want(p.post(t, "/", "k", "body", header("X-Force", "true")), "forced")
		if got := p.post(t, "/", "", "body"); got.Header.Get("X-Outcome") != "missing" {
			t.Errorf("behind it %s: a request without a key has outcome %q", inner, got.Header.Get("X-Outcome"))
		}
		if n := p.scrape(t)[requests("api", "forced")]; sameKey && n != 2 {
			t.Errorf("a forced run that passes two dedups is counted %v times as forced, want 2", n)
		}
	}
}

// Each dedup on the way keeps a response of its own key, and the upstream chooses for all of
// them how long: the one in front would go on replaying what the upstream wants to execute anew.
func TestRetentionBehindASecondDedup(t *testing.T) {
	t.Parallel()
	for name, inner := range map[string]string{
		"of the same key":   "dedup",
		"of another key":    dedupBlock("scope another"),
		"that finds no key": dedupBlock("key header X-Other"),
		"of other methods":  dedupBlock("methods PUT"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				w.Header().Set("Dedup-Retention", "0")
				answers201(w, r, n)
			})
			sidecar := start(t, conf{store: "store memory", site: lines("route {", inner, proxyTo(up), "}")})
			for way, p := range map[string]*caddy{
				"in another process": start(t, conf{store: "store memory", site: lines("dedup", "reverse_proxy "+sidecar.addr)}),
				"in one":             start(t, conf{store: "store memory", site: lines("route {", "dedup", inner, proxyTo(up), "}")}),
			} {
				for n := range 2 {
					got := p.post(t, "/", way, "body")
					wantFresh(t, got, 201, fmt.Sprintf("run %d of %s", n+1, way))
					if v, ok := got.Header["Dedup-Retention"]; ok {
						t.Errorf("the client got Dedup-Retention %q", v)
					}
				}
			}
			if v, ok := sidecar.post(t, "/", "its own client", "body").Header["Dedup-Retention"]; ok {
				t.Errorf("a client of the one behind got Dedup-Retention %q", v)
			}
		})
	}
}

// Who waits behind another dedup gets the answer of a run that has freed the key, and the one in
// front must not keep what the upstream wants nobody to keep.
func TestRetentionOfAnAnswerThatWasWaitedFor(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Dedup-Retention", "0")
		answers201(w, r, n)
	}))
	sidecar := start(t, conf{store: "store memory", site: lines(dedupBlock("scope one", "in_flight wait 1m"), proxyTo(up))})
	gateway := func() *caddy {
		return start(t, conf{store: "store memory", site: lines("dedup", "reverse_proxy "+sidecar.addr)})
	}
	first, second := gateway(), gateway()
	ran := first.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	waited := second.postLater("/", "k", "body")
	sidecar.awaitWaiting(t, 1, waited)
	g.open()
	ran.reply(t)
	got := waited.reply(t)
	wantAnswer(t, got, 201, "run 1 of k")
	if v, ok := got.Header["Dedup-Retention"]; ok {
		t.Errorf("the client got Dedup-Retention %q", v)
	}
	wantAnswer(t, second.post(t, "/", "k", "body"), 201, "run 2 of k")
}

// What a sidecar with a store of its own refuses is no answer for the gateway to keep: a retry
// asks the sidecar again.
func TestRefusalOfASidecarIsNotKept(t *testing.T) {
	t.Parallel()
	for _, shown := range []string{"", "handle_errors {\nrespond refused {err.status_code}\n}"} {
		up := startUpstream(t, inTurn(answersStatus(502), answers201))
		sidecar := start(t, conf{store: "store memory", site: lines(dedupBlock("unknown hold"), proxyTo(up), shown)})
		gateway := start(t, conf{store: "store memory", site: lines(dedupBlock("release 5xx"), "reverse_proxy "+sidecar.addr)})
		if got := gateway.post(t, "/", "held", "body"); got.Status != 502 {
			t.Fatalf("a gateway that is lost answered %d", got.Status)
		}
		for range 2 {
			got := gateway.post(t, "/", "held", "body")
			if got.Status != 409 || got.replayed() || got.Header.Get("Dedup-Retention") != "" {
				t.Errorf("the refusal has status %d and header %v", got.Status, got.Header)
			}
		}
		sidecar.keys(t, 0, "release", "--yes", "held")
		got := gateway.post(t, "/", "held", "body")
		wantFresh(t, got, 201, "run 2 of held")
		wantReplay(t, gateway.post(t, "/", "held", "body"), got)
		if refused := sidecar.post(t, "/", "held", "another body"); refused.Status != 422 || refused.Header.Get("Dedup-Retention") != "" {
			t.Errorf("a client of the sidecar got %d with header %v", refused.Status, refused.Header)
		}
	}
}

func TestGatewayAndSidecarOnOneStoreRunOnce(t *testing.T) {
	t.Parallel()
	store := redisStore(t)
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	sidecar := start(t, conf{store: store, site: lines("dedup", proxyTo(up))})
	gateway := start(t, conf{store: store, site: lines("dedup", "reverse_proxy "+sidecar.addr)})

	all := append(gateway.postMany(5, "/", "k", "body", host("shop.test")), sidecar.postMany(5, "/", "k", "body", host("shop.test"))...)
	up.awaitRuns(t, "k", 1)
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 201, "run 1 of k")
	for _, p := range []*caddy{gateway, sidecar} {
		wantReplay(t, p.post(t, "/", "k", "body", host("shop.test")), got[0])
	}
	up.wantRuns(t, "k", 1)
	if id := up.nth(t, "k", 1).Header.Get("Dedup-Execution-Id"); id != got[0].executionID() {
		t.Errorf("the upstream got execution ID %q, the clients %q", id, got[0].executionID())
	}
}

// A sidecar that lets a run of the gateway through hands its body to a stand-in whole, or not at
// all.
func TestStandInBehindAGatewayAndSidecar(t *testing.T) {
	t.Parallel()
	store := redisStore(t)
	up := startUpstream(t, answers201)
	nobody := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	sidecar := start(t, conf{store: store, site: lines("route {", "tracing", "dedup", "reverse_proxy "+nobody+" {", "request_buffers 4KiB", "}", "}",
		"handle_errors {", "reverse_proxy "+up.addr+" {", "request_buffers 4KiB", "}", "}")})
	gateway := start(t, conf{store: store, site: lines("dedup", "reverse_proxy "+sidecar.addr)})
	for _, content := range []string{"", "body", strings.Repeat("body", 2000)} {
		key := fmt.Sprint("k", len(content))
		framing := fmt.Sprintf("Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n%x\r\n%s\r\n0\r\nX-T: t\r\n\r\n", len(content), content)
		if content == "" {
			framing = "Content-Length: 0\r\n\r\n"
		}
		gateway.sendRaw(t, []byte("POST / HTTP/1.1\r\nHost: shop.test\r\nIdempotency-Key: "+key+"\r\n"+framing))
		for _, run := range up.runs(key) {
			if run.Body != content {
				t.Errorf("%d bytes: the stand-in has executed %q", len(content), run.Body)
			}
		}
	}
}

func TestClientsCannotSetOurHeaders(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	forged := []option{
		header("Dedup-Execution-Id", "00000000-0000-7000-8000-000000000000"), header("Dedup-Attempt", "9"),
		header("Dedup-Parent-Id", "x"), header("Dedup-Retention", "1"), header("Dedup-Anything", "x"),
	}
	requests := map[string][]option{"k": forged, "without key": forged, "GET": append(forged, method("GET"))}
	for name, options := range requests {
		key := ""
		if name == "k" {
			key = "k"
		}
		before := len(up.all())
		if got := p.post(t, "/", key, "", options...); got.Status != 201 {
			t.Fatalf("%s: got %d %q", name, got.Status, got.Body)
		}
		ran := up.all()[before:]
		if len(ran) != 1 {
			t.Fatalf("%s: the upstream ran it %d times, want once", name, len(ran))
		}
		for field, values := range ran[0].Header {
			if !strings.HasPrefix(strings.ToLower(field), "dedup-") {
				continue
			}
			ours := name == "k" && (field == "Dedup-Execution-Id" || field == "Dedup-Attempt" || field == "Dedup-Claim")
			if !ours || len(values) != 1 || strings.HasPrefix(values[0], "00000000") || values[0] == "9" {
				t.Errorf("%s: the upstream got %s %q", name, field, values)
			}
		}
	}
}

func TestForgedExecutionIDDoesNotPassTheClaim(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("in_flight reject"), proxyTo(up))})
	first := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	wantProblem(t, p.post(t, "/", "k", "body", header("Dedup-Execution-Id", "00000000-0000-7000-8000-000000000000")), 409, "request_in_flight")
	g.open()
	done := first.reply(t)
	// One that has ended is none in flight.
	wantReplay(t, p.post(t, "/", "k", "body", header("Dedup-Execution-Id", done.executionID())), done)
	up.wantRuns(t, "k", 1)
}
