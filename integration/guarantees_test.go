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
	testName   = regexp.MustCompile("`(Test\\w+)`")
	testSource = regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
)

// Each row of the table of faults names the tests that hold its promise, and each
// test that the page names is there.
func TestGuaranteesNameTheirTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/guarantees.md")
	if err != nil {
		t.Fatal(err)
	}
	written := testsOfTheModule(t)
	for _, found := range testName.FindAllStringSubmatch(string(page), -1) {
		if !written[found[1]] {
			t.Errorf("the page names %s, and there is no such test", found[1])
		}
	}
	_, table, found := strings.Cut(string(page), "| fault | promise | tests |\n")
	if !found {
		t.Fatal("the page has no table of faults")
	}
	rows := 0
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") {
			break
		}
		if strings.HasPrefix(line, "|-") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !testName.MatchString(cells[2]) {
			t.Errorf("no test is named for: %s", line)
		}
	}
	const promises = 12 // and rows that divide one of them
	if rows < promises {
		t.Errorf("the table has %d rows, want at least the %d promises", rows, promises)
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
