package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

var byForce = header("X-Force", "true")

// wantForced fails unless the answer is that of a run by force after another.
func wantForced(t *testing.T, got reply, status int, body string, parent reply) {
	t.Helper()
	wantFresh(t, got, status, body)
	if got.executionID() == parent.executionID() || !uuidV7.MatchString(got.executionID()) {
		t.Errorf("the forced run is execution %q, its parent %q", got.executionID(), parent.executionID())
	}
	if id := got.Header.Get("Dedup-Parent-Id"); id != parent.executionID() {
		t.Errorf("the client is told the parent %q, want %q", id, parent.executionID())
	}
}

func TestForceReplacesACompleteRequest(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answers201)
		p := start(t, conf{store: store, site: shown(dedupBlock("force X-Force"), up)})
		first := p.post(t, "/", "k", "body")
		forced := p.post(t, "/", "k", "other body", byForce)
		wantForced(t, forced, 201, "run 2 of k", first)
		if forced.Header.Get("X-Outcome") != "forced" {
			t.Errorf("the outcome is %q", forced.Header.Get("X-Outcome"))
		}
		ran := up.runs("k")[1]
		if ran.Header.Get("Dedup-Parent-Id") != first.executionID() || ran.Header.Get("Dedup-Execution-Id") != forced.executionID() {
			t.Errorf("the upstream was told %v", ran.Header)
		}
		// From now on the forced one is what is known of the key.
		replayed := p.post(t, "/", "k", "other body")
		wantReplay(t, replayed, forced)
		if replayed.Header.Get("Dedup-Parent-Id") != first.executionID() {
			t.Errorf("the replay names the parent %q", replayed.Header.Get("Dedup-Parent-Id"))
		}
		wantProblem(t, p.post(t, "/", "k", "body"), 422, "idempotency_key_reused")
		// A retry of a forced request forces again.
		again := p.post(t, "/", "k", "other body", byForce)
		wantForced(t, again, 201, "run 3 of k", forced)
		wantReplay(t, p.post(t, "/", "k", "other body"), again)
		up.wantRuns(t, "k", 3)
	})
}

// The field goes no further, whatever it says and whether the request has a key.
func TestForceHeaderIsRemoved(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: onPaths(up, map[string]string{
		"/on":  dedupBlock("force X-Force"),
		"/off": dedupBlock(),
	})})
	first := p.post(t, "/on", "k", "body")
	for _, value := range []string{"", "false", "1", "yes", "TRUE", "true, true"} {
		got := p.post(t, "/on", "k", "body", header("x-force", value))
		wantReplay(t, got, first)
		p.post(t, "/on", "fresh"+value, "body", header("X-Force", value))
	}
	p.post(t, "/on", "fresh", "body", byForce)
	p.post(t, "/on", "", "body", byForce)
	p.post(t, "/on", "", "", byForce, method("GET"))
	for _, ran := range up.all() {
		if v, ok := ran.Header["X-Force"]; ok {
			t.Errorf("%s %s got X-Force %q", ran.Method, ran.Key, v)
		}
	}
	if n := len(up.all()); n != 10 {
		t.Errorf("the upstream ran %d times, want 10", n)
	}
	// Where it is not named, it is a field as any.
	kept := p.post(t, "/off", "k", "body", byForce)
	wantReplay(t, p.post(t, "/off", "k", "body", byForce), kept)
	all := up.all()
	if got := all[len(all)-1].Header.Get("X-Force"); got != "true" {
		t.Errorf("without force the upstream got X-Force %q", got)
	}
}

// With nothing to replace, a forced run is an ordinary one.
func TestForceWithoutACompleteRequest(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, inTurn(answersStatus(500), answers201))
		p := start(t, conf{store: store, site: shown(dedupBlock("force X-Force"), up)})
		for n, status := range []int{500, 201} {
			got := p.post(t, "/", "k", "body", byForce)
			wantFresh(t, got, status, fmt.Sprintf("run %d of k", n+1))
			wantAttempt(t, up, "k", n+1, fmt.Sprint(n+1))
			if got.Header.Get("Dedup-Parent-Id") != "" || up.runs("k")[n].Header.Get("Dedup-Parent-Id") != "" || got.Header.Get("X-Outcome") != "executed" {
				t.Errorf("run %d is taken for a forced one: %v", n+1, got.Header)
			}
			p.awaitForceLine(t, "no response is kept", got.executionID(), "")
		}
	})
}

// A forced run that keeps nothing leaves what was.
func TestForcedRunThatFailsLeavesTheOldResponse(t *testing.T) {
	t.Parallel()
	for name, lost := range lostAnswers {
		for _, unknown := range []string{"release", "hold"} {
			t.Run(name+" under "+unknown, func(t *testing.T) {
				t.Parallel()
				eachStore(t, func(t *testing.T, store string) {
					up := startUpstream(t, inTurn(answers201, lost.answer, answersStatus(503), answers201))
					p := start(t, conf{store: store, site: lines(dedupBlock("force X-Force", lost.timeout, "on_unknown "+unknown), proxyTo(up))})
					first := p.post(t, "/", "k", "body")
					got, err := try(oneShot, p.newPost("/", "k", "body", byForce))
					if lost.status == 0 && err == nil || lost.status != 0 && (err != nil || got.Status != lost.status) {
						t.Errorf("the forced request got %d, %v; want the failure", got.Status, err)
					}
					wantReplay(t, p.post(t, "/", "k", "body"), first)
					failed := p.post(t, "/", "k", "body", byForce)
					wantForced(t, failed, 503, "run 3 of k", first)
					wantReplay(t, p.post(t, "/", "k", "body"), first)
					forced := p.post(t, "/", "k", "body", byForce)
					wantForced(t, forced, 201, "run 4 of k", first)
					wantReplay(t, p.post(t, "/", "k", "body"), forced)
				})
			})
		}
	}
}

func TestForcedRunThatIsNotSentLeavesTheOldResponse(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	nobody := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	p := start(t, conf{store: redisStore(t), site: lines("@nobody header X-Force *", "route {", dedupBlock("force X-Away", "scope fixed"),
		"reverse_proxy @nobody "+nobody, proxyTo(up), "}")})
	first := p.post(t, "/", "k", "body")
	if got := p.post(t, "/", "k", "body", header("X-Away", "true"), byForce); got.Status != 502 || got.replayed() {
		t.Errorf("got %d %v, want a plain 502", got.Status, got.Header)
	}
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	forced := p.post(t, "/", "k", "body", header("X-Away", "true"))
	wantForced(t, forced, 201, "run 2 of k", first)
}

// The upstream may not want its forced answer kept.
func TestForcedRunThatIsReleasedLeavesTheOldResponse(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answers201, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Dedup-Retention", "0")
		answers201(w, r, n)
	}))
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("force X-Force"), proxyTo(up))})
	first := p.post(t, "/", "k", "body")
	wantForced(t, p.post(t, "/", "k", "body", byForce), 201, "run 2 of k", first)
	wantReplay(t, p.post(t, "/", "k", "body"), first)
}

// The last attempt's failure is kept where nothing else is; a forced run may fail
// beyond all attempts and leave what was.
func TestForceBeyondTheLastAttempt(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, inTurn(answersStatus(500), answersStatus(500), answersStatus(503), answers201, answersStatus(500)))
		p := start(t, conf{store: store, site: lines(dedupBlock("force X-Force", "max_attempts 2"), proxyTo(up))})
		p.post(t, "/", "k", "body")
		last := p.post(t, "/", "k", "body")
		wantReplay(t, p.post(t, "/", "k", "body"), last)
		wantForced(t, p.post(t, "/", "k", "body", byForce), 503, "run 3 of k", last)
		wantReplay(t, p.post(t, "/", "k", "body"), last)
		forced := p.post(t, "/", "k", "body", byForce)
		wantForced(t, forced, 201, "run 4 of k", last)
		wantForced(t, p.post(t, "/", "k", "body", byForce), 500, "run 5 of k", forced)
		wantReplay(t, p.post(t, "/", "k", "body"), forced)
		up.wantRuns(t, "k", 5)
	})
}

func TestForceInFlight(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		g := newGate(t)
		up := startUpstream(t, g.before(answers201))
		p := start(t, conf{store: store, site: onPaths(up, map[string]string{
			"/wait":   dedupBlock("force X-Force"),
			"/reject": dedupBlock("force X-Force", "wait off"),
		})})
		waited, rejected := p.postLater("/wait", "w", "body"), p.postLater("/reject", "r", "body")
		up.awaitRuns(t, "w", 1)
		up.awaitRuns(t, "r", 1)
		forced := p.postLater("/wait", "w", "body", byForce)
		p.awaitWaiting(t, 1, forced)
		wantProblem(t, p.post(t, "/reject", "r", "body", byForce), 409, "request_in_flight")
		wantProblem(t, p.post(t, "/reject", "r", "other", byForce), 422, "idempotency_key_reused")
		g.open()
		wantReplay(t, forced.reply(t), waited.reply(t))
		p.awaitForceLine(t, "got the response", waited.reply(t).executionID(), "")
		p.awaitForceLine(t, "was refused", rejected.reply(t).executionID(), "request_in_flight")
		up.wantRuns(t, "w", 1)
		up.wantRuns(t, "r", 1)
	})
}

func TestForceDoesNotFreeAHeldKey(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, inTurn(noAnswer, answers201))
		p := start(t, conf{store: store, site: lines(dedupBlock("force X-Force", "on_unknown hold"), proxyTo(up))})
		wantLost(t, p, "k", 502)
		for range 2 {
			wantProblem(t, p.post(t, "/", "k", "body", byForce), 409, "outcome_unknown")
			wantProblem(t, p.post(t, "/", "k", "body"), 409, "outcome_unknown")
		}
		up.wantRuns(t, "k", 1)
	})
}

// Those who force at once share one run, over two replicas, and so do those who
// come meanwhile without force.
func TestConcurrentForcesShareOneRun(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]answering{"kept": answers201, "released": answersStatus(500)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			up := startUpstream(t, inTurn(answers201, g.before(second), answers201))
			c := conf{store: redisStore(t), site: lines(dedupBlock("force X-Force"), proxyTo(up))}
			a, b := start(t, c), start(t, c)
			options := []option{host("shop.test")}
			first := a.post(t, "/", "k", "body", options...)

			all := a.postMany(10, "/", "k", "body", host("shop.test"), byForce)
			up.awaitRuns(t, "k", 2)
			all = append(all, b.postMany(10, "/", "k", "body", host("shop.test"), byForce)...)
			all = append(all, a.postLater("/", "k", "body", options...), b.postLater("/", "k", "body", options...))
			a.awaitWaiting(t, 10, all...)
			b.awaitWaiting(t, 11, all...)
			g.open()
			got := replies(t, all)
			allAlike(t, got)
			up.wantRuns(t, "k", 2)
			for _, r := range got {
				if r.Header.Get("Dedup-Parent-Id") != first.executionID() {
					t.Errorf("an answer names the parent %q, want %q", r.Header.Get("Dedup-Parent-Id"), first.executionID())
				}
			}
			want := first
			if name == "kept" {
				want = got[0]
			}
			for _, p := range []*caddy{a, b} {
				wantReplay(t, p.post(t, "/", "k", "body", options...), want)
			}
		})
	}
}

// A forced run whose replica dies has replaced nothing.
func TestForcedRunThatDiesLeavesTheOldResponse(t *testing.T) {
	t.Parallel()
	for _, unknown := range []string{"release", "hold"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			up := startUpstream(t, inTurn(answers201, untilGone, answers201))
			c := conf{store: storeAt(server.Addr), site: lines(dedupBlock("force X-Force", "lease 1500ms", "on_unknown "+unknown), proxyTo(up))}
			a, b := start(t, c), start(t, c)
			first := a.post(t, "/", "k", "body", host("shop.test"))
			dying := a.postLater("/", "k", "body", host("shop.test"), byForce)
			up.awaitRuns(t, "k", 2)
			a.kill(t)
			<-dying.done
			wantReplay(t, b.post(t, "/", "k", "body", host("shop.test")), first)
			wantForced(t, b.post(t, "/", "k", "body", host("shop.test"), byForce), 201, "run 3 of k", first)
			up.wantRuns(t, "k", 3)
		})
	}
}

// awaitForceLine waits for the line of a forced request that is no run on purpose.
func (p *caddy) awaitForceLine(t *testing.T, says, executionID, code string) {
	t.Helper()
	line := p.awaitLog(t, "a line that the forced request "+says, func(e entry) bool {
		return strings.HasPrefix(e.text("msg"), "force: ") && strings.Contains(e.text("msg"), says) && e.text("execution_id") == executionID
	})
	if line.text("level") != "info" || line.text("client_ip") == "" || line.text("method") != "POST" || line.text("code") != code {
		t.Errorf("the line is %v", line)
	}
}
