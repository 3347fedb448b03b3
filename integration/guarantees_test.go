package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testName   = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
	testSource = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(\w+ \*testing\.[TF]\)`)
)

// promises.md names, for what the pages promise, the tests that hold it.
func TestPromisesHaveTheirTests(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("promises.md")
	if err != nil {
		t.Fatal(err)
	}
	written, held := testsOfTheModule(t), map[string]bool{}
	for _, name := range testName.FindAllStringSubmatch(string(index), -1) {
		if !written[name[1]] {
			t.Errorf("promises.md names %s, and there is no such test", name[1])
		}
	}
	for section := range strings.SplitSeq(string(index), "\n## ") {
		page, table, found := strings.Cut(section, "\n\n| claim | tests |\n|---|---|\n")
		if !found {
			continue
		}
		text, err := os.ReadFile(filepath.Join("../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(table) {
			claim, tests, isRow := strings.Cut(strings.Trim(strings.TrimSpace(line), "| "), " | ")
			if !isRow {
				break
			}
			held[page+" "+claim] = true
			if !strings.Contains(string(text), claim) {
				t.Errorf("%s does not say %q any more", page, claim)
			}
			if !testName.MatchString(tests) {
				t.Errorf("no test is named for %q of %s", claim, page)
			}
		}
	}
	faults := pageTable(t, "guarantees.md", "| fault | promise |")
	for _, row := range faults {
		if !held["guarantees.md "+row[0]] {
			t.Errorf("promises.md names no test for: %s", row[0])
		}
	}
	const promises = 12 // and rows that divide one of them
	if len(faults) < promises {
		t.Errorf("the table has %d rows, want at least the %d promises", len(faults), promises)
	}
}

// Users do not read test functions.
func TestPagesNameNoTests(t *testing.T) {
	t.Parallel()
	for _, page := range docPages(t) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if name := testName.Find(text); name != nil && strings.HasPrefix(page, "../docs/") {
			t.Errorf("%s names %s: it belongs in integration/promises.md", page, name)
		}
	}
}

// testsOfTheModule returns the names of all test functions.
func testsOfTheModule(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, found := range testSource.FindAllStringSubmatch(string(source), -1) {
			names[found[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
