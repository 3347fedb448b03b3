package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The tree of these tests: a package with one promise, and tests that keep it, keep
// it by half, and are skipped.
const (
	goMod = "module example.test/m\n\ngo 1.26\n"
	code  = `package m

// Larger returns the larger one.
func Larger(a, b int) int {
	if b > a {
		return b
	}
	return a
}
`
	tests = `package m

import "testing"

func TestLarger(t *testing.T) {
	t.Run("in both orders", func(t *testing.T) {
		if Larger(1, 2) != 2 || Larger(2, 1) != 2 {
			t.Error("it is not the larger one")
		}
	})
}

func TestFirst(t *testing.T) {
	if Larger(2, 1) != 2 {
		t.Error("it is not the first one")
	}
}

func TestSkipped(t *testing.T) { t.Skip() }

func TestBroken(t *testing.T) { t.Error("always") }
`
)

// mutationText returns a mutation of the code for a test.
func mutationText(test, before, after string) string {
	return "It is not the larger one.\nfile: code.go\ntest: . " + test + "\n-- before --\n" + before + "\n-- after --\n" + after + "\n"
}

// tryOne writes a tree and one mutation of it, and returns what comes of it.
func tryOne(t *testing.T, text string) (out string, err error) {
	t.Helper()
	tree, mutations := t.TempDir(), t.TempDir()
	for path, content := range map[string]string{
		filepath.Join(tree, "go.mod"):          goMod,
		filepath.Join(tree, "code.go"):         code,
		filepath.Join(tree, "code_test.go"):    tests,
		filepath.Join(mutations, "broken.txt"): text,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := exec.CommandContext(t.Context(), "git", "init", "--quiet", tree).CombinedOutput(); err != nil {
		t.Fatalf("git init: %v: %s", err, said)
	}
	var written strings.Builder
	err = mutate(context.Background(), &written, options{root: tree, mutations: mutations, run: regexp.MustCompile("")})
	if now, failed := os.ReadFile(filepath.Join(tree, "code.go")); failed != nil || string(now) != code {
		t.Errorf("the tree itself has changed: %s, %v", now, failed)
	}
	return written.String(), err
}

func TestMutationThatATestNotices(t *testing.T) {
	for _, text := range []string{
		mutationText("TestLarger/in_both_orders", "if b > a {", "if false {"),
		mutationText("TestLarger", "if b > a {\nreturn b", "if b > a {"), // in more than one line
	} {
		out, err := tryOne(t, text)
		if err != nil || !strings.Contains(out, "noticed     broken") {
			t.Errorf("got %v and %q", err, out)
		}
	}
}

func TestMutationsThatAreErrors(t *testing.T) {
	for name, bad := range map[string]struct{ text, want string }{
		"no test notices it":    {mutationText("TestFirst", "if b > a {", "if false {"), "TestFirst of . does not fail"},
		"it does not compile":   {mutationText("TestLarger", "if b > a {", "if {"), "did not run"},
		"it is outdated":        {mutationText("TestLarger", "if b >= a {", "if false {"), "broken: its text before is in code.go 0 times"},
		"it is ambiguous":       {mutationText("TestLarger", "}", ""), "broken: its text before is in code.go 2 times"},
		"its file is gone":      {strings.Replace(mutationText("TestLarger", "x", ""), "code.go", "gone.go", 1), "gone.go"},
		"its test is gone":      {mutationText("TestGone", "if b > a {", "if false {"), "there is no TestGone"},
		"its test is skipped":   {mutationText("TestSkipped", "if b > a {", "if false {"), "or it is skipped"},
		"its test fails anyway": {mutationText("TestBroken", "if b > a {", "if false {"), "fails without the mutation"},
		"it names no test":      {mutationText("", "if b > a {", ""), "names no test"},
		"it says nothing":       {"file: code.go\ntest: . TestLarger\n-- before --\nx\n-- after --\n", "in words"},
		"it has no file":        {"What.\ntest: . TestLarger\n-- before --\nx\n-- after --\n", `"file: ..."`},
		"it has no test":        {"What.\nfile: code.go\n-- before --\nx\n-- after --\n", `"test: ..."`},
		"it has no before":      {"What.\nfile: code.go\ntest: . TestLarger\n", `"-- before --"`},
		"its before is empty":   {"What.\nfile: code.go\ntest: . TestLarger\n-- before --\n-- after --\n", "text before is empty"},
		"it has no after":       {"What.\nfile: code.go\ntest: . TestLarger\n-- before --\nx\n", `"-- after --"`},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := tryOne(t, bad.text)
			if err == nil || !strings.Contains(out+err.Error(), bad.want) {
				t.Errorf("got %v and %q, want %q", err, out, bad.want)
			}
		})
	}
}

// The mutations of this repository fit its code.
func TestMutationsAreUpToDate(t *testing.T) {
	all, err := readAll("mutations")
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("there are no mutations")
	}
	for _, m := range all {
		if _, err := m.mutated("../.."); err != nil {
			t.Error(err)
		}
	}
}
