package integration

import (
	"fmt"
	"net/http"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

const day = 24 * time.Hour

// startsRuns plays a service that starts a run for each POST, and shows its record, which has
// changed meanwhile, to a GET. It fails where a request asks for that.
func startsRuns(w http.ResponseWriter, r *http.Request, n run) {
	if r.Method == http.MethodGet {
		answersJSON(http.StatusOK, `{"id": %q, "state": "done"}`, path.Base(r.URL.Path))(w, r, n)
		return
	}
	switch fail := r.Header.Get("Fail"); fail {
	case "":
	case "no answer":
		noAnswer(w, r, n)
		return
	case "hangs":
		untilGone(w, r, n)
		return
	case "cut":
		cutStream(w, r, n)
		return
	case "says so":
		answersJSON(http.StatusOK, `{"ok": false}`)(w, r, n)
		return
	default:
		status, err := strconv.Atoi(fail)
		if err != nil {
			panic(err) // the tests write these fields
		}
		answersStatus(status)(w, r, n)
		return
	}
	answersJSON(http.StatusCreated, `{"id": "run-%d", "state": "queued"}`, n.N)(w, r, n)
}

// posts counts the requests that would start something.
func (u *upstream) posts() (n int) {
	for _, r := range u.all() {
		if r.Method == http.MethodPost {
			n++
		}
	}
	return n
}

func TestRecipeOrchestrationSubmit(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	g := newGate(t)
	up := startUpstream(t, g.before(startsRuns))
	r := readRecipe(t, "orchestration-submit.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	const submits = "/v1/orchestration-runs"
	deploy, inDefault := `{"orchestrationRef": {"name": "deploy"}}`, `{"namespace": "default", "orchestrationRef": {"name": "deploy"}, "input": {"n": 2}}`
	all := a.postMany(1, submits, "d1", deploy)
	up.awaitRuns(t, "d1", 1)
	all = append(append(all, a.postMany(2, submits, "d1", deploy)...), b.postMany(3, submits, "d1", inDefault)...)
	a.awaitWaiting(t, 2, all...)
	b.awaitWaiting(t, 3, all...)
	g.open()
	got := replies(t, all)
	allAlike(t, got)
	wantAnswer(t, got[0], 201, `{"id": "run-1", "state": "queued"}`)

	now := `{"id": "run-1", "state": "done"}`
	repeat := func(p *caddy) {
		t.Helper()
		for _, body := range []string{deploy, inDefault} { // another caller, at another name of the service
			wantAnswer(t, p.post(t, submits, "d1", body, header("Authorization", "Bearer x"), host("b.test")), 201, now)
		}
	}
	repeat(a)
	repeat(b)
	if n := up.posts(); n != 1 {
		t.Errorf("the engine started %d runs, want 1", n)
	}
	wantLives(t, redisClient(t, server), 1, 7*day-time.Minute, 7*day)
	// A submit that failed is none.
	for _, status := range []string{"500", "404"} {
		if got := a.post(t, submits, "d2", deploy, header("Fail", status)); fmt.Sprint(got.Status) != status {
			t.Errorf("a submit that fails got %d, want %s", got.Status, status)
		}
	}
	for name, got := range map[string]reply{
		"the submit after a failure":   b.post(t, submits, "d2", deploy),
		"another namespace":            b.post(t, submits, "d1", `{"namespace": "shop", "orchestrationRef": {"name": "deploy"}}`),
		"another orchestration":        b.post(t, submits, "d1", `{"orchestrationRef": {"name": "build"}}`),
		"the same letters, cut apart":  b.post(t, submits, "d1", `{"namespace": "defaul", "orchestrationRef": {"name": "tdeploy"}}`),
		"a sender with an equal ID":    b.post(t, submits, "", deploy, header("X-GitHub-Delivery", "d1")),
		"another one":                  b.post(t, submits, "d1", deploy, header("X-Gitlab-Event", "Push Hook")),
		"another delivery of that one": b.post(t, submits, "d3", deploy, header("X-Gitlab-Event", "Push Hook")),
	} {
		if got.Status != 201 || !strings.Contains(got.Body, "queued") || got.replayed() || got.executionID() == "" {
			t.Errorf("%s got %d %q, replayed: %v; want a run of its own", name, got.Status, got.Body, got.replayed())
		}
	}
	for range 2 {
		for _, other := range []reply{a.post(t, submits, "", deploy), a.post(t, submits, "d1", "deploy"), a.post(t, "/v1/other", "d1", deploy)} {
			if other.Status != 201 || other.replayed() || other.executionID() != "" {
				t.Errorf("a request without ID or JSON, or to another route, got %d %v, want it passed", other.Status, other.Header)
			}
		}
	}
	// A replica crashes, and then Redis.
	a = r.restart(t, a)
	repeat(a)
	server.Kill()
	server.Restart()
	eventually(t, "the restarted store is asked again", func() bool { return b.post(t, submits, "d1", deploy).Status != 503 })
	repeat(b)

	empty := exec.CommandContext(t.Context(), binary, "validate", "--config", filepath.Join(a.conf.dir, "Caddyfile"))
	empty.Env = append(homeEnv(a.conf.dir), "RUN_RETENTION=")
	if out, err := empty.CombinedOutput(); err == nil || !strings.Contains(string(out), "retention takes one argument") {
		t.Errorf("with an empty RUN_RETENTION: %v\n%s", err, out)
	}
}
