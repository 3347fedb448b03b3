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
)

// A page of commands and of what they print: each block `sh` stands before a block that
// has what it prints, as text, as JSON, or as an answer of HTTP. A test says for each
// section in which situation its commands are for.

// situation is the one that a section of a page is for.
type situation struct {
	// start makes it. The commands are run beside this process.
	start func(t *testing.T) *stage
	// before are done before the example of this number, counted from 1.
	before map[int]func(t *testing.T, s *stage)
	// after checks what the commands have changed; nil for those that only show something.
	after func(t *testing.T, s *stage)
}

// stage is where commands of a page are run.
type stage struct {
	*caddy
	up *upstream
	// admin is the address of the admin API.
	admin string
	// here are texts of the page, each with the one that stands for it in this test.
	here []string
	// ids are keys, IDs and cursors of the page, with those that stand for them here.
	ids map[string]string
}

// example is a command with what it prints.
type example struct {
	commands, shows block
}

// examplesOf returns the examples of a page by their sections, and the sections' names in
// their order. Sections without a command are left out.
func examplesOf(t *testing.T, page string) (names []string, bySection map[string][]example) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs", page))
	if err != nil {
		t.Fatal(err)
	}
	bySection = make(map[string][]example)
	section, first := "", 1
	lines := strings.Split(string(text), "\n")
	take := func(end int) {
		blocks := fencedBlocks(page, strings.Join(lines[first-1:end], "\n"))
		for i, b := range blocks {
			if b.language != "sh" {
				continue
			}
			if i+1 == len(blocks) || !slices.Contains([]string{"text", "json answer", "http"}, blocks[i+1].language) {
				t.Fatalf("%s:%d: nothing says what the commands print", page, b.line+first-1)
			}
			e := example{b, blocks[i+1]}
			e.commands.line += first - 1
			e.shows.line += first - 1
			bySection[section] = append(bySection[section], e)
		}
		if len(bySection[section]) > 0 {
			names = append(names, section)
		}
	}
	fenced := false
	for i, line := range lines {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if name, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); isHeading && strings.HasPrefix(line, "#") && !fenced {
			take(i)
			section, first = name, i+1
		}
	}
	take(len(lines))
	return names, bySection
}

// testPage runs all commands of a page and compares what they print. With -update it
// writes that into the page.
func testPage(t *testing.T, page string, situations map[string]situation) {
	bash := bashWithCurl(t)
	names, bySection := examplesOf(t, page)
	for section := range situations {
		if len(bySection[section]) == 0 {
			t.Errorf("%s has no section %q with commands", page, section)
		}
	}
	printed := make(map[int]string) // by the line of the block that shows it
	t.Run("sections", func(t *testing.T) {
		for _, section := range names {
			in, ok := situations[section]
			if !ok {
				t.Errorf("%s: no situation is named for the commands of %q", page, section)
				continue
			}
			t.Run(section, func(t *testing.T) {
				if !*update {
					t.Parallel()
				}
				s := in.start(t)
				s.ids = make(map[string]string)
				for i, e := range bySection[section] {
					if do := in.before[i+1]; do != nil {
						do(t, s)
					}
					got := normalized(e.shows.language, s.run(t, bash, e.commands.text))
					if *update {
						printed[e.shows.line] = s.learn(e.shows.text, got)
						continue
					}
					if got = s.learn(e.shows.text, got); timeless(got) != timeless(e.shows.text) {
						t.Errorf("%s:%d: %s\nprints\n%s\nthe page says\n%s", page, e.commands.line, e.commands.text, got, e.shows.text)
					}
				}
				if in.after != nil {
					in.after(t, s)
				}
			})
		}
	})
	if *update {
		rewritePage(t, page, printed)
	}
}

// run runs commands as the reader of the page would, beside the process.
func (s *stage) run(t *testing.T, bash, commands string) string {
	t.Helper()
	dir := shortTempDir(t)
	alone := filepath.Join(dir, "alone") // the directory of a pod's only program
	if err := os.Mkdir(alone, 0o700); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	// In a pod there is no shell, and no other program: only what its image has, and what
	// its manifest says.
	kubectl := fmt.Sprintf(`#!%s
case "$1 $2 $3 $4" in
"exec deploy/payments -c dedup") shift 5; exec env -i PATH=%s XDG_DATA_HOME=%s XDG_CONFIG_HOME=%s CADDY_ADMIN=%s "$@" ;;
"logs deploy/payments -c dedup") exec cat %s ;;
esac
echo "kubectl $*: not a command of the pages" >&2
exit 1
`, bash, alone, filepath.Join(s.conf.dir, "data"), filepath.Join(s.conf.dir, "config"), s.admin, log)
	for file, text := range map[string]string{log: s.log.String(), filepath.Join(dir, "kubectl"): kubectl} {
		if err := os.WriteFile(file, []byte(text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	for _, in := range []string{dir, alone} {
		if err := os.Symlink(binary, filepath.Join(in, "caddy-dedup")); err != nil {
			t.Fatal(err)
		}
	}
	var toHere, toPage []string
	for i := 0; i < len(s.here); i += 2 {
		toPage = append(toPage, s.here[i+1], s.here[i])
	}
	toHere = append(toHere, s.here...)
	for shown, id := range s.ids {
		toHere = append(toHere, shown, id)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, bash, "-c", strings.NewReplacer(toHere...).Replace(commands))
	cmd.Dir = s.conf.dir
	cmd.Env = append(homeEnv(s.conf.dir), "CADDY_ADMIN="+s.admin, "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"),
		"NO_PROXY=127.0.0.1", "no_proxy=127.0.0.1")
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.WaitDelay = patience
	_ = cmd.Run() // a command may fail: the pages show with which status
	if ctx.Err() != nil {
		t.Fatalf("%s: %v\n%s", commands, ctx.Err(), output.String())
	}
	return strings.NewReplacer(toPage...).Replace(output.String())
}

var (
	// anyID is a key, an ID of an execution or a delivery, or a cursor.
	anyID = regexp.MustCompile(`[0-9a-f]{64}|` + anyUUID.String() + `|eyJ[0-9A-Za-z_-]{20,}`)
	// anyTime is a time, and anyValue what a metric says.
	anyTime  = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	anyValue = regexp.MustCompile(`(?m)^(caddy_dedup_\w+) \d+$`)
)

// timeless is a text without what is another one each time.
func timeless(text string) string {
	return anyValue.ReplaceAllString(anyTime.ReplaceAllString(text, "TIME"), "$1 VALUE")
}

// learn replaces the IDs of this test by those of the page. One that is new stands for
// the one that the page has in its place.
func (s *stage) learn(shown, got string) string {
	theirs := anyID.FindAllString(shown, -1)
	of := make(map[string]string)
	for shown, id := range s.ids {
		of[id] = shown
	}
	n := 0
	return anyID.ReplaceAllStringFunc(got, func(id string) string {
		n++
		if known, ok := of[id]; ok {
			return known
		}
		if n > len(theirs) || s.ids[theirs[n-1]] != "" {
			return id
		}
		s.ids[theirs[n-1]], of[id] = id, theirs[n-1]
		return theirs[n-1]
	})
}

// shownFields are those of an answer that pages show.
var shownFields = regexp.MustCompile(`(?i)^(HTTP/|Allow:|Content-Type:|Cache-Control:|Dedup-)`)

// normalized is an output as the pages have it: JSON on several lines, and of an answer
// the fields that say something.
func normalized(language, output string) string {
	switch language {
	case "json answer":
		return indented(output)
	case "http":
		head, body, _ := strings.Cut(strings.ReplaceAll(output, "\r\n", "\n"), "\n\n")
		var fields []string
		for _, line := range strings.Split(head, "\n") {
			if shownFields.MatchString(line) {
				fields = append(fields, line)
			}
		}
		if body == "" {
			return strings.Join(fields, "\n") + "\n"
		}
		return strings.Join(fields, "\n") + "\n\n" + indented(body)
	default:
		return output
	}
}

func indented(text string) string {
	var out bytes.Buffer
	if err := json.Indent(&out, []byte(strings.TrimSpace(text)), "", "  "); err != nil {
		return text
	}
	return out.String() + "\n"
}

// rewritePage writes into a page what its commands have printed, where it differs in more
// than times.
func rewritePage(t *testing.T, page string, printed map[int]string) {
	t.Helper()
	file := filepath.Join("../docs", page)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	blocks := fencedBlocks(page, string(text))
	slices.Reverse(blocks) // so that lines keep their numbers
	lines := strings.Split(string(text), "\n")
	for _, b := range blocks {
		got, ok := printed[b.line]
		if !ok || timeless(got) == timeless(b.text) {
			continue
		}
		was := strings.Count(b.text, "\n")
		lines = slices.Replace(lines, b.line, b.line+was, strings.Split(strings.TrimSuffix(got, "\n"), "\n")...)
	}
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
}
