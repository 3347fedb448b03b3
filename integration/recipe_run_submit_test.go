package integration

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

func TestRecipeRunSubmit(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, startsRuns)
	r := readRecipe(t, "run-submit.md").before(t, up)
	p := r.start(t)
	const path = "/api/v1/runs"
	force := header("X-Force-Override", "true")

	for _, status := range []int{400, 402, 500} {
		if got := p.post(t, path, "", `{"image": "a:1", "args": [1, 2]}`, header("Fail", fmt.Sprint(status))); got.Status != status {
			t.Errorf("a submit that fails got %d, want %d", got.Status, status)
		}
	}
	first := p.post(t, path, "", `{"image": "a:1", "args": [1, 2], "submitted_at": "now", "metadata": {"client_version": "1", "team": "x"}}`)
	wantFresh(t, first, 201, `{"id": "run-4", "state": "queued"}`)
	// Another user, with the members in another order, at another name of the service.
	again := func(id string) {
		t.Helper()
		wantAnswer(t, p.post(t, path, "", `{"submitted_by": "eve", "metadata": {"team": "x", "client_version": "2"}, "args": [1,2], "image": "a:1"}`,
			header("Authorization", "Bearer eve"), host("other.test")), 409, `{"error": "already submitted", "run_id": "`+id+`"}`)
	}
	again("run-4")
	wantFresh(t, p.post(t, path, "", `{"image": "a:1", "args": [2, 1]}`), 201, `{"id": "run-5", "state": "queued"}`)

	// A forced run has the first one's number; one that fails leaves it.
	same := `{"image": "a:1", "args": [1, 2], "metadata": {"team": "x"}}`
	if got := p.post(t, path, "", same, force, header("Fail", "500")); got.Status != 500 {
		t.Errorf("a forced submit that fails got %d", got.Status)
	}
	again("run-4")
	child := p.post(t, path, "", same, force)
	wantFresh(t, child, 201, `{"id": "run-7", "state": "queued"}`)
	ran := up.all()
	if n, parents := len(ran), ran[5].Header.Get("X-Parent-Run")+" "+ran[6].Header.Get("X-Parent-Run"); n != 7 || parents != "run-4 run-4" || ran[3].Header.Get("X-Parent-Run") != "" {
		t.Errorf("the runner got %d submits, with the parents %q and %q", n, parents, ran[3].Header.Get("X-Parent-Run"))
	}
	if ran[6].Header.Get("X-Force-Override") != "" {
		t.Error("the force header reached the runner")
	}
	p.awaitLog(t, "the audit line", func(e entry) bool {
		return strings.HasPrefix(e.text("msg"), "forced") && e.text("execution_id") == child.executionID() &&
			e.text("parent_id") == first.executionID() && e.text("client_ip") == "127.0.0.1"
	})
	p = r.restart(t, p)
	again("run-7")

	id := child.Header.Get("X-Content-Id")
	status, found := p.askAdmin(t, "POST", "/dedup/lookup?body=true", "application/json", `{"provider": "runs", "ids": ["`+id+`", "unknown"]}`)
	if status != 200 || !strings.Contains(found, `run-7`) || !strings.Contains(found, `"missing":["unknown"]`) {
		t.Errorf("the batch check of %q got %d %s", id, status, found)
	}
	if _, metrics := p.askAdmin(t, "GET", "/metrics", "", ""); !strings.Contains(metrics, `caddy_dedup_requests_total{observed="false",outcome="conflict",provider="runs"}`) {
		t.Error("the metrics do not name the runs")
	}
	for range 2 { // another route
		if got := p.post(t, "/api/v1/other", "", same); got.Status != 201 || got.executionID() != "" {
			t.Errorf("a request to another route got %d %v", got.Status, got.Header)
		}
	}

	// The page's other lines are for clients that make the key themselves.
	page, err := os.ReadFile("../docs/recipes/run-submit.md")
	if err != nil {
		t.Fatal(err)
	}
	const instead = "key header Idempotency-Key runs\non_missing reject\nfingerprint none\n"
	if !strings.Contains(string(page), "\n```\n"+instead+"```\n") {
		t.Fatal("the page has no lines for clients that make the key themselves")
	}
	p = r.with(t, "key content runs\n", instead, "\t\t\texclude /submitted_at /submitted_by /metadata/client_version\n", "").start(t)
	if got := p.post(t, path, "k1", `{"image": "a:1"}`); got.Status != 201 {
		t.Fatalf("the first submit got %d", got.Status)
	}
	if got := p.post(t, path, "k1", `{"image": " a:1\n"}`); got.Status != 409 || !strings.Contains(got.Body, "already submitted") {
		t.Errorf("the duplicate got %d %q", got.Status, got.Body)
	}
	wantProblem(t, p.post(t, path, "", `{"image": "a:1"}`), 400, "idempotency_key_missing")
}
