package integration

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	linkInAPage = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	noAnchor    = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	// pageNamed finds the path of a page where no link is possible, as in a comment.
	pageNamed = regexp.MustCompile("(?:^|[\\s\"'`(]|\\.\\./)(docs/[\\w./-]*\\w\\.md(?:#[\\w-]+)?)")
)

// anchors are the headings of a page, as links name them. Of equal ones GitHub numbers
// the second and later ones.
func anchors(text string) map[string]bool {
	all := make(map[string]bool)
	fenced := false
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		name, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " ")
		if !ok || !strings.HasPrefix(line, "#") || fenced {
			continue
		}
		anchor := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(name), ""), " ", "-")
		for n, first := 1, anchor; all[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", first, n)
		}
		all[anchor] = true
	}
	return all
}

// wrongLink says what is wrong with a link to a file, relative to a directory, with or
// without an anchor; empty if it leads to something.
func wrongLink(t *testing.T, dir, link string) string {
	t.Helper()
	file, anchor, _ := strings.Cut(link, "#")
	target := filepath.Join(dir, file)
	there, err := os.Stat(target)
	if err != nil {
		return "leads nowhere"
	}
	if anchor == "" || there.IsDir() || filepath.Ext(target) != ".md" {
		return ""
	}
	whole, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	if !anchors(string(whole))[anchor] {
		return "leads to no heading"
	}
	return ""
}

// Every link from one page to another, or within one, leads to something.
func TestLinksOfThePages(t *testing.T) {
	t.Parallel()
	links := 0
	for _, p := range docPages(t) {
		for _, link := range linkInAPage.FindAllStringSubmatch(p.text, -1) {
			to := link[1]
			if strings.Contains(to, "://") {
				continue
			}
			links++
			if strings.HasPrefix(to, "#") {
				to = filepath.Base(p.path) + to
			}
			if wrong := wrongLink(t, filepath.Join("..", filepath.Dir(p.path)), to); wrong != "" {
				t.Errorf("%s: the link %s %s", p.path, link[1], wrong)
			}
		}
	}
	if links < 100 {
		t.Errorf("the pages have %d links: are they looked for where they are?", links)
	}
}

// What comments, manifests and messages call a page is one.
func TestPagesThatAreNamedExist(t *testing.T) {
	t.Parallel()
	kinds := []string{".go", ".md", ".mod", ".yaml", ".yml", ".json", ".service", ".sh", ".txt", ".example", ""}
	named := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "node_modules"):
			return filepath.SkipDir
		case !entry.Type().IsRegular() || !slices.Contains(kinds, filepath.Ext(path)):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range pageNamed.FindAllStringSubmatch(string(text), -1) {
			named++
			if wrong := wrongLink(t, "..", found[1]); wrong != "" {
				t.Errorf("%s: %s %s", path, found[1], wrong)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if named < 10 {
		t.Errorf("%d pages are named: are they looked for where they are?", named)
	}
}

// The index has each page, once as the first link of an entry.
func TestIndexHasEachPage(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("../docs/README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries := make(map[string]int)
	for line := range strings.Lines(string(index)) {
		if link := linkInAPage.FindStringSubmatch(line); link != nil && strings.HasPrefix(line, "- ") {
			file, _, _ := strings.Cut(link[1], "#")
			entries[filepath.Join("docs", file)]++
		}
	}
	for _, p := range docPages(t) {
		if strings.HasPrefix(p.path, "docs/") && p.path != "docs/README.md" && entries[p.path] != 1 {
			t.Errorf("%s is the entry of %d lines of docs/README.md, want one", p.path, entries[p.path])
		}
	}
}
