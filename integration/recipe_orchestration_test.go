package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

const day = 24 * time.Hour

const submitPath = "/v1/orchestration-runs"

// startsRuns plays an engine that answers each submit with a run's record.
func startsRuns(w http.ResponseWriter, r *http.Request, n run) {
	var submit struct {
		Namespace        string `json:"namespace"`
		OrchestrationRef struct {
			Name string `json:"name"`
		} `json:"orchestrationRef"`
	}
	if err := json.Unmarshal([]byte(n.Body), &submit); err != nil {
		panic(err) // the tests write these bodies
	}
	w.Header().Set("Location", fmt.Sprintf("/v1/orchestration-runs/%d", n.N))
	answersJSON(http.StatusCreated, `{"run_id": "run-%s-%d", "namespace": %q, "orchestration": %q}`,
		n.Key, n.N, submit.Namespace, submit.OrchestrationRef.Name)(w, r, n)
}

// submitTo is the body of a submit of an orchestration, in a namespace or in none.
func submitTo(namespace, orchestration string) string {
	if namespace == "" {
		return fmt.Sprintf(`{"orchestrationRef": {"name": %q}, "input": {"ref": "main"}}`, orchestration)
	}
	return fmt.Sprintf(`{"namespace": %q, "orchestrationRef": {"name": %q}, "input": {"ref": "main"}}`, namespace, orchestration)
}

func TestRecipeOrchestrationSubmit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	up := startUpstream(t, startsRuns)
	r := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	gitHub := func(id string) option { return header("X-GitHub-Delivery", id) }
	submits := func(id string) option { return header("Idempotency-Key", id) }
	gitLab := func(id string) option {
		return func(r *http.Request) {
			header("Idempotency-Key", id)(r)
			header("X-Gitlab-Event", "Push Hook")(r)
		}
	}

	first := a.post(t, submitPath, "", submitTo("shop", "deploy"), submits("d1"), host("a.test"))
	wantFresh(t, first, 201, first.Body)
	if first.member(t, "run_id") != "run-d1-1" {
		t.Fatalf("the first submit got %q", first.Body)
	}
	// The same delivery by another caller, at another replica with a name of its own, and
	// with its members in another order, is the same run.
	for _, p := range []*caddy{a, b} {
		again := p.post(t, submitPath, "", `{"orchestrationRef":{"name":"deploy"},"input":{"ref":"main"},"namespace":"shop"}`, submits("d1"),
			header("Authorization", "Bearer x"), host("b.test"))
		wantReplay(t, again, first)
		if again.Header.Get("Location") != first.Header.Get("Location") {
			t.Errorf("the duplicate is told of the run at %q, the first of %q", again.Header.Get("Location"), first.Header.Get("Location"))
		}
	}
	wantProblem(t, b.post(t, submitPath, "", `{"namespace": "shop", "orchestrationRef": {"name": "deploy"}, "input": {"ref": "other"}}`, submits("d1")),
		422, "idempotency_key_reused")
	// Neither another place nor another sender's equal ID is.
	for name, got := range map[string]reply{
		"another namespace":           b.post(t, submitPath, "", submitTo("store", "deploy"), submits("d1")),
		"no namespace":                b.post(t, submitPath, "", submitTo("", "deploy"), submits("d1")),
		"another orchestration":       b.post(t, submitPath, "", submitTo("shop", "build"), submits("d1")),
		"the same letters, cut apart": b.post(t, submitPath, "", submitTo("sho", "pdeploy"), submits("d1")),
		"the same letters, joined":    b.post(t, submitPath, "", submitTo("", "shop:deploy"), submits("d1")),
		"a sender":                    b.post(t, submitPath, "", submitTo("shop", "deploy"), gitHub("d1")),
		"another sender":              b.post(t, submitPath, "", submitTo("shop", "deploy"), gitLab("d1")),
		"another delivery":            b.post(t, submitPath, "", submitTo("shop", "deploy"), submits("d2")),
	} {
		if got.Status != 201 || got.replayed() || got.executionID() == "" || got.executionID() == first.executionID() {
			t.Errorf("%s got %d %q, replayed: %v; want a run of its own", name, got.Status, got.Body, got.replayed())
		}
	}
	for range 2 {
		for _, other := range []reply{a.post(t, submitPath, "", submitTo("shop", "deploy")), a.post(t, submitPath, "", `{"input": 1}`, submits("d1"))} {
			if other.Status != 201 || other.replayed() || other.executionID() != "" {
				t.Errorf("a submit without ID or orchestration got %d %v, want it passed", other.Status, other.Header)
			}
		}
	}
	wantLives(t, redisClient(t, server), 9, 7*day-time.Minute, 7*day)

	a = r.restart(t, a)
	wantReplay(t, a.post(t, submitPath, "", submitTo("shop", "deploy"), submits("d1")), first)
	server.Kill()
	server.Restart()
	for _, p := range []*caddy{a, b} {
		var got reply
		eventually(t, "the restarted store is asked again", func() bool {
			got = p.post(t, submitPath, "", submitTo("shop", "deploy"), submits("d1"))
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
	delivery := header("Idempotency-Key", "d1")
	wantFresh(t, p.post(t, submitPath, "", submitTo("shop", "deploy"), delivery), 500, "run 1 of d1")
	wantFresh(t, p.post(t, submitPath, "", submitTo("shop", "deploy"), delivery), 404, "run 2 of d1")
	third := p.post(t, submitPath, "", submitTo("shop", "deploy"), delivery)
	wantFresh(t, third, 201, third.Body)
	wantReplay(t, p.post(t, submitPath, "", submitTo("shop", "deploy"), delivery), third)
	up.wantRuns(t, "d1", 3)
}

// How long a run is remembered is set where the process is started.
func TestRecipeOrchestrationSubmitIsRememberedForGood(t *testing.T) {
	server := redistest.Start(t)
	up := startUpstream(t, startsRuns)
	t.Setenv("RUN_RETENTION", "36500d")
	p := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr).start(t)
	first := p.post(t, submitPath, "d1", submitTo("shop", "deploy"))
	wantReplay(t, p.post(t, submitPath, "d1", submitTo("shop", "deploy")), first)
	wantLives(t, redisClient(t, server), 1, 36499*day, 36500*day)
}

// A caller that looks at the state is sent to the record as it is now.
func TestRecipeOrchestrationSubmitSeesOther(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, startsRuns)
	p := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr).
		with(t, "scope orchestration-runs", "scope orchestration-runs\non_duplicate see_other").start(t)
	first := p.post(t, submitPath, "d1", submitTo("shop", "deploy"))
	again := p.post(t, submitPath, "d1", submitTo("shop", "deploy"))
	wantReplay(t, again, reply{Status: 303, Header: first.Header})
	if again.Header.Get("Location") != first.Header.Get("Location") || again.Header.Get("Location") == "" {
		t.Errorf("the duplicate is sent to %q", again.Header.Get("Location"))
	}
}
