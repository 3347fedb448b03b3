package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// A guide is a page whose reader types in each block `sh`, from the first to the last, in one
// shell: docs/getting-started-* and the recipes. A block behind a line that ends in a file's name
// and a colon is that file. What follows a block `sh` as `text` or `http` is what it prints. A
// recipe begins with its first Caddyfile, and what recipesBegin has. With -update, what the
// commands print is written into the page.
//
// Commands of the other pages are run one block at a time, beside a process, or where triedBy says.

const recipesBegin = "docs/recipes/README.md"

func (p page) isRecipe() bool {
	return strings.HasPrefix(p.path, "docs/recipes/") && p.path != recipesBegin
}

func (p page) isGuide() bool {
	return p.isRecipe() || strings.HasPrefix(p.path, "docs/getting-started-")
}

// triedBy names, for the beginnings of the commands that are not run here, what runs them.
var triedBy = map[string]string{
	"git clone ":                          "the guides",
	"cd ":                                 "the guides",
	"export PATH=":                        "the guides",
	"grep ":                               "the guides",
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

// asksAProcess finds the commands that are run beside a process.
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

// Every command of the pages runs, and a guide prints what it says.
func TestCommandsOfThePages(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{"TestMain": true}
	for name := range testsOfTheModule(t) {
		_, name, _ = strings.Cut(name, ".")
		tests[name] = true
	}
	for beginning, by := range triedBy {
		if name := regexp.MustCompile(`^Test\w+`).FindString(by); name != "" && !tests[name] {
			t.Errorf("%q is run by %s, and there is no such test", beginning, name)
		}
	}
	s, pages := startStage(t), docPages(t)
	begin := pages[slices.IndexFunc(pages, func(p page) bool { return p.path == recipesBegin })].blocks
	for _, p := range pages {
		if p.path == recipesBegin || !slices.ContainsFunc(p.blocks, func(b block) bool { return b.language == "sh" }) {
			continue
		}
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			if !p.isGuide() {
				s.run(t, p.blocks)
				return
			}
			shell := newShell(t)
			shell.here = append(shell.here, "localhost:6379", strings.TrimPrefix(redisStore(t), "store redis redis://"))
			if strings.Contains(p.text, "\nkubectl ") {
				shell.standForACluster(t, p.blocks)
			}
			shell.guide(t, p, begin)
		})
	}
}

// shell is where commands of pages run: on ports and in a home of the test's own, and with programs
// in place of those that a test cannot run.
type shell struct {
	bash, dir, admin string
	// here are texts of the page, each with the one that stands for it in this test.
	here []string
	// awaited are commands that go on in the background. The test waits until the port that they
	// name answers, where the page itself does not.
	awaited *regexp.Regexp
}

func newShell(t *testing.T) *shell {
	t.Helper()
	s := &shell{dir: shortTempDir(t)}
	var err error
	for _, program := range []string{"curl", "bash"} {
		if s.bash, err = exec.LookPath(program); err != nil {
			if os.Getenv("CI") == "true" {
				t.Fatal(err)
			}
			t.Skipf("the commands are not run: %v", err)
		}
	}
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range []string{"8080", "8081", "8082", "3000", "2019"} {
		own := freeport.Of(t)
		s.here = append(s.here, "localhost:"+port, fmt.Sprintf("127.0.0.1:%d", own),
			":"+port+" ", fmt.Sprintf(":%d ", own), port+":80", fmt.Sprintf("%d:80", own))
		s.admin = fmt.Sprintf("127.0.0.1:%d", own)
	}
	s.here = append(s.here, "https://hooks.slack.com", "http://"+s.inPlaceOf("localhost:3000"),
		"/home/you/.local/share", filepath.Join(s.dir, "data"))
	// What a clone has, and what is built in it: this repository, and the binary that is tried.
	s.program(t, "git", fmt.Sprintf("[ \"$*\" = \"clone https://github.com/caddy-dedup/caddy-dedup\" ] && mkdir caddy-dedup && cp -r %[1]s/docs %[1]s/k8s %[1]s/Caddyfile.example %[1]s/Dockerfile caddy-dedup", repository))
	s.program(t, "go", fmt.Sprintf("[ \"$*\" = \"build ./cmd/caddy-dedup\" ] && ln -s %s caddy-dedup", binary))
	standIn, err := os.ReadFile("../docs/recipes/stand-in.caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	s.write(t, "docs/recipes/stand-in.caddyfile", string(standIn))
	return s
}

// inPlaceOf returns what stands for a text of the page.
func (s *shell) inPlaceOf(text string) string { return s.here[slices.Index(s.here, text)+1] }

// toPage replaces what stands for the page's texts by these.
func (s *shell) toPage(text string) string {
	back := slices.Clone(s.here)
	slices.Reverse(back)
	return strings.NewReplacer(back...).Replace(text)
}

// write makes a file, with this test's texts.
func (s *shell) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(s.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(strings.NewReplacer(s.here...).Replace(text)), 0o700); err != nil { //nolint:gosec // some are programs
		t.Fatal(err)
	}
}

func (s *shell) read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// program has a script stand for a program.
func (s *shell) program(t *testing.T, name, script string) {
	t.Helper()
	s.write(t, "bin/"+name, "#!"+s.bash+"\n"+script+"\n")
}

// command runs a script.
func (s *shell) command(ctx context.Context, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, s.bash, "-c", strings.NewReplacer(s.here...).Replace(script))
	cmd.Dir = s.dir
	cmd.Env = append(homeEnv(s.dir), "CADDY_ADMIN="+s.admin, "PATH="+filepath.Join(s.dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends what it has started
	cmd.WaitDelay = patience
	return cmd
}

// stepsOf returns what a reader of a guide types in: files, and commands with what they print.
func stepsOf(t *testing.T, p page, begin []block) (steps []block) {
	t.Helper()
	for _, b := range p.blocks {
		output := b.language == "text" || b.language == "http"
		switch last := len(steps) - 1; {
		case p.isRecipe() && b.language == "caddyfile" && len(steps) == 0:
			b.file = "Caddyfile"
			steps = append(append(steps, b), begin...)
		case output && (last < 0 || steps[last].shows == nil || steps[last].shows.line != b.line):
			t.Fatalf("%s:%d: no command stands before what it prints", b.page, b.line)
		case b.language == "sh" || b.file != "" && !output && !p.isRecipe():
			steps = append(steps, b)
		}
	}
	return steps
}

const stepMark = "=== step ==="

// script returns the steps as one shell script.
func (s *shell) script(steps []block) string {
	var b strings.Builder
	b.WriteString("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\nawait() { until (exec 3<>/dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.05; done; }\n")
	for i, step := range steps {
		if step.language != "sh" {
			if step.language == "caddyfile" {
				step.text = onLoopback(step.text)
			}
			fmt.Fprintf(&b, "cat > %s <<'END OF THE FILE'\n%sEND OF THE FILE\n", step.file, step.text)
			continue
		}
		fmt.Fprintf(&b, "echo '%s %d'\n", stepMark, i)
		for line := range strings.Lines(step.text) {
			b.WriteString(line)
			if s.awaited == nil {
				continue
			}
			if port := s.awaited.FindStringSubmatch(strings.TrimSpace(line)); port != nil {
				fmt.Fprintf(&b, "await %s\n", strings.Split(s.inPlaceOf("localhost:"+port[1]), ":")[1])
			}
		}
	}
	return b.String()
}

// onLoopback is a Caddyfile that listens on the loopback address only and saves no configuration.
func onLoopback(text string) string {
	const options = "{\n\tdefault_bind 127.0.0.1\n\tpersist_config off\n"
	if rest, found := strings.CutPrefix(text, "{\n"); found {
		return options + rest
	}
	return options + "}\n" + text
}

// guide types in a page and compares what it prints.
func (s *shell) guide(t *testing.T, p page, begin []block) {
	t.Helper()
	steps := stepsOf(t, p, begin)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := s.command(ctx, s.script(steps))
	var said bytes.Buffer
	cmd.Stderr = &said
	printed, err := cmd.Output()
	if ctx.Err() != nil {
		t.Fatalf("%v\n%s%s", err, printed, said.String())
	}
	by := make(map[int]string)
	for _, part := range strings.Split(string(printed), stepMark+" ")[1:] {
		var n int
		head, output, _ := strings.Cut(part, "\n")
		if _, err := fmt.Sscan(head, &n); err != nil {
			t.Fatal(err)
		}
		by[n] = s.toPage(output)
	}
	var got, want []string
	var shown []*block
	for i, step := range steps {
		if b := step.shows; b != nil && (b.language == "text" || b.language == "http") {
			shown, want, got = append(shown, b), append(want, b.text), append(got, asPrinted(b.language, by[i]))
		}
	}
	if len(got) < 2 {
		t.Fatalf("it shows what %d commands print: are they looked for where they are?", len(got))
	}
	switch {
	case slices.Equal(withoutIDs(got), withoutIDs(want)):
	case !*update:
		t.Errorf("the commands print\n%s\nthe page says\n%s\nand the commands said beside that\n%s", strings.Join(got, "---\n"), strings.Join(want, "---\n"), said.String())
	default:
		lines := strings.Split(p.text, "\n")
		for i, b := range slices.Backward(shown) { // so that lines keep their numbers
			lines = slices.Replace(lines, b.line, b.line+strings.Count(b.text, "\n"), strings.Split(strings.TrimSuffix(got[i], "\n"), "\n")...)
		}
		if err := os.WriteFile("../"+p.path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// shownOfAnAnswer are the header fields that guides show.
var shownOfAnAnswer = regexp.MustCompile(`(?i)^(HTTP/|Content-Type:|Retry-After:|Idempotent-Replayed:|Dedup-)`)

// asPrinted is an output as a guide has it: of an answer, the fields that matter, and its JSON on
// several lines.
func asPrinted(language, output string) string {
	if language != "http" {
		return output
	}
	head, body, _ := strings.Cut(strings.ReplaceAll(output, "\r\n", "\n"), "\n\n")
	fields := slices.DeleteFunc(strings.Split(head, "\n"), func(line string) bool { return !shownOfAnAnswer.MatchString(line) })
	var indented bytes.Buffer
	if json.Indent(&indented, []byte(strings.TrimSpace(body)), "", "  ") == nil {
		body = indented.String() + "\n"
	}
	return strings.Join(fields, "\n") + "\n\n" + body
}

var (
	// anyID is a key, or an ID of an execution or a delivery.
	anyID   = regexp.MustCompile(`[0-9a-f]{64}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	anyTime = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
)

// withoutIDs are texts without times, and with each ID as its number in the order of all.
func withoutIDs(texts []string) (all []string) {
	seen := make(map[string]string)
	for _, text := range texts {
		all = append(all, anyID.ReplaceAllStringFunc(anyTime.ReplaceAllString(text, "TIME"), func(id string) string {
			if seen[id] == "" {
				seen[id] = fmt.Sprint("ID", len(seen)+1)
			}
			return seen[id]
		}))
	}
	return all
}

// The deliveries of the pages: one whose run was cut off, one that was answered, and one that is
// in flight. Their keys are those of the pages, too.
const (
	cutOff   = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
	answered = "0b989ba4-242f-11e5-81e1-c7b6966d2516"
	running  = "3f2c6a10-5f4e-11ee-8c99-0242ac120002"
)

// stage is a shell beside a process that has the pages' keys.
type stage struct {
	*shell
	*caddy
	using sync.Mutex // blocks that ask the process take turns
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
	s, port := &stage{shell: newShell(t)}, freeport.Of(t)
	caddyfile := fmt.Sprintf("{\nadmin %s\ndefault_bind 127.0.0.1\nauto_https off\npersist_config off\n}\nhttp://:%d {\ndedup /github github {\non_unknown hold\n}\ndedup /orders\n%s\n}\n", s.admin, port, proxyTo(up))
	s.here = []string{"localhost:2019", s.admin, "--unix-socket /data/admin.sock http://127.0.0.1", "http://" + s.admin, "unix//data/admin.sock", s.admin,
		"/home/me/.local/share", filepath.Join(s.dir, "data")}
	// Wrong usage is written down: the shell of a pipe does not tell of it.
	s.program(t, "caddy-dedup", fmt.Sprintf("%s \"$@\"; status=$?; [ $status != 2 ] || echo \"$*\" >>%s/misused; exit $status", binary, s.dir))
	s.program(t, "kubectl", fmt.Sprintf("case $1 in exec) shift 5; exec \"$@\" ;; logs) cat %s/log ;; esac", s.dir))
	s.caddy = startCaddyfile(t, s.dir, port, caddyfile)
	s.print(t, "caddy-dedup adapt --config Caddyfile >caddy.json")
	later := s.postLater("/github", "", "{}", fromGitHub(running)...)
	up.awaitRuns(t, running, 1)
	t.Cleanup(func() { g.open(); <-later.done })
	return s
}

func fromGitHub(id string) []option {
	return []option{host("hooks.example.com"), header("X-GitHub-Delivery", id), header("X-GitHub-Hook-ID", "7")}
}

// print runs commands and returns what they print, and their status.
func (s *stage) print(t *testing.T, commands string) (string, int) {
	t.Helper()
	cmd := s.command(t.Context(), commands)
	cmd.Env = append(cmd.Env, "REDIS_PASSWORD=secret", "GITHUB_SECRET=secret")
	output, _ := cmd.CombinedOutput() // a command may fail
	return string(output), cmd.ProcessState.ExitCode()
}

// run runs the commands of a page's blocks.
func (s *stage) run(t *testing.T, blocks []block) {
	t.Helper()
	for _, b := range blocks {
		if b.language != "sh" {
			continue
		}
		var here strings.Builder
		for _, command := range commandsOf(b.text) {
			switch {
			case strings.HasPrefix(command, "caddy-dedup proxy "):
				s.proxy(t, b, command)
			case asksAProcess.MatchString(command):
				here.WriteString(command)
			case !isTried(command):
				t.Errorf("%s:%d: nothing is named that runs %q", b.page, b.line, command)
			}
		}
		if here.Len() > 0 {
			s.ask(t, b, here.String())
		}
	}
}

// wrongRequest finds answers of the admin API that say that the request is wrong.
var wrongRequest = regexp.MustCompile(`"status": ?(400|404|405|415)\b`)

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

// ask runs commands beside the pages' keys. None may be used wrongly, or be answered that it is
// wrong, unless the page shows so.
func (s *stage) ask(t *testing.T, b block, commands string) {
	t.Helper()
	s.using.Lock()
	defer s.using.Unlock()
	for _, key := range regexp.MustCompile(`"key":"([0-9a-f]{64})"`).FindAllStringSubmatch(s.api(t, "GET", "/dedup/keys?limit=1000"), -1) {
		s.api(t, "DELETE", "/dedup/keys/"+key[1]) // the run in flight stays
	}
	for _, id := range []string{cutOff, answered} {
		s.post(t, "/github", "", "{}", fromGitHub(id)...)
	}
	s.post(t, "/orders", "order-1001", "{}", host("hooks.example.com"))
	s.write(t, "log", s.log.String())
	s.write(t, "misused", "")
	shown := ""
	if b.shows != nil {
		shown = b.shows.text
	}
	got, _ := s.print(t, commands)
	wrong := s.read(t, "misused")
	for _, status := range wrongRequest.FindAllStringSubmatch(got, -1) {
		if !strings.Contains(shown, status[1]) {
			wrong += status[0]
		}
	}
	if says := strings.Contains(shown, "exit status 2"); says != (wrong != "") {
		t.Errorf("%s:%d: %s\nis wrong: %q; the page says so: %t\n%s", b.page, b.line, commands, wrong, says, got)
	}
}

// proxy has a command print the Caddyfile that it stands for, which is valid, and that of the page
// where the page has the command print it.
func (s *stage) proxy(t *testing.T, b block, command string) {
	t.Helper()
	s.using.Lock()
	defer s.using.Unlock()
	command, prints := strings.CutSuffix(strings.TrimSpace(command), " --print")
	if got, status := s.print(t, "unset CADDY_ADMIN; "+command+" --print >proxy.caddyfile && caddy-dedup validate --adapter caddyfile --config proxy.caddyfile"); status != 0 {
		t.Errorf("%s:%d: %s\nends with %d:\n%s", b.page, b.line, command, status, got)
	}
	if got := s.toPage(s.read(t, "proxy.caddyfile")); prints && got != b.shows.text {
		t.Errorf("%s:%d: %s --print\nprints\n%s", b.page, b.line, command, got)
	}
}
