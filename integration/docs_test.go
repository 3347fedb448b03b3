package integration

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block of a page.
type block struct {
	page     string
	line     int
	language string
	text     string
}

// docPages returns the paths of all pages.
func docPages(t *testing.T) (pages []string) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		pages = append(pages, found...)
	}
	return pages
}

// docBlocks returns the fenced blocks of all pages, in their order.
func docBlocks(t *testing.T) []block {
	t.Helper()
	var blocks []block
	for _, page := range docPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks = append(blocks, fencedBlocks(page, string(text))...)
	}
	if len(blocks) == 0 {
		t.Fatal("the pages have no blocks: are they where this test looks?")
	}
	return blocks
}

func fencedBlocks(page, text string) []block {
	var blocks []block
	var open *block
	for i, line := range strings.Split(text, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{page: filepath.Base(page), line: i + 1, language: language}
		case fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return blocks
}

// Every Caddyfile in the pages is one that a user can start from.
func TestCaddyfilesOfThePages(t *testing.T) {
	t.Parallel()
	keys := shortTempDir(t)
	keyFiles(t, keys, "ab")
	for _, b := range docBlocks(t) {
		if b.language != "caddyfile" {
			continue
		}
		dir := shortTempDir(t)
		file := filepath.Join(dir, "Caddyfile")
		text := strings.NewReplacer(
			"{env.REDIS_URL}", "redis://localhost:6379",
			"{env.REDIS_PASSWORD}", "secret",
			"{env.DEDUP_KEY}", "{file."+keys+"/a.key}",
			"{file./run/secrets/dedup_old}", "{file."+keys+"/b.key}",
		).Replace(b.text)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := command(t, dir, "validate", "--config", file, "--adapter", "caddyfile"); code != 0 {
			t.Errorf("%s:%d: the Caddyfile is not valid:\n%s", b.page, b.line, out)
		}
	}
}

// Where a page shows a Caddyfile in JSON too, that is what it is adapted to.
func TestJSONOfThePages(t *testing.T) {
	t.Parallel()
	var caddyfile block
	compared := 0
	for _, b := range docBlocks(t) {
		switch b.language {
		case "caddyfile":
			caddyfile = b
		case "json":
			var shown, adapted any
			if err := json.Unmarshal([]byte(b.text), &shown); err != nil {
				t.Errorf("%s:%d: %v", b.page, b.line, err)
				continue
			}
			out, code := adapt(t, caddyfile.text)
			if code != 0 {
				t.Errorf("%s:%d: %s", caddyfile.page, caddyfile.line, out)
				continue
			}
			if err := json.Unmarshal([]byte(out), &adapted); err != nil {
				t.Fatal(err)
			}
			if !contains(adapted, shown) {
				t.Errorf("%s:%d: the JSON is not what the Caddyfile before it is adapted to:\n%s", b.page, b.line, out)
			}
			compared++
		}
	}
	if compared == 0 {
		t.Error("no page shows JSON")
	}
}

// contains reports whether a JSON value is equal to, or somewhere within,
// another; an object may have more members than are shown only at the top.
func contains(whole, part any) bool {
	if reflect.DeepEqual(whole, part) {
		return true
	}
	switch w := whole.(type) {
	case map[string]any:
		if p, ok := part.(map[string]any); ok && membersIn(w, p) {
			return true
		}
		for _, member := range w {
			if contains(member, part) {
				return true
			}
		}
	case []any:
		for _, element := range w {
			if contains(element, part) {
				return true
			}
		}
	}
	return false
}

// membersIn reports whether an object has all members of another, each of them
// equal or again an object that has.
func membersIn(whole, part map[string]any) bool {
	for name, value := range part {
		got, ok := whole[name]
		if !ok {
			return false
		}
		inner, isObject := value.(map[string]any)
		outer, _ := got.(map[string]any)
		if !reflect.DeepEqual(got, value) && (!isObject || name == "store" || !membersIn(outer, inner)) {
			return false
		}
	}
	return true
}

// Every command of the pages is run by a test. This table says by which; a new
// command has to be added here, with its test.
var commandsRunBy = map[string]string{
	"go run ./cmd/caddy-dedup run --config Caddyfile.example":                                   "TestExampleCaddyfile",
	"curl -i -X POST -H 'Idempotency-Key: order-1' -d amount=10 http://127.0.0.1:8080/payments": "TestExampleCaddyfile",
	"caddy-dedup proxy --from :8080 --to localhost:3000 --provider github":                      "TestProxyCommandForAProviderOnRedis",
	"caddy-dedup keys show 72d3162e-cc78-11e3-81ab-4c9367dc0958":                                "TestKeysCommandsOfThePage",
	"caddy-dedup keys show --body 72d3162e-cc78-11e3-81ab-4c9367dc0958":                         "TestKeysCommandsOfThePage",
	"caddy-dedup keys release 72d3162e-cc78-11e3-81ab-4c9367dc0958":                             "TestKeysCommandsOfThePage",
	"caddy-dedup keys forget 72d3162e-cc78-11e3-81ab-4c9367dc0958":                              "TestKeysCommandsOfThePage",
	"xcaddy build --with github.com/caddy-dedup/caddy-dedup":                                    "tools/build, which builds by xcaddy's own builder",
	"go build ./cmd/caddy-dedup":                                                                "TestMain",
	"go test ./...":                                                                             "this very run",
	"go -C bench run . -write ../docs/performance.md":                                           "TestSmallestRun in bench, and .ci/run long",
}

// pagesOfExamples are the pages of which a test runs every command, whatever it is.
var pagesOfExamples = []string{"admin.md", "troubleshooting.md"}

func TestCommandsOfThePagesAreRun(t *testing.T) {
	t.Parallel()
	checked := make(map[string]bool) // by TestChecksOfTheRecipes
	for _, page := range recipePages(t) {
		c := readChecks(t, page)
		for _, commands := range append([]check{{commands: c.start}}, c.run...) {
			for line := range strings.Lines(commands.commands) {
				checked[strings.TrimSpace(line)] = true
			}
		}
	}
	for _, b := range docBlocks(t) {
		if b.language != "sh" || slices.Contains(pagesOfExamples, b.page) {
			continue
		}
		for _, line := range strings.Split(strings.TrimSpace(b.text), "\n") {
			command, _, _ := strings.Cut(line, " #")
			if command = strings.TrimSpace(command); command == "" || strings.HasPrefix(command, "#") {
				continue
			}
			if commandsRunBy[command] == "" && !checked[command] {
				t.Errorf("%s:%d: no test is named that runs %q", b.page, b.line, command)
			}
		}
	}
}

var (
	linkInAPage = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noAnchor    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// anchors are the headings of a page, as links name them.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		if name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && !fenced {
			all[strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(name), ""), " ", "-")] = true
		}
	}
	return all
}

// Every link from one page to another, or within one, leads to something.
func TestLinksOfThePages(t *testing.T) {
	t.Parallel()
	links := 0
	for _, page := range docPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range linkInAPage.FindAllStringSubmatch(string(text), -1) {
			file, anchor, _ := strings.Cut(link[1], "#")
			if strings.Contains(link[1], "://") {
				continue
			}
			links++
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			there, err := os.Stat(target)
			if err != nil {
				t.Errorf("%s: the link %s leads nowhere", page, link[1])
				continue
			}
			if anchor == "" || there.IsDir() || filepath.Ext(target) != ".md" {
				continue
			}
			whole, err := os.ReadFile(target)
			if err != nil {
				t.Fatal(err)
			}
			if !anchors(string(whole))[anchor] {
				t.Errorf("%s: the link %s leads to no heading", page, link[1])
			}
		}
	}
	if links < 100 {
		t.Errorf("the pages have %d links: are they looked for where they are?", links)
	}
}
