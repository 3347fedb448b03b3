package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// block is a fenced block of a page.
type block struct {
	page     string // its path in the repository
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
			open = &block{page: strings.TrimPrefix(page, "../"), line: i + 1, language: language}
		case fence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
	}
	return blocks
}

// caddyfile returns the block as a whole Caddyfile: the pages of the reference show a
// directive alone, which stands in a site.
func (b block) caddyfile() string {
	if strings.HasPrefix(b.text, "dedup") {
		return ":8080 {\n" + b.text + "}\n"
	}
	return b.text
}

// filledIn returns what replaces the placeholders and the files of the pages by some that are there.
func filledIn(t *testing.T) func(text string) string {
	t.Helper()
	keys, certificates := shortTempDir(t), redistest.NewCertificates(t)
	keyFiles(t, keys, "ab")
	return func(text string) string {
		for _, r := range []struct{ of, by string }{
			{`\{env\.\w*URL\}`, "redis://localhost:6379"},
			{`\{file\.[^}]+\}`, "{file." + keys + "/b.key}"},
			{`\{env\.\w+\}`, "{file." + keys + "/a.key}"},
			{`/\S*/ca\.pem`, certificates.CA},
			{`/\S*/client\.pem`, certificates.Cert},
			{`/\S*/client\.key`, certificates.Key},
			{`output file \S+`, "output file " + keys + "/access.log"},
		} {
			text = regexp.MustCompile(r.of).ReplaceAllString(text, r.by)
		}
		return text
	}
}

// Every Caddyfile in the pages is one that a user can start from.
func TestCaddyfilesOfThePages(t *testing.T) {
	t.Parallel()
	filled := filledIn(t)
	for _, b := range docBlocks(t) {
		if b.language != "caddyfile" {
			continue
		}
		dir := shortTempDir(t)
		file := filepath.Join(dir, "Caddyfile")
		if err := os.WriteFile(file, []byte(filled(b.caddyfile())), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := command(t, dir, "validate", "--config", file, "--adapter", "caddyfile"); code != 0 {
			t.Errorf("%s:%d: the Caddyfile is not valid:\n%s", b.page, b.line, out)
		}
	}
}

// Every JSON of the pages that is a configuration loads, in its place: as a whole, as a handler, or
// as a store.
func TestJSONOfThePagesLoads(t *testing.T) {
	t.Parallel()
	filled, loaded := filledIn(t), 0
	for _, b := range docBlocks(t) {
		if b.language != "json" {
			continue
		}
		config := b.text
		if strings.HasPrefix(strings.Join(strings.Fields(config), ""), `{"handler"`) {
			config = `{"apps": {"http": {"servers": {"s": {"listen": [":0"], "routes": [{"handle": [` + config + `]}]}}}}}`
		} else if !strings.Contains(config, `"apps"`) {
			config = `{"apps": {"dedup": {"store": ` + config + `}}}`
		}
		dir := shortTempDir(t)
		file := filepath.Join(dir, "caddy.json")
		if err := os.WriteFile(file, []byte(filled(config)), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, code := command(t, dir, "validate", "--config", file); code != 0 {
			t.Errorf("%s:%d: it does not load:\n%s", b.page, b.line, out)
		}
		loaded++
	}
	if loaded == 0 {
		t.Error("the pages have no JSON: is it where this test looks?")
	}
}
