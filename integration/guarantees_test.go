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

// promises.md names tests that there are, some of them for each row of the table of faults.
func TestPromisesHaveTheirTests(t *testing.T) {
	t.Parallel()
	index, err := os.ReadFile("promises.md")
	if err != nil {
		t.Fatal(err)
	}
	written := testsOfTheModule(t)
	for _, name := range testName.FindAllStringSubmatch(string(index), -1) {
		if !written[name[1]] {
			t.Errorf("promises.md names %s, and there is no such test", name[1])
		}
	}
	faults := pageTable(t, "guarantees.md", "| fault | promise |")
	for _, row := range faults {
		if !strings.Contains(string(index), "\n| "+row[0]+" | `") {
			t.Errorf("promises.md names no test for: %s", row[0])
		}
	}
	const promises = 12 // of the contract, and rows that divide one of them
	if len(faults) < promises {
		t.Errorf("the table has %d rows, want at least %d", len(faults), promises)
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
