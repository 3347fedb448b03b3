package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// page is a page of the documentation: a file of the repository's root, or of docs.
type page struct {
	path   string // in the repository
	text   string
	blocks []block
}

// block is a fenced block of a page.
type block struct {
	page     string // its path in the repository
	line     int
	language string
	text     string
	file     string // its name, where the line before the block ends in it and a colon
	shows    *block // of commands: the block that follows, if it is not further commands
}

// docPages returns all pages.
func docPages(t *testing.T) (pages []page) {
	t.Helper()
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("there are no pages %s: %v", pattern, err)
		}
		for _, path := range found {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if strings.Count("\n"+string(text), "\n```")%2 != 0 {
				t.Fatalf("%s has a fence that is not closed", path)
			}
			p := page{path: strings.TrimPrefix(filepath.ToSlash(path), "../"), text: string(text)}
			p.blocks = blocksOf(p)
			pages = append(pages, p)
		}
	}
	return pages
}

// docBlocks returns the blocks of all pages, in their order.
func docBlocks(t *testing.T) (blocks []block) {
	t.Helper()
	for _, p := range docPages(t) {
		blocks = append(blocks, p.blocks...)
	}
	return blocks
}

var endsInAFile = regexp.MustCompile("`([^` ]+)`:$")

func blocksOf(p page) (blocks []block) {
	var open *block
	before := "" // the last line that is not empty
	for i, line := range strings.Split(p.text, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && open == nil:
			open = &block{page: p.path, line: i + 1, language: language}
			if named := endsInAFile.FindStringSubmatch(before); named != nil {
				open.file = named[1]
			}
		case fence:
			if last := len(blocks) - 1; last >= 0 && blocks[last].language == "sh" && open.language != "sh" {
				blocks[last].shows = open
			}
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		}
		if line != "" {
			before = line
		}
	}
	return blocks
}

// caddyfileWith returns the Caddyfile with these words, of whichever page.
func caddyfileWith(t *testing.T, words string) string {
	t.Helper()
	return blockWith(t, "caddyfile", words)
}

// blockWith returns the block in a language with these words, of whichever page.
func blockWith(t *testing.T, language, words string) string {
	t.Helper()
	var found []block
	for _, b := range docBlocks(t) {
		if b.language == language && strings.Contains(b.text, words) {
			found = append(found, b)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d blocks of the pages in %s have %q; want one", len(found), language, words)
	}
	return found[0].text
}

// pageTable returns the rows of the table whose headings begin as given, of whichever page.
func pageTable(t *testing.T, headings string) (rows [][]string) {
	t.Helper()
	for _, p := range docPages(t) {
		_, table, found := strings.Cut(p.text, "\n"+headings)
		_, table, cut := strings.Cut(table, "\n|--")
		if !found || !cut {
			continue
		}
		for line := range strings.Lines(table[strings.Index(table, "\n")+1:]) {
			cells, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
			if !isRow {
				return rows
			}
			row := strings.Split(strings.TrimSuffix(cells, "|"), "|")
			for i := range row {
				row[i] = strings.TrimSpace(row[i])
			}
			rows = append(rows, row)
		}
		return rows
	}
	t.Fatalf("no page has a table with the headings %s", headings)
	return nil
}

// config returns the block as a whole configuration. Pages also show a directive alone, which
// stands in a site, a handler alone, and a store alone.
func (b block) config() string {
	compact := strings.Join(strings.Fields(b.text), "")
	switch {
	case b.language == "caddyfile" && strings.HasPrefix(b.text, "dedup"):
		return ":8080 {\n" + b.text + "}\n"
	case b.language == "caddyfile" || strings.Contains(compact, `"apps"`):
		return b.text
	case strings.HasPrefix(compact, `{"handler"`):
		return `{"apps": {"http": {"servers": {"s": {"listen": [":0"], "routes": [{"handle": [` + b.text + `]}]}}}}}`
	}
	return `{"apps": {"dedup": {"store": ` + b.text + `}}}`
}

// Every Caddyfile and every JSON of the pages loads, with files and values in place of theirs.
func TestConfigurationsOfThePages(t *testing.T) {
	t.Parallel()
	keys, certificates := shortTempDir(t), redistest.NewCertificates(t)
	keyFiles(t, keys, "ab")
	for _, p := range docPages(t) {
		blocks := slices.DeleteFunc(p.blocks, func(b block) bool { return b.language != "caddyfile" && b.language != "json" })
		if len(blocks) == 0 {
			continue
		}
		t.Run(p.path, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(shortTempDir(t), "config")
			for _, b := range blocks {
				text := b.config()
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
				arguments := []string{"validate", "--config", file}
				if b.language == "caddyfile" {
					arguments = append(arguments, "--adapter", "caddyfile")
				}
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				if out, code := command(t, filepath.Dir(file), arguments...); code != 0 {
					t.Errorf("%s:%d: the %s does not load:\n%s", b.page, b.line, b.language, out)
				}
			}
		})
	}
}
