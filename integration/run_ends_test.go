package integration

import (
	"cmp"
	"fmt"
	"net/http"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// wantAttempt fails unless the n-th run of a key had this Dedup-Attempt. The first one has none.
func wantAttempt(t *testing.T, up *upstream, key string, n int, attempt string) {
	t.Helper()
	if got := up.nth(t, key, n).Header.Get("Dedup-Attempt"); cmp.Or(got, "1") != attempt || got == "1" {
		t.Errorf("run %d of %q has Dedup-Attempt %q, want %s", n, key, got, attempt)
	}
}

func TestUpstreamNeverReachedReleases(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
				p := start(t, conf{store: store, site: lines(dedupBlock("on_unknown "+unknown), "reverse_proxy "+addr)})
				for range 2 {
					if got := p.post(t, "/", "k", ""); got.Status != 502 || got.replayed() {
						t.Fatalf("got %d %v, want a plain 502", got.Status, got.Header)
					}
				}
				up := startUpstreamOn(t, addr, answers201)
				wantFresh(t, p.post(t, "/", "k", ""), 201, "run 1 of k")
				wantAttempt(t, up, "k", 1, "1")
			})
		})
	}
}

// passwordHash is bcrypt's of "open sesame", at its lowest cost.
const passwordHash = "$2a$04$uf76iymeUNTJnEhP70mn.eLvDOZNaERVsFNAoeUWIl9NCQiBTSOAO"

func TestInnerRefusalIsNotARun(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, answers201)
			p := start(t, conf{store: "store memory", site: lines("route {",
				dedupBlock("scope fixed", "on_unknown "+unknown),
				"basic_auth {", "ali "+passwordHash, "}",
				proxyTo(up), "}")})
			for range 2 {
				if got := p.post(t, "/", "k", ""); got.Status != 401 || got.replayed() {
					t.Fatalf("got %d %v, want a plain 401", got.Status, got.Header)
				}
			}
			withPassword := func(r *http.Request) { r.SetBasicAuth("ali", "open sesame") }
			wantFresh(t, p.post(t, "/", "k", "", withPassword), 201, "run 1 of k")
			wantAttempt(t, up, "k", 1, "1")
		})
	}
}

// lostAnswers are the ways in which a run ends that may have been executed and
// has no whole response.
var lostAnswers = map[string]struct {
	answer  answering
	status  int    // what the client gets, 0 for a failure
	timeout string // that none of the other runs reaches
}{
	"cut body":   {cutBody, 0, "timeout 1m"},
	"cut stream": {cutStream, 0, "timeout 1m"},
	"no answer":  {noAnswer, 502, "timeout 1m"},
	"timed out":  {untilGone, 504, "timeout 2s"},
}

func TestLostAnswerIsReleasedAndRunsAgain(t *testing.T) {
	t.Parallel()
	for name, lost := range lostAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, inTurn(lost.answer, answers201))
				p := start(t, conf{store: store, site: lines(dedupBlock(lost.timeout), proxyTo(up))})
				wantLost(t, p, "k", lost.status)
				second := p.post(t, "/", "k", "body")
				wantFresh(t, second, 201, "run 2 of k")
				wantAttempt(t, up, "k", 2, "2")
				wantReplay(t, p.post(t, "/", "k", "body"), second)
			})
		})
	}
}

func TestLostAnswerIsHeld(t *testing.T) {
	t.Parallel()
	for name, lost := range lostAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, inTurn(lost.answer, answers201))
				p := start(t, conf{store: store, site: lines(
					"handle /hook {", dedupBlock("mode webhook", "on_unknown hold", lost.timeout), proxyTo(up), "}",
					"handle {", dedupBlock("on_unknown hold", lost.timeout), proxyTo(up), "}")})
				wantLost(t, p, "k", lost.status)
				for range 2 {
					held := wantProblem(t, p.post(t, "/", "k", "body"), 409, "outcome_unknown")
					if want := up.nth(t, "k", 1).Header.Get("Dedup-Execution-Id"); held.ExecutionID != want {
						t.Errorf("the refusal names execution %q, want %q", held.ExecutionID, want)
					}
				}
				up.wantRuns(t, "k", 1)

				_, _ = try(oneShot, p.newPost("/hook", "hook", "body")) // its failure is the one above
				refused := p.post(t, "/hook", "hook", "body")
				wantProblem(t, refused, 503, "outcome_unknown")
				wantRetryAfter(t, refused)
				up.wantRuns(t, "hook", 1)
			})
		})
	}
}

// wantLost sends a request whose answer is lost on the way.
func wantLost(t *testing.T, p *caddy, key string, status int) {
	t.Helper()
	got, err := try(oneShot, p.newPost("/", key, "body"))
	switch {
	case status == 0 && err == nil:
		t.Fatalf("the client got a whole answer: %d %q", got.Status, got.Body)
	case status != 0 && (err != nil || got.Status != status || got.replayed()):
		t.Fatalf("the client got %d, %v; want %d", got.Status, err, status)
	}
}

func TestWaitersOfALostAnswerDoNotRun(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, inTurn(g.before(noAnswer), answers201))
	p := start(t, conf{store: "store memory", site: lines(dedupBlock(), proxyTo(up))})

	first := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	waiters := p.postMany(5, "/", "k", "body")
	p.awaitWaiting(t, 5, waiters...)
	g.open()
	failed := first.reply(t)
	if failed.Status != 502 {
		t.Errorf("the first got %d, want 502", failed.Status)
	}
	for _, got := range replies(t, waiters) {
		if got.Status != 502 || !got.replayed() {
			t.Errorf("a waiter got %d %q, want the run's 502", got.Status, got.Body)
		}
	}
	up.wantRuns(t, "k", 1)
}

func TestGatewayErrorsAreUnknownUnderHold(t *testing.T) {
	t.Parallel()
	for _, status := range []int{502, 504} {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if n.Key == "k500" {
				answersStatus(500)(w, r, n)
				return
			}
			answersStatus(status)(w, r, n)
		})
		p := start(t, conf{store: "store memory", site: lines(
			"handle /hook {", dedupBlock("mode webhook", "on_unknown hold"), proxyTo(up), "}",
			"handle {", dedupBlock("on_unknown hold"), proxyTo(up), "}")})
		wantFresh(t, p.post(t, "/", "k", ""), status, "run 1 of k")
		wantProblem(t, p.post(t, "/", "k", ""), 409, "outcome_unknown")
		p.post(t, "/hook", "hook", "")
		refused := p.post(t, "/hook", "hook", "")
		wantProblem(t, refused, 503, "outcome_unknown")
		wantRetryAfter(t, refused)
		up.wantRuns(t, "k", 1)
		up.wantRuns(t, "hook", 1)

		// Other 5xx say that the service knows, and release as ever.
		p.post(t, "/", "k500", "")
		wantFresh(t, p.post(t, "/", "k500", ""), 500, "run 2 of k500")
	}
}

// What the upstream answered counts, too, where a route shows clients another status.
func TestMaskedStatusReleases(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answersStatus(500), answers201))
	p := start(t, conf{store: "store memory", site: lines("dedup", "reverse_proxy "+up.addr+" {",
		"@failed status 5xx", "handle_response @failed {", `respond "accepted" 200`, "}", "}")})
	wantFresh(t, p.post(t, "/", "k", ""), 200, "accepted")
	wantFresh(t, p.post(t, "/", "k", ""), 201, "run 2 of k")
}

func TestAnswersOfCaddyItselfAreKept(t *testing.T) {
	t.Parallel()
	p := start(t, conf{store: "store memory", site: lines("dedup", `respond "{http.request.uuid}" 202`)})
	first := p.post(t, "/", "k", "")
	wantFresh(t, first, 202, first.Body)
	wantReplay(t, p.post(t, "/", "k", ""), first)
}

func TestAbortedRequestIsNotStored(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("@abort header X-Abort *",
		"route {", "dedup", "abort @abort", proxyTo(up), "}")})
	if got, err := try(oneShot, p.newPost("/", "k", "", header("X-Abort", "1"))); err == nil {
		t.Fatalf("the client got an answer: %d", got.Status)
	}
	wantFresh(t, p.post(t, "/", "k", ""), 201, "run 1 of k")
}

// Go's transport sends a request again by itself if it has an idempotency key
// and no body and a kept connection breaks.
func TestBrokenConnectionDoesNotRunTwice(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			if r.URL.Path == "/broken" {
				noAnswer(w, r, n)
				return
			}
			answers201(w, r, n)
		})
		p := start(t, conf{store: "store memory", site: lines(dedupBlock("key header "+name), proxyTo(up))})
		p.post(t, "/", "", "", header(name, "warm")) // leaves a kept connection behind
		before := len(up.all())
		got := p.post(t, "/broken", "", "", header(name, "k"))
		if got.Status != 502 {
			t.Errorf("%s: the client got %d, want 502", name, got.Status)
		}
		if ran := len(up.all()) - before; ran != 1 {
			t.Errorf("%s: the upstream ran it %d times, want once", name, ran)
		}
		for _, ran := range up.all()[before:] {
			if got := ran.Header.Get(name); got != "k" {
				t.Errorf("the upstream got %s %q, want it unchanged", name, got)
			}
		}
	}
}

// A response handler may set a header and write no status, which the server then does. All
// get what it has set, and what the upstream has executed does not run again.
func TestRunThatWritesNoStatus(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.Header().Set("X-Inner", "yes")
		w.Header().Set("Dedup-Retention", "60")
		w.Header().Set("Dedup-Execution-Id", "forged")
	}))
	p := start(t, conf{store: "store memory", site: lines("route {", "header X-Outer yes", "dedup",
		proxyTo(up)+" {", "handle_response {", "copy_response_headers", "}", "}", "}")})
	all := []*pending{p.postLater("/", "k", "body")}
	up.awaitRuns(t, "k", 1)
	all = append(all, p.postLater("/", "k", "body"))
	p.awaitWaiting(t, 1, all[1])
	g.open()
	for i, got := range append(replies(t, all), p.post(t, "/", "k", "body")) {
		wantAnswer(t, got, 200, "")
		if got.replayed() != (i > 0) || got.Header.Get("X-Inner") != "yes" || got.Header.Get("X-Outer") != "yes" {
			t.Errorf("request %d got %v", i, got.Header)
		}
		if ids := got.Header.Values("Dedup-Execution-Id"); len(ids) != 1 || ids[0] == "forged" || got.Header.Get("Dedup-Retention") != "" {
			t.Errorf("request %d got the upstream's own fields: %v", i, got.Header)
		}
	}
}
