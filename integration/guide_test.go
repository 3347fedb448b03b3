package integration

import (
	"bytes"
	"context"
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

// A guide is a page whose reader goes through it from its beginning to its end, in one
// shell. A block behind a line that ends in a file's name and a colon is that file. Each
// block `sh` is typed in; where a block `text` or `http` follows, that is what it prints.

// guidePages are the guides, in docs.
var guidePages = []string{"getting-started-api.md", "getting-started-webhooks.md", podGuide}

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
func readGuide(t *testing.T, path string) (steps []guideStep) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for _, b := range fencedBlocks(path, string(text)) {
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
		case named != nil:
			steps = append(steps, guideStep{block: b, file: named[1]})
		}
	}
	return steps
}

// guideStand is where a guide's commands are run: on ports of the test's own, with a
// home of its own, and with programs in place of those that a test cannot run.
type guideStand struct {
	dir string
	// here are texts of the page, each with the one that stands for it in this test.
	here []string
	// programs are scripts by their names.
	programs map[string]string
	// awaited are commands that go on in the background, and behind which the test waits
	// until the port that they name answers. Their page does not do so itself.
	awaited *regexp.Regexp
}

func newGuideStand(t *testing.T) *guideStand {
	t.Helper()
	port, service := freeport.Of(t), freeport.Of(t)
	dir := shortTempDir(t)
	repository, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return &guideStand{
		dir: dir,
		here: []string{
			"localhost:8080", fmt.Sprintf("127.0.0.1:%d", port),
			"8080:80", fmt.Sprintf("%d:80", port),
			":8080 ", fmt.Sprintf(":%d ", port),
			"localhost:3000", fmt.Sprintf("127.0.0.1:%d", service),
			":3000 ", fmt.Sprintf(":%d ", service),
			"/home/you/.local/share", filepath.Join(dir, "data"),
		},
		programs: map[string]string{
			// What a clone has, and what is built in it: this repository, and the binary
			// that is tried.
			"git": fmt.Sprintf("[ \"$*\" = \"clone https://github.com/caddy-dedup/caddy-dedup\" ] && mkdir caddy-dedup && cp -r %[1]s/docs %[1]s/k8s %[1]s/Caddyfile.example %[1]s/Dockerfile caddy-dedup", repository),
			"go":  fmt.Sprintf("[ \"$*\" = \"build ./cmd/caddy-dedup\" ] && ln -s %s caddy-dedup", binary),
		},
	}
}

// on puts the test's own Redis in place of the page's.
func (s *guideStand) on(addr string) *guideStand {
	s.here = append(s.here, "localhost:6379", addr)
	return s
}

const guideMark = "=== step ==="

// script returns the steps as one shell script.
func (s *guideStand) script(steps []guideStep) string {
	var b strings.Builder
	b.WriteString("trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT\nawait() { until (exec 3<>/dev/tcp/127.0.0.1/$1) 2>/dev/null; do sleep 0.05; done; }\n")
	here := strings.NewReplacer(s.here...)
	for i, step := range steps {
		text := here.Replace(step.text)
		if step.file != "" {
			if step.language == "caddyfile" {
				text = onLoopback(text)
			}
			fmt.Fprintf(&b, "cat > %s <<'END OF THE FILE'\n%sEND OF THE FILE\n", step.file, text)
			continue
		}
		fmt.Fprintf(&b, "echo '%s %d'\n", guideMark, i)
		for line := range strings.Lines(text) {
			b.WriteString(line)
			if s.awaited == nil {
				continue
			}
			if port := s.awaited.FindStringSubmatch(strings.TrimSpace(line)); port != nil {
				fmt.Fprintf(&b, "await %s\n", port[1])
			}
		}
	}
	return b.String()
}

// onLoopback is a Caddyfile that listens for nobody else and leaves nothing behind.
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
	bin := filepath.Join(s.dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, script := range s.programs {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!"+bash+"\n"+script+"\n"), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-c", s.script(steps))
	cmd.Dir = s.dir
	cmd.Env = append(homeEnv(s.dir), "CADDY_ADMIN=unix/"+adminSocket(s.dir), "PATH="+bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var said bytes.Buffer
	cmd.Stderr = &said
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that it ends what it has started
	cmd.WaitDelay = patience
	printed, err := cmd.Output()
	if ctx.Err() != nil {
		t.Fatalf("%v\n%s%s", err, printed, said.String())
	}
	var toPage []string
	for i := 0; i < len(s.here); i += 2 {
		toPage = append(toPage, s.here[i+1], s.here[i])
	}
	by := make(map[int]string)
	for _, part := range strings.Split(string(printed), guideMark+" ")[1:] {
		var n int
		head, output, _ := strings.Cut(part, "\n")
		if _, err := fmt.Sscan(head, &n); err != nil {
			t.Fatal(err)
		}
		by[n] = strings.NewReplacer(toPage...).Replace(output)
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

// shownByAGuide is an output as a guide has it.
func shownByAGuide(language, output string) string {
	if language != "http" {
		return output
	}
	head, body, _ := strings.Cut(strings.ReplaceAll(output, "\r\n", "\n"), "\n\n")
	fields := slices.DeleteFunc(strings.Split(head, "\n"), func(line string) bool { return !shownOfAnAnswer.MatchString(line) })
	return strings.Join(fields, "\n") + "\n\n" + indented(body)
}

// sameInAGuide are texts without what is another one each time: IDs are numbered in the
// order in which they come.
func sameInAGuide(texts []string) []string {
	seen := make(map[string]string)
	var all []string
	for _, text := range texts {
		all = append(all, anyID.ReplaceAllStringFunc(timeless(text), func(id string) string {
			if seen[id] == "" {
				seen[id] = fmt.Sprint("ID", len(seen)+1)
			}
			return seen[id]
		}))
	}
	return all
}

// testGuide runs a page and compares what it prints. With -update it writes that into
// the page.
func testGuide(t *testing.T, page string, stand *guideStand) {
	t.Helper()
	steps := readGuide(t, filepath.Join("../docs", page))
	printed := stand.run(t, steps)
	var got, want []string
	lines := make(map[int]string)
	for i, step := range steps {
		if step.shows == nil {
			continue
		}
		text := shownByAGuide(step.shows.language, printed[i])
		got, want = append(got, text), append(want, step.shows.text)
		lines[step.shows.line] = text
	}
	if len(got) < 4 {
		t.Fatalf("%s shows what %d commands print: are they looked for where they are?", page, len(got))
	}
	if *update {
		rewritePage(t, page, lines)
		return
	}
	same, shown := sameInAGuide(got), sameInAGuide(want)
	for i := range same {
		if same[i] != shown[i] {
			t.Errorf("%s: the commands print\n%s\nthe page says\n%s", page, got[i], want[i])
		}
	}
}

func TestGuides(t *testing.T) {
	t.Parallel()
	for _, page := range guidePages {
		if page == podGuide {
			continue
		}
		t.Run(page, func(t *testing.T) {
			t.Parallel()
			stand := newGuideStand(t).on(strings.TrimPrefix(redisStore(t), "store redis redis://"))
			testGuide(t, page, stand)
		})
	}
}
