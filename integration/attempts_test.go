package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

func TestLastAttemptsAnswerIsKept(t *testing.T) {
	t.Parallel()
	for _, last := range []int{500, 503, 429, 401, 404, 201} {
		t.Run(fmt.Sprint(last), func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, inTurn(answersStatus(503), answersStatus(500), answersStatus(last)))
				p := start(t, conf{store: store, site: onPaths(up, map[string]string{
					"/api":  dedupBlock("max_attempts 3"),
					"/hook": dedupBlock("mode webhook", "max_attempts 3"),
				})})
				for _, path := range []string{"/api", "/hook"} {
					var got reply
					for n, status := range []int{503, 500, last} {
						got = p.post(t, path, path, "body")
						wantFresh(t, got, status, fmt.Sprintf("run %d of %s", n+1, path))
						wantAttempt(t, up, path, n+1, fmt.Sprint(n+1))
					}
					for range 3 {
						wantReplay(t, p.post(t, path, path, "body"), got)
					}
					up.wantRuns(t, path, 3)
				}
			})
		})
	}
}

func TestOnlyAttempt(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersStatus(500))
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_attempts 1"), proxyTo(up))})
	only := p.post(t, "/", "k", "body")
	wantFresh(t, only, 500, "run 1 of k")
	wantReplay(t, p.post(t, "/", "k", "body"), only)
}

// An end that is not known leaves nothing to be kept.
func TestLastAttemptWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, lost := range lostAnswers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, inTurn(answersStatus(500), lost.answer))
				p := start(t, conf{store: store, site: shownOnPaths(up, map[string]string{
					"/":     dedupBlock("max_attempts 2", lost.timeout),
					"/hook": dedupBlock("mode webhook", "max_attempts 2", lost.timeout),
				})})
				p.post(t, "/", "k", "body")
				wantLost(t, p, "k", lost.status)
				last := up.runs("k")[1].Header.Get("Dedup-Execution-Id")
				eventually(t, "the log says that no attempt is left", func() bool {
					return len(p.log.find(func(e entry) bool {
						return strings.HasPrefix(e.text("msg"), "exhausted: ") && e.text("level") == "warn" && e.text("execution_id") == last
					})) == 1
				})
				for range 3 {
					refused := p.post(t, "/", "k", "body")
					if told := wantProblem(t, refused, 409, "attempts_exhausted"); told.ExecutionID != last {
						t.Errorf("the refusal names execution %q, want %q", told.ExecutionID, last)
					}
					if refused.Header.Get("X-Outcome") != "exhausted" {
						t.Errorf("the outcome is %q", refused.Header.Get("X-Outcome"))
					}
				}
				up.wantRuns(t, "k", 2)

				p.post(t, "/hook", "h", "body")
				_, _ = try(oneShot, p.newPost("/hook", "h", "body")) // its failure is the one above
				refused := p.post(t, "/hook", "h", "body")
				wantProblem(t, refused, 503, "attempts_exhausted")
				wantRetryAfter(t, refused)
				up.wantRuns(t, "h", 2)
			})
		})
	}
}

// shownOnPaths is onPaths with the outcome shown to the client.
func shownOnPaths(up *upstream, blocks map[string]string) string {
	return lines("header >X-Outcome {http.dedup.outcome}", onPaths(up, blocks))
}

// Under hold an unknown end is an operator's matter before it is an attempt's.
func TestAttemptsUnderHold(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, inTurn(answersStatus(500), noAnswer, answers201))
		p := start(t, conf{store: store, site: lines(dedupBlock("max_attempts 5", "on_unknown hold"), proxyTo(up))})
		p.post(t, "/", "k", "body")
		wantLost(t, p, "k", 502)
		for range 2 {
			wantProblem(t, p.post(t, "/", "k", "body"), 409, "outcome_unknown")
		}
		up.wantRuns(t, "k", 2)
	})
}

// Under hold an unknown end is an operator's matter, also that of the last attempt, and
// also where a gateway answered. Another answer of the last attempt is kept.
func TestLastAttemptUnderHold(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		switch n.Key {
		case "cut":
			noAnswer(w, r, n)
		case "gateway":
			answersStatus(504)(w, r, n)
		default:
			answersStatus(500)(w, r, n)
		}
	})
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_attempts 1", "on_unknown hold"), proxyTo(up))})
	for _, id := range []string{"cut", "gateway"} {
		p.post(t, "/", id, "body")
		wantProblem(t, p.post(t, "/", id, "body"), 409, "outcome_unknown")
		up.wantRuns(t, id, 1)
	}
	failed := p.post(t, "/", "failed", "body")
	wantReplay(t, p.post(t, "/", "failed", "body"), failed)
}

// A run that never reached the upstream is no attempt.
func TestNotSentIsNoAttempt(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answersStatus(500))
		nobody := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
		p := start(t, conf{store: store, site: lines("@away header X-Away *", "route {", dedupBlock("max_attempts 2"),
			"reverse_proxy @away "+nobody, proxyTo(up), "}")})
		away := func() {
			t.Helper()
			for range 3 {
				if got := p.post(t, "/", "k", "body", header("X-Away", "1")); got.Status != 502 || got.replayed() {
					t.Fatalf("got %d %v, want a plain 502", got.Status, got.Header)
				}
			}
		}
		away()
		wantFresh(t, p.post(t, "/", "k", "body"), 500, "run 1 of k")
		wantAttempt(t, up, "k", 1, "1")
		away()
		second := p.post(t, "/", "k", "body")
		wantFresh(t, second, 500, "run 2 of k")
		wantAttempt(t, up, "k", 2, "2")
		wantReplay(t, p.post(t, "/", "k", "body", header("X-Away", "1")), second)
	})
}

func TestWaitersOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, inTurn(answersStatus(500), g.before(noAnswer)))
	c := conf{store: redisStore(t), site: lines(dedupBlock("max_attempts 2"), proxyTo(up))}
	a, b := start(t, c), start(t, c)
	a.post(t, "/", "k", "body", host("shop.test"))
	last := a.postLater("/", "k", "body", host("shop.test"))
	up.awaitRuns(t, "k", 2)
	here, there := a.postLater("/", "k", "body", host("shop.test")), b.postLater("/", "k", "body", host("shop.test"))
	a.awaitWaiting(t, 1, here)
	b.awaitWaiting(t, 1, there)
	g.open()
	for _, got := range []reply{last.reply(t), here.reply(t), there.reply(t)} {
		if got.Status != 502 || got.Header.Get("Content-Type") == "application/problem+json" {
			t.Errorf("got %d %q, want the run's own 502", got.Status, got.Body)
		}
	}
	for _, p := range []*caddy{a, b} {
		wantProblem(t, p.post(t, "/", "k", "body", host("shop.test")), 409, "attempts_exhausted")
	}
	up.wantRuns(t, "k", 2)
}

// A replica that dies in the last attempt has used it up; under hold its end is
// an operator's matter.
func TestOwnerDiesInTheLastAttempt(t *testing.T) {
	t.Parallel()
	for unknown, code := range map[string]string{"release": "attempts_exhausted", "hold": "outcome_unknown"} {
		t.Run(unknown, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			up := startUpstream(t, inTurn(answersStatus(500), untilGone))
			c := conf{store: storeAt(server.Addr), site: lines(dedupBlock("max_attempts 2", "lease 1500ms", "on_unknown "+unknown), proxyTo(up))}
			a, b := start(t, c), start(t, c)
			a.post(t, "/", "k", "body", host("shop.test"))
			dying := a.postLater("/", "k", "body", host("shop.test"))
			last := up.awaitRuns(t, "k", 2).Header.Get("Dedup-Execution-Id")
			a.kill(t)
			<-dying.done
			for range 2 {
				if told := wantProblem(t, b.post(t, "/", "k", "body", host("shop.test")), 409, code); told.ExecutionID != last {
					t.Errorf("the refusal names execution %q, want %q", told.ExecutionID, last)
				}
			}
			up.wantRuns(t, "k", 2)
		})
	}
}

// The count lives as long as the record.
func TestAttemptsAreForgottenWithTheRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	up := startUpstream(t, answersStatus(500))
	p := start(t, conf{store: storeAt(server.Addr), site: lines(dedupBlock("max_attempts 2", "retention 1s", "lease 1500ms"), proxyTo(up))})
	for n := range 2 {
		p.post(t, "/", "k", "body")
		wantAttempt(t, up, "k", n+1, fmt.Sprint(n+1))
	}
	eventually(t, "the record is gone", func() bool { return client.DBSize(context.Background()).Val() == 0 })
	wantFresh(t, p.post(t, "/", "k", "body"), 500, "run 3 of k")
	wantAttempt(t, up, "k", 3, "1")
}
