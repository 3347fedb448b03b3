package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

const day = 24 * time.Hour

// startsRuns plays an engine that answers each submit with a run's record.
func startsRuns(w http.ResponseWriter, _ *http.Request, n run) {
	parts := strings.Split(n.URI, "/")
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", fmt.Sprintf("/runs/%d", n.N))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"run_id": "run-%s-%d", "namespace": %q, "orchestration": %q}`, n.Key, n.N, parts[2], parts[4])
}

// submitTo is the path of an orchestration's submit.
func submitTo(namespace, orchestration string) string {
	return "/namespaces/" + namespace + "/orchestrations/" + orchestration + "/submit"
}

func TestRecipeOrchestrationSubmit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	up := startUpstream(t, startsRuns)
	r := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	gitHub := func(id string) option { return header("X-GitHub-Delivery", id) }
	other := func(id string) option { return header("X-Delivery-Id", id) }
	gitLab := func(id string) []option {
		return []option{header("Idempotency-Key", id), header("X-Gitlab-Event", "Push Hook")}
	}

	first := a.post(t, submitTo("shop", "deploy"), "", `{"input": 1}`, gitHub("d1"))
	wantFresh(t, first, 201, first.Body)
	if first.member(t, "run_id") != "run-d1-1" {
		t.Fatalf("the first submit got %q", first.Body)
	}
	// The same delivery by another hook and caller, over another host, is the same run.
	for _, p := range []*caddy{a, b} {
		again := p.post(t, submitTo("shop", "deploy"), "", `{"input": 1}`, gitHub("d1"),
			header("X-GitHub-Hook-ID", "7"), header("Authorization", "Bearer x"), host("other.test"))
		wantReplay(t, again, first)
		if again.Header.Get("Location") != first.Header.Get("Location") {
			t.Errorf("the duplicate is told of the run at %q, the first of %q", again.Header.Get("Location"), first.Header.Get("Location"))
		}
	}
	// Neither another place nor another sender's equal ID is.
	for name, got := range map[string]reply{
		"another namespace":              b.post(t, submitTo("store", "deploy"), "", "{}", gitHub("d1")),
		"another orchestration":          b.post(t, submitTo("shop", "build"), "", "{}", gitHub("d1")),
		"the same letters, cut apart":    b.post(t, submitTo("sho", "pdeploy"), "", "{}", gitHub("d1")),
		"another sender":                 b.post(t, submitTo("shop", "deploy"), "", "{}", other("d1")),
		"a third sender":                 b.post(t, submitTo("shop", "deploy"), "", "{}", gitLab("d1")...),
		"another delivery":               b.post(t, submitTo("shop", "deploy"), "", "{}", gitHub("d2")),
		"a delivery of the other sender": b.post(t, submitTo("shop", "deploy"), "", "{}", other("d2")),
	} {
		if got.Status != 201 || got.replayed() || got.member(t, "run_id") == first.member(t, "run_id") {
			t.Errorf("%s got %d %q, replayed: %v; want a run of its own", name, got.Status, got.Body, got.replayed())
		}
	}
	for range 2 {
		if got := a.post(t, submitTo("shop", "deploy"), "", "{}"); got.Status != 201 || got.replayed() || got.executionID() != "" {
			t.Errorf("a submit without ID got %d %v, want it passed", got.Status, got.Header)
		}
	}
	wantLives(t, redisClient(t, server), 8, 7*day-time.Minute, 7*day)

	a = r.restart(t, a)
	wantReplay(t, a.post(t, submitTo("shop", "deploy"), "", `{"input": 1}`, gitHub("d1")), first)
	server.Kill()
	server.Restart()
	for _, p := range []*caddy{a, b} {
		var got reply
		eventually(t, "the restarted store is asked again", func() bool {
			got = p.post(t, submitTo("shop", "deploy"), "", `{"input": 1}`, gitHub("d1"))
			return got.Status != 503
		})
		wantReplay(t, got, first)
	}
}

// A failed submit is none: the next one runs.
func TestRecipeOrchestrationSubmitFails(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, inTurn(answersStatus(500), answersStatus(404), startsRuns))
	p := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr).start(t)
	delivery := header("X-GitHub-Delivery", "d1")
	wantFresh(t, p.post(t, submitTo("shop", "deploy"), "", "{}", delivery), 500, "run 1 of d1")
	wantFresh(t, p.post(t, submitTo("shop", "deploy"), "", "{}", delivery), 404, "run 2 of d1")
	third := p.post(t, submitTo("shop", "deploy"), "", "{}", delivery)
	wantFresh(t, third, 201, third.Body)
	wantReplay(t, p.post(t, submitTo("shop", "deploy"), "", "{}", delivery), third)
	up.wantRuns(t, "d1", 3)
}

func TestRecipeOrchestrationSubmitIsRememberedForGood(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, startsRuns)
	p := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr).
		with(t, "retention 7d", "retention 36500d").start(t)
	first := p.post(t, submitTo("shop", "deploy"), "", "{}", header("X-Delivery-Id", "d1"))
	wantReplay(t, p.post(t, submitTo("shop", "deploy"), "", "{}", header("X-Delivery-Id", "d1")), first)
	wantLives(t, redisClient(t, server), 1, 36499*day, 36500*day)
}
