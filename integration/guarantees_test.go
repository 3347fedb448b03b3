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

const promisesHeading = "| promise | held lowest by | through the binary | mutation |\n|---|---|---|---|\n"

// promises.md names what holds each promise. The sentences are its own: the pages may say the
// same in other words.
func TestPromisesHaveTheirTests(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("promises.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(text), promisesHeading)
	if !found {
		t.Fatal("promises.md has no table of promises")
	}
	table, _, _ = strings.Cut(table, "\n\n")
	written, mutations, faults := testsOfTheModule(t), promisesOfMutations(t), 0
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), "`", ""), "|")
		if len(cells) != 6 {
			t.Fatalf("%q has no four cells", line)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		promise, lowest, binary, mutation := cells[1], cells[2], cells[3], cells[4]
		if strings.HasPrefix(promise, "**") {
			faults++
		}
		promise = strings.ReplaceAll(promise, "**", "")
		if !written[lowest] && (lowest != "" || binary == "") { // some need two binaries
			t.Errorf("%s: there is no test %q", promise, lowest)
		}
		if binary != "" && !written["integration."+binary] {
			t.Errorf("%s: integration has no test %q", promise, binary)
		}
		if mutation == "" {
			continue
		}
		if says := mutations[mutation]; says != promise {
			t.Errorf("the mutation %q says %q, and its row %q", mutation, says, promise)
		}
		delete(mutations, mutation)
	}
	for mutation := range mutations {
		t.Errorf("the mutation %s is in no row of its own", mutation)
	}
	if rows := pageTable(t, "| fault | promise |"); faults < len(rows) {
		t.Errorf("promises.md has %d faults; the pages have %d", faults, len(rows))
	}
}

// promisesOfMutations returns the first line of each mutation.
func promisesOfMutations(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../tools/mutate/mutations/*.txt")
	if err != nil || len(paths) == 0 {
		t.Fatalf("there are no mutations: %v", err)
	}
	promises := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		first, _, _ := strings.Cut(string(text), "\n")
		promises[strings.TrimSuffix(filepath.Base(path), ".txt")] = strings.ReplaceAll(first, "`", "")
	}
	return promises
}

// Users do not read test functions.
func TestPagesNameNoTests(t *testing.T) {
	t.Parallel()
	for _, p := range docPages(t) {
		if name := testName.FindString(p.text); name != "" && strings.HasPrefix(p.path, "docs/") {
			t.Errorf("%s names %s: it belongs in integration/promises.md", p.path, name)
		}
	}
}

// testsOfTheModule returns all test functions, each as its package.Name: engine.TestCopies.
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
			names[filepath.Base(filepath.Dir(path))+"."+found[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}
