package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

const runsPath = "/api/v1/runs"

// startsNumberedRuns plays a runner whose runs are numbered from 123.
func startsNumberedRuns(w http.ResponseWriter, r *http.Request, n run) {
	number := 122 + n.N
	w.Header().Set("Location", fmt.Sprintf("/api/v1/runs/%d", number))
	answersJSON(http.StatusCreated, `{"run_id": %d, "state": "queued"}`, number)(w, r, n)
}

// answersAnyKey counts runs over all keys: the client makes the key itself.
func answersAnyKey(up *upstream, answer answering) answering {
	return func(w http.ResponseWriter, r *http.Request, n run) {
		n.N = len(up.all())
		answer(w, r, n)
	}
}

func startRunner(t *testing.T, answer answering) *upstream {
	t.Helper()
	var up *upstream
	up = startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) { answersAnyKey(up, answer)(w, r, n) })
	return up
}

// wantConflict fails unless the answer refuses a duplicate and names the first
// run of it.
func wantConflict(t *testing.T, got, first reply) {
	t.Helper()
	told := wantProblem(t, got, 409, "duplicate_request")
	if told.ExecutionID != first.executionID() || told.ExecutionID == "" {
		t.Errorf("the conflict names execution %q, the first was %q", told.ExecutionID, first.executionID())
	}
	if status := got.member(t, "original_status"); status != fmt.Sprint(first.Status) {
		t.Errorf("the conflict says that the first answer was %s, it was %d", status, first.Status)
	}
}

func TestRecipeRunSubmit(t *testing.T) {
	t.Parallel()
	up := startRunner(t, startsNumberedRuns)
	r := readRecipe(t, "run-submit.md").before(t, up)
	p := r.start(t)

	first := p.post(t, runsPath, "k1", `{"image": "a:1", "args": [1, 2], "submitted_at": "now", "metadata": {"client_version": "1", "team": "x"}}`)
	if first.Status != 201 || first.replayed() || first.member(t, "run_id") != "123" {
		t.Fatalf("the first submit got %d %q", first.Status, first.Body)
	}
	if key := up.all()[0].Key; key != "k1" {
		t.Errorf("the runner got the client's key as %q", key)
	}
	// Another user, later, with the members in another order, with another key or none.
	for _, key := range []string{"k1", "k2", ""} {
		again := p.post(t, runsPath, key, `{"submitted_by": "eve", "metadata": {"team": "x", "client_version": "2"}, "args": [1,2], "image": "a:1"}`,
			header("Authorization", "Bearer eve"), host("other.test"))
		wantConflict(t, again, first)
		if got := again.member(t, "original_response"); got != "map[run_id:123 state:queued]" {
			t.Errorf("the conflict carries %s", got)
		}
		if got := again.member(t, "original_location"); got != "/api/v1/runs/123" {
			t.Errorf("the conflict says that the run is at %s", got)
		}
	}
	for n, other := range []string{`{"image": "a:1", "args": [2, 1]}`, `{"image": "a:1", "args": [1, 2]}`} {
		if got := p.post(t, runsPath, "k1", other); got.Status != 201 || got.member(t, "run_id") != fmt.Sprint(124+n) {
			t.Errorf("the configuration %s got %d %q", other, got.Status, got.Body)
		}
	}

	p = r.restart(t, p)
	wantConflict(t, p.post(t, runsPath, "k1", `{"image": "a:1", "args": [1, 2], "metadata": {"team": "x"}}`), first)
	if n := len(up.all()); n != 3 {
		t.Errorf("the runner ran %d submits, want 3", n)
	}
}

// What the runner refuses bars the configuration from nothing.
func TestRecipeRunSubmitFails(t *testing.T) {
	t.Parallel()
	up := startRunner(t, inTurn(answersStatus(400), answersStatus(402), answersStatus(500), startsNumberedRuns))
	p := readRecipe(t, "run-submit.md").before(t, up).start(t)
	for _, status := range []int{400, 402, 500, 201} {
		if got := p.post(t, runsPath, "", `{"image": "a:1"}`); got.Status != status || got.replayed() {
			t.Fatalf("got %d, replayed: %v; want %d", got.Status, got.replayed(), status)
		}
	}
	wantProblem(t, p.post(t, runsPath, "", `{"image": "a:1"}`), 409, "duplicate_request")
}

// The page's other lines are for clients that make the key themselves.
func TestRecipeRunSubmitWithTheClientsKey(t *testing.T) {
	t.Parallel()
	up := startRunner(t, startsNumberedRuns)
	r := readRecipe(t, "run-submit.md").before(t, up)
	page, err := os.ReadFile("../docs/recipes/run-submit.md")
	if err != nil {
		t.Fatal(err)
	}
	const instead = "key header Idempotency-Key\n\t\ton_missing reject\n\t\tfingerprint none\n"
	if !strings.Contains(string(page), instead) {
		t.Fatal("the page has no lines for clients that make the key themselves")
	}
	p := r.with(t, "key content\n", instead, "\t\texclude /submitted_at /submitted_by /metadata/client_version\n", "").start(t)
	first := p.post(t, runsPath, "k1", `{"image": "a:1"}`)
	if first.Status != 201 {
		t.Fatalf("the first submit got %d %q", first.Status, first.Body)
	}
	wantConflict(t, p.post(t, runsPath, "k1", `{"image": " a:1\n"}`), first)
	wantProblem(t, p.post(t, runsPath, "", `{"image": "a:1"}`), 400, "idempotency_key_missing")
}

// The page names two other answers for a duplicate.
func TestRecipeRunSubmitAnswersOtherwise(t *testing.T) {
	t.Parallel()
	up := startRunner(t, startsNumberedRuns)
	r := readRecipe(t, "run-submit.md").before(t, up)

	p := r.with(t, "on_duplicate conflict", "on_duplicate see_other").start(t)
	first := p.post(t, runsPath, "k1", "{}")
	got := p.post(t, runsPath, "k1", "{}")
	wantReplay(t, got, reply{Status: 303, Header: first.Header})
	if got.Header.Get("Location") != "/api/v1/runs/123" {
		t.Errorf("the duplicate is sent to %q", got.Header.Get("Location"))
	}

	p = r.with(t, "on_duplicate conflict", "on_duplicate replay").start(t)
	first = p.post(t, runsPath, "k1", "{}")
	wantReplay(t, p.post(t, runsPath, "k1", "{}"), first)
	if n := len(up.all()); n != 2 {
		t.Errorf("the runner ran %d submits, want 2", n)
	}
}

func TestRecipeRunSubmitByForce(t *testing.T) {
	t.Parallel()
	up := startRunner(t, startsNumberedRuns)
	p := readRecipe(t, "run-submit.md").before(t, up).start(t)
	force := header("X-Force-Override", "true")
	first := p.post(t, runsPath, "k1", "{}")
	child := p.post(t, runsPath, "k1", "{}", force)
	if child.Status != 201 || child.replayed() || child.member(t, "run_id") != "124" || child.executionID() == first.executionID() {
		t.Fatalf("the forced submit got %d %q as %s after %s", child.Status, child.Body, child.executionID(), first.executionID())
	}
	ran := up.all()[1].Header
	if ran.Get("Dedup-Parent-Id") != first.executionID() || child.Header.Get("Dedup-Parent-Id") != first.executionID() {
		t.Errorf("the runner was told the parent %q, the client %q, want %q",
			ran.Get("Dedup-Parent-Id"), child.Header.Get("Dedup-Parent-Id"), first.executionID())
	}
	if ran.Get("X-Force-Override") != "" {
		t.Error("the force header reached the runner")
	}
	p.awaitLog(t, "the audit line", func(e entry) bool {
		return strings.HasPrefix(e.text("logger"), "http.handlers.dedup") && strings.HasPrefix(e.text("msg"), "forced") &&
			e.text("execution_id") == child.executionID() && e.text("parent_id") == first.executionID() &&
			hexKey.MatchString(e.text("key")) && e.text("client_ip") == "127.0.0.1" && e.text("delivery_id") != ""
	})
	wantConflict(t, p.post(t, runsPath, "k1", "{}"), child)
}

func TestRecipeRunSubmitIsForgotten(t *testing.T) {
	t.Parallel()
	up := startRunner(t, startsNumberedRuns)
	p := readRecipe(t, "run-submit.md").before(t, up).with(t, "retention 30d", "retention 1s\nlease 500ms").start(t)
	first := p.post(t, runsPath, "k1", "{}")
	wantConflict(t, p.post(t, runsPath, "k1", "{}"), first)
	eventually(t, "the configuration is new again", func() bool { return p.post(t, runsPath, "k1", "{}").Status == 201 })
}

// The page's own client says what it should.
func TestRecipeRunSubmitClient(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH: the page's client is not run")
	}
	dir := shortTempDir(t)
	script := filepath.Join(dir, "submit.py")
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	write("submit.py", recipeBlock(t, "run-submit.md", "python"))
	up := startRunner(t, startsNumberedRuns)
	page := readRecipe(t, "run-submit.md").before(t, up)
	p := page.start(t)
	replaying := page.with(t, "on_duplicate conflict", "on_duplicate replay").start(t)

	submit := func(p *caddy, file string, arguments ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), python, append([]string{script, "http://" + p.addr + runsPath, file}, arguments...)...)
		cmd.Env = append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	want := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("the client says %q, want %q", got, want)
		}
	}
	a := write("a.json", `{"image": "köln:1", "steps": [{"b": 1, "a": null}], "seed": 9007199254740993, "submitted_at": 1}`)
	same := write("same.json", `{"seed":9007199254740993,"submitted_by":"eve","steps":[{"a":null,"b":1}],"image":"k\u00f6ln:1"}`)
	other := write("other.json", `{"seed":9007199254740992,"steps":[{"a":null,"b":1}],"image":"k\u00f6ln:1"}`)
	want(submit(p, a), "submitted as run 123")
	want(submit(p, a), "already submitted as run 123")
	want(submit(p, same), "already submitted as run 123")
	want(submit(p, other), "submitted as run 124")
	parent := up.all()[0].Header.Get("Dedup-Execution-Id")
	want(submit(p, same, "--force"), "submitted again as run 125 after "+parent)
	want(submit(p, a), "already submitted as run 125")
	want(submit(replaying, a), "submitted as run 126")
	want(submit(replaying, same), "already submitted as run 126")
	if key := up.all()[0].Key; len(key) != 64 {
		t.Errorf("the client sends the key %q, want a SHA-256 in hex", key)
	}
}

// Whatever the command is answered, it says so and ends as it should.
func TestRecipeRunSubmitClientSurvivesEveryAnswer(t *testing.T) {
	t.Parallel()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("no python3 in PATH: the page's client is not run")
	}
	dir := shortTempDir(t)
	for name, text := range map[string]string{"submit.py": recipeBlock(t, "run-submit.md", "python"), "run.json": `{"image": "a:1", "metadata": null}`} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		status             int
		kind, body         string
		first, again       string
		failed, failsAgain bool
	}{
		"empty":              {201, "", "", "submitted as run of execution", "already submitted as run of execution", false, false},
		"text":               {200, "text/plain", "queued", "submitted as run of execution", "already submitted as run of execution", false, false},
		"a list":             {200, "application/json", "[1]", "submitted as run of execution", "already submitted as run of execution", false, false},
		"too large":          {200, "application/json", `{"id": "r1", "log": "` + strings.Repeat("x", 5000) + `"}`, "submitted as run r1", "already submitted as run of execution", false, false},
		"refused":            {402, "application/json", `{"error": "no credit"}`, "not submitted, 402: no credit", "not submitted, 402: no credit", true, true},
		"refused in silence": {400, "", "", "not submitted, 400: no reason given", "not submitted, 400: no reason given", true, true},
		"elsewhere":          {303, "", "", "not submitted, 303: no reason given", "not submitted, 303: no reason given", true, true},
		"no number yet":      {202, "application/json", `{"run_id": null, "id": 5}`, "submitted as run 5", "already submitted as run 5", false, false},
		"out of order":       {503, "text/html", "<h1>later</h1>", "not submitted, 503: <h1>later</h1>", "not submitted, 503: <h1>later</h1>", true, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
				if c.kind != "" {
					w.Header().Set("Content-Type", c.kind)
				}
				w.WriteHeader(c.status)
				fmt.Fprint(w, c.body)
			})
			p := readRecipe(t, "run-submit.md").before(t, up).start(t)
			for _, want := range []struct {
				says   string
				failed bool
			}{{c.first, c.failed}, {c.again, c.failsAgain}} {
				cmd := exec.CommandContext(t.Context(), python, "submit.py", "http://"+p.addr+runsPath, "run.json")
				cmd.Dir, cmd.Env = dir, append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
				out, err := cmd.CombinedOutput()
				if !strings.HasPrefix(string(out), want.says) || (err != nil) != want.failed || strings.Contains(string(out), "Traceback") {
					t.Errorf("the client says %q, %v; want %q, failed: %v", out, err, want.says, want.failed)
				}
			}
		})
	}
	for name, server := range map[string]string{
		"no server":    fmt.Sprintf("127.0.0.1:%d", freeport.Of(t)),
		"a cut answer": startUpstream(t, cutBody).addr,
	} {
		cmd := exec.CommandContext(t.Context(), python, "submit.py", "http://"+server+runsPath, "run.json")
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
		if out, err := cmd.CombinedOutput(); err == nil || !strings.HasPrefix(string(out), "no whole answer: ") {
			t.Errorf("with %s the client says %q, %v", name, out, err)
		}
	}
}
