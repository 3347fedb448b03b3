package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// A guide is a page whose reader types in each block `sh`, from the first to the last, in one
// shell. A block behind a line that ends in a file's name and a colon is that file. What follows
// a block `sh` as `text` or `http` is what it prints.

// guides returns the guides and the recipes, in docs. What a recipe begins with is in README.md.
func guides(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"getting-started-*.md", "recipes/*.md"} {
		found, err := filepath.Glob("../docs/" + pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, page := range found {
			if page = strings.TrimPrefix(page, "../docs/"); page != recipesBegin {
				pages = append(pages, page)
			}
		}
	}
	return pages
}

const recipesBegin = "recipes/README.md"

// podGuide has a test of its own.
const podGuide = "getting-started-pod.md"

// guideStep is a block of a guide: a file to write, or commands to type in.
type guideStep struct {
	block
	file  string // its name, "" for commands
	shows *block // what the commands print, nil where the page does not say
}

var fileOfABlock = regexp.MustCompile("`([^` ]+)`:$")

// readGuide reads the steps of a page.
func readGuide(t *testing.T, page string) (steps []guideStep) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	recipe := strings.HasPrefix(page, "recipes/") && page != recipesBegin
	lines := strings.Split(string(text), "\n")
	for _, b := range fencedBlocks(page, string(text)) {
		before := b.line - 2 // the line before the fence
		for before >= 0 && lines[before] == "" {
			before--
		}
		named := fileOfABlock.FindStringSubmatch(lines[max(before, 0)])
		switch last := len(steps) - 1; {
		case b.language == "sh":
			steps = append(steps, guideStep{block: b})
		case b.language == "text" || b.language == "http":
			if last < 0 || steps[last].file != "" || steps[last].shows != nil {
				t.Fatalf("%s:%d: no command stands before what it prints", b.page, b.line)
			}
			steps[last].shows = &b
		case recipe && b.language == "caddyfile" && len(steps) == 0:
			steps = append(steps, guideStep{block: b, file: "Caddyfile"})
			steps = append(steps, readGuide(t, recipesBegin)...)
		case !recipe && named != nil:
			steps = append(steps, guideStep{block: b, file: named[1]})
		}
	}
	return steps
}

// guideStand is where a guide's commands run: on ports and in a home of the test's own, and with
// programs in place of those that a test cannot run.
type guideStand struct {
	dir, admin string
	// here are texts of the page, each with the one that stands for it in this test.
	here []string
	// programs are scripts by their names.
	programs map[string]string
	// awaited are commands that go on in the background. The test waits until the port that they
	// name answers, where the page itself does not.
	awaited *regexp.Regexp
}

func newGuideStand(t *testing.T) *guideStand {
	t.Helper()
	dir := shortTempDir(t)
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	s := &guideStand{dir: dir}
	for _, port := range []string{"8080", "8081", "8082", "3000", "2019"} {
		own := freeport.Of(t)
		s.here = append(s.here, "localhost:"+port, fmt.Sprintf("127.0.0.1:%d", own),
			":"+port+" ", fmt.Sprintf(":%d ", own), port+":80", fmt.Sprintf("%d:80", own))
		s.admin = fmt.Sprintf("127.0.0.1:%d", own)
	}
	s.here = append(s.here, "https://hooks.slack.com", "http://"+s.inPlaceOf("localhost:3000"),
		"/home/you/.local/share", filepath.Join(dir, "data"))
	s.programs = map[string]string{
		// What a clone has, and what is built in it: this repository, and the binary that is tried.
		"git": fmt.Sprintf("[ \"$*\" = \"clone https://github.com/caddy-dedup/caddy-dedup\" ] && mkdir caddy-dedup && cp -r %[1]s/docs %[1]s/k8s %[1]s/Caddyfile.example %[1]s/Dockerfile caddy-dedup", repository),
		"go":  fmt.Sprintf("[ \"$*\" = \"build ./cmd/caddy-dedup\" ] && ln -s %s caddy-dedup", binary),
	}
	return s
}

// inPlaceOf returns what stands for a text of the page.
func (s *guideStand) inPlaceOf(text string) string {
	return s.here[slices.Index(s.here, text)+1]
}

// toPage replaces what stands for the page's texts by these.
func (s *guideStand) toPage() *strings.Replacer {
	back := slices.Clone(s.here)
	slices.Reverse(back)
	return strings.NewReplacer(back...)
}

// write makes files, with this test's texts.
func (s *guideStand) write(t *testing.T, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(strings.NewReplacer(s.here...).Replace(text)), 0o700); err != nil { //nolint:gosec // some are programs
			t.Fatal(err)
		}
	}
}

const guideMark = "=== step ==="

// script returns the steps as one shell script.
func (s *guideStand) script(steps []guideStep) string {
	var b strings.Builder
	b.WriteString("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\nawait() { until (exec 3<>/dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.05; done; }\n")
	for i, step := range steps {
		if step.file != "" {
			text := step.text
			if step.language == "caddyfile" {
				text = onLoopback(text)
			}
			fmt.Fprintf(&b, "cat > %s <<'END OF THE FILE'\n%sEND OF THE FILE\n", step.file, text)
			continue
		}
		fmt.Fprintf(&b, "echo '%s %d'\n", guideMark, i)
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

// run types in all commands and returns what each step printed, by its number.
func (s *guideStand) run(t *testing.T, steps []guideStep) map[int]string {
	t.Helper()
	bash := bashWithCurl(t)
	files := map[string]string{"typed.sh": s.script(steps)}
	for name, script := range s.programs {
		files["bin/"+name] = "#!" + bash + "\n" + script + "\n"
	}
	s.write(t, files)
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "typed.sh")
	cmd.Dir = s.dir
	cmd.Env = append(homeEnv(s.dir), "CADDY_ADMIN="+s.admin, "PATH="+filepath.Join(s.dir, "bin")+string(os.PathListSeparator)+os.Getenv("PATH"),
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends what it has started
	cmd.WaitDelay = patience
	printed, err := cmd.Output()
	if ctx.Err() != nil {
		t.Fatalf("%v\n%s%s", err, printed, said.String())
	}
	by := make(map[int]string)
	for _, part := range strings.Split(string(printed), guideMark+" ")[1:] {
		var n int
		head, output, _ := strings.Cut(part, "\n")
		if _, err := fmt.Sscan(head, &n); err != nil {
			t.Fatal(err)
		}
		by[n] = s.toPage().Replace(output)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the commands said beside that\n%s", said.String())
		}
	})
	return by
}

// shownOfAnAnswer are the header fields that guides show.
var shownOfAnAnswer = regexp.MustCompile(`(?i)^(HTTP/|Content-Type:|Retry-After:|Idempotent-Replayed:|Dedup-)`)

// shownByAGuide is an output as a guide has it: of an answer, the fields that matter, and its
// JSON on several lines.
func shownByAGuide(language, output string) string {
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

// testGuide runs a page and compares what it prints. With -update it writes that into the page.
func testGuide(t *testing.T, page string, stand *guideStand) {
	t.Helper()
	steps := readGuide(t, page)
	printed := stand.run(t, steps)
	var got, want []string
	var shown []*block
	for i, step := range steps {
		if step.shows != nil {
			shown, want, got = append(shown, step.shows), append(want, step.shows.text), append(got, shownByAGuide(step.shows.language, printed[i]))
		}
	}
	if len(got) < 3 {
		t.Fatalf("%s shows what %d commands print: are they looked for where they are?", page, len(got))
	}
	if slices.Equal(withoutIDs(got), withoutIDs(want)) {
		return
	}
	if !*update {
		t.Errorf("%s: the commands print\n%s\nthe page says\n%s", page, strings.Join(got, "---\n"), strings.Join(want, "---\n"))
		return
	}
	file := filepath.Join("../docs", page)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, b := range slices.Backward(shown) { // so that lines keep their numbers
		lines = slices.Replace(lines, b.line, b.line+strings.Count(b.text, "\n"), strings.Split(strings.TrimSuffix(got[i], "\n"), "\n")...)
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// Each guide and each recipe prints what its page says.
func TestGuides(t *testing.T) {
	t.Parallel()
	standIn, err := os.ReadFile("../docs/recipes/stand-in.caddyfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range guides(t) {
		if page == podGuide {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			stand := newGuideStand(t)
			stand.here = append(stand.here, "localhost:6379", strings.TrimPrefix(redisStore(t), "store redis redis://"))
			stand.write(t, map[string]string{"docs/recipes/stand-in.caddyfile": string(standIn)})
			testGuide(t, page, stand)
		})
	}
}

// bashWithCurl is the shell for the commands of pages, most of which use curl.
func bashWithCurl(t *testing.T) string {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err == nil {
		_, err = exec.LookPath("curl")
	}
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skipf("the commands are not run: %v", err)
	}
	return bash
}
