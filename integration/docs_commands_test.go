package integration

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// triedBy names, for the beginnings of the commands of pages that are not run here, what runs them.
var triedBy = map[string]string{
	"git clone ":                          "TestGuides",
	"cd ":                                 "TestGuides",
	"export PATH=":                        "TestGuides",
	"grep ":                               "TestGuides",
	"curl -i -X POST ":                    "TestExampleCaddyfile",
	"./caddy-dedup run --config ":         "TestExampleCaddyfile",
	"go run ./cmd/caddy-dedup ":           "TestExampleCaddyfile",
	"caddy-dedup run --config caddy.json": "TestTypeOfAnAnswerThatNamesNone",
	"go build ":                           "TestMain, which builds the same package",
	"go install ":                         "TestMain, which builds the same package",
	"go test ":                            "this very run",
	"go -C bench run ":                    "TestSmallestRun in bench",
	"go -C tools run ./build":             "TestBuildsByXcaddy in tools/build, in .ci/run long",
	"xcaddy build ":                       "TestBuildsByXcaddy in tools/build, in .ci/run long",
	"go -C tools run ./release":           "TestRelease in tools/release, in .ci/run long",
	"curl -LO ":                           "TestRelease in tools/release, which unpacks an archive and checks it",
	"sha256sum ":                          "TestRelease in tools/release, which unpacks an archive and checks it",
	"tar ":                                "TestRelease in tools/release, which unpacks an archive and checks it",
	"gh attestation ":                     "nothing: it asks GitHub about what the workflow of releases has made",
	"docker ":                             ".ci/image, which runs the binary of the Dockerfile as it says",
	"sudo ":                               ".ci/units, which runs what the units run",
	"test -e ":                            ".ci/units, which runs what the units run",
	"echo ":                               ".ci/units, which runs what the units run",
	"kubectl ":                            "TestKustomizations in k8s/test, which reads what the commands name",
}

func isTried(command string) bool {
	for beginning := range triedBy {
		if strings.HasPrefix(command, beginning) {
			return true
		}
	}
	return false
}

// asksAProcess finds the commands that are run here.
var asksAProcess = regexp.MustCompile(`^(CADDY_ADMIN=\S+ |source <\()?caddy-dedup (keys|health|providers|completion|adapt|validate|reload)\b` +
	`|localhost:2019/|/data/admin\.sock|^kubectl (exec|logs) deploy/payments -c dedup\b`)

// commandsOf returns the commands of a block: a line that ends in a backslash or a pipe goes on.
func commandsOf(text string) (commands []string) {
	goesOn := false
	for line := range strings.Lines(text) {
		if goesOn {
			commands[len(commands)-1] += line
		} else if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			commands = append(commands, line)
		}
		end := strings.TrimSpace(line)
		goesOn = strings.HasSuffix(end, `\`) || strings.HasSuffix(end, "|")
	}
	return commands
}

// Every command of the pages runs: those of guides in TestGuides, those that ask a process here,
// and the others where triedBy says.
func TestCommandsOfThePages(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{}
	for name := range testsOfTheModule(t) {
		_, name, _ = strings.Cut(name, ".")
		tests[name] = true
	}
	for beginning, by := range triedBy {
		if name := regexp.MustCompile(`^Test\w+`).FindString(by); name != "" && name != "TestMain" && !tests[name] {
			t.Errorf("%q is run by %s, and there is no such test", beginning, name)
		}
	}
	typed := map[string]bool{"docs/" + recipesBegin: true}
	for _, page := range guides(t) {
		typed["docs/"+page] = true
	}
	s, ran, blocks := startStage(t), 0, docBlocks(t)
	for i, b := range blocks {
		if b.language != "sh" || typed[b.page] {
			continue
		}
		var here strings.Builder
		var shown block // what the page has next, where that is no further command
		if next := i + 1; next < len(blocks) && blocks[next].page == b.page && blocks[next].language != "sh" {
			shown = blocks[next]
		}
		for _, command := range commandsOf(b.text) {
			switch {
			case strings.HasPrefix(command, "caddy-dedup proxy "):
				s.proxy(t, b, command, shown)
				ran++
			case asksAProcess.MatchString(command):
				here.WriteString(command)
				ran++
			case !isTried(command):
				t.Errorf("%s:%d: nothing is named that runs %q", b.page, b.line, command)
			}
		}
		if here.Len() > 0 {
			s.ask(t, b, here.String(), shown.text)
		}
	}
	if ran < 30 {
		t.Errorf("the pages have %d commands to run here: are they where this test looks?", ran)
	}
}

// The deliveries of the pages: one whose run was cut off, one that was answered, and one that is
// in flight. Their keys are those of the pages, too.
const (
	cutOff   = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
	answered = "0b989ba4-242f-11e5-81e1-c7b6966d2516"
	running  = "3f2c6a10-5f4e-11ee-8c99-0242ac120002"
)

// stage is where commands of pages run: beside a process that has the pages' keys.
type stage struct {
	*caddy
	bash, bin, admin string
}

func startStage(t *testing.T) *stage {
	t.Helper()
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		switch r.Header.Get("X-GitHub-Delivery") {
		case cutOff:
			noAnswer(w, r, n)
			return
		case running:
			<-g.opened
		}
		answers201(w, r, n)
	})
	s := &stage{bash: bashWithCurl(t), bin: shortTempDir(t), admin: fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))}
	dir, port := shortTempDir(t), freeport.Of(t)
	for name, text := range map[string]string{
		"Caddyfile": fmt.Sprintf("{\nadmin %s\ndefault_bind 127.0.0.1\nauto_https off\npersist_config off\n}\nhttp://:%d {\ndedup /github github {\non_unknown hold\n}\ndedup /orders\n%s\n}\n", s.admin, port, proxyTo(up)),
		// Wrong usage is written down: the shell of a pipe does not tell of it.
		"bin/caddy-dedup": fmt.Sprintf("%s \"$@\"; status=$?; [ $status != 2 ] || echo \"$*\" >>%s/misused; exit $status", binary, dir),
		"bin/kubectl":     fmt.Sprintf("case $1 in exec) shift 5; exec \"$@\" ;; logs) cat %s/log ;; esac", dir),
	} {
		if strings.HasPrefix(name, "bin/") {
			text = "#!" + s.bash + "\n" + text + "\n"
		}
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o700); err != nil { //nolint:gosec // some are programs
			t.Fatal(err)
		}
	}
	s.bin = filepath.Join(dir, "bin")
	s.caddy = startProcess(t, dir, "run", "--config", filepath.Join(dir, "Caddyfile"))
	s.conf.dir, s.addr = dir, fmt.Sprintf("127.0.0.1:%d", port)
	s.awaitLog(t, "serving initial configuration", func(e entry) bool { return e.text("msg") == "serving initial configuration" })
	s.shell(t, "caddy-dedup adapt --config Caddyfile >caddy.json")
	later := s.postLater("/github", "", "{}", fromGitHub(running)...)
	up.awaitRuns(t, running, 1)
	t.Cleanup(func() { g.open(); <-later.done })
	return s
}

func fromGitHub(id string) []option {
	return []option{host("hooks.example.com"), header("X-GitHub-Delivery", id), header("X-GitHub-Hook-ID", "7")}
}

// shell runs commands and returns what they print, and their status.
func (s *stage) shell(t *testing.T, commands string) (string, int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), s.bash, "-c", strings.NewReplacer(
		"--unix-socket /data/admin.sock http://127.0.0.1", "http://"+s.admin, "unix//data/admin.sock", s.admin, "localhost:2019", s.admin,
	).Replace(commands))
	cmd.Dir = s.conf.dir
	cmd.Env = append(homeEnv(s.conf.dir), "CADDY_ADMIN="+s.admin, "PATH="+s.bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1", "REDIS_PASSWORD=secret", "GITHUB_SECRET=secret")
	output, _ := cmd.CombinedOutput() // a command may fail
	return string(output), cmd.ProcessState.ExitCode()
}

var (
	exitStatus = regexp.MustCompile(`exit status (\d)`)
	// wrongRequest finds answers of the admin API that say that the request is wrong.
	wrongRequest = regexp.MustCompile(`"status": ?(400|404|405|415)\b`)
)

// api returns what the admin API answers.
func (s *stage) api(t *testing.T, method, path string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.admin+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err := try(oneShot, r)
	if err != nil {
		t.Fatal(err)
	}
	return got.Body
}

// ask runs commands. None may be used wrongly, or be answered that it is wrong, unless the page
// shows so.
func (s *stage) ask(t *testing.T, b block, commands, shown string) {
	t.Helper()
	for _, key := range regexp.MustCompile(`"key":"([0-9a-f]{64})"`).FindAllStringSubmatch(s.api(t, "GET", "/dedup/keys?limit=1000"), -1) {
		s.api(t, "DELETE", "/dedup/keys/"+key[1]) // the run in flight stays
	}
	for _, id := range []string{cutOff, answered} {
		s.post(t, "/github", "", "{}", fromGitHub(id)...)
	}
	s.post(t, "/orders", "order-1001", "{}", host("hooks.example.com"))
	misused := filepath.Join(s.conf.dir, "misused")
	if err := os.WriteFile(filepath.Join(s.conf.dir, "log"), []byte(s.log.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	_ = os.Remove(misused) // mostly there is none
	got, _ := s.shell(t, commands)
	wrong, _ := os.ReadFile(misused)
	for _, status := range wrongRequest.FindAllStringSubmatch(got, -1) {
		if !strings.Contains(shown, status[1]) {
			wrong = append(wrong, status[0]...)
		}
	}
	if len(wrong) > 0 && !strings.Contains(shown, "exit status 2") {
		t.Errorf("%s:%d: %s\nis wrong: %s\n%s", b.page, b.line, commands, wrong, got)
	}
	if want := exitStatus.FindString(shown); want == "exit status 2" && len(wrong) == 0 {
		t.Errorf("%s:%d: %s\nis not wrong, as the page says:\n%s", b.page, b.line, commands, got)
	}
}

// proxy has a command print the Caddyfile that it stands for, which is valid, and that of the page
// where the page has the command print it.
func (s *stage) proxy(t *testing.T, b block, command string, shown block) {
	t.Helper()
	command, prints := strings.CutSuffix(strings.TrimSpace(command), " --print")
	if got, status := s.shell(t, "unset CADDY_ADMIN; "+command+" --print >proxy.caddyfile && caddy-dedup validate --adapter caddyfile --config proxy.caddyfile"); status != 0 {
		t.Errorf("%s:%d: %s\nends with %d:\n%s", b.page, b.line, command, status, got)
	}
	if !prints {
		return
	}
	text, err := os.ReadFile(filepath.Join(s.conf.dir, "proxy.caddyfile"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.ReplaceAll(string(text), filepath.Join(s.conf.dir, "data"), "/home/me/.local/share"); got != shown.text {
		t.Errorf("%s:%d: %s --print\nprints\n%s", b.page, b.line, command, got)
	}
}
