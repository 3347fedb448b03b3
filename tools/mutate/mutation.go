package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// mutation is one way to break the code. Its file is named after it, and reads:
//
//	What is broken, in words, over as many lines as that takes.
//	file: internal/store/redis/settle.lua
//	test: ./internal/store/redis TestConformanceRedis/a_late_owner_is_fenced
//	-- before --
//	if owner ~= ARGV[1] then
//	-- after --
//	if false then
//
// The text before is whole lines; how they are indented and aligned does not count.
// It occurs once in the file. The text after may be empty. With several tests, each has to fail. A
// test's name is what -run takes, without ^ and $.
type mutation struct {
	name, what string
	file       string
	tests      []namedTest
	before     []string
	after      string
}

// namedTest is a test and its package.
type namedTest struct{ pkg, run string }

func (t namedTest) String() string { return t.run + " of " + t.pkg }

// pattern returns what -run needs to find this test alone.
func (t namedTest) pattern() string {
	parts := strings.Split(t.run, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	return strings.Join(parts, "/")
}

const suffix = ".txt"

// readAll returns the mutations of a directory, by name.
func readAll(dir string) ([]*mutation, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil {
		return nil, err
	}
	var all []*mutation
	var wrong []error
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(filepath.Base(path), suffix), string(text))
		if err != nil {
			wrong = append(wrong, err)
		}
		all = append(all, m)
	}
	return all, errors.Join(wrong...)
}

// parse reads the file of a mutation.
func parse(name, text string) (*mutation, error) {
	m := &mutation{name: name}
	head, rest, ok := strings.Cut(text, "-- before --\n")
	if !ok {
		return m, fmt.Errorf("%s: it has no line \"-- before --\"", name)
	}
	before, after, ok := strings.Cut(rest, "-- after --\n")
	if !ok {
		return m, fmt.Errorf("%s: it has no line \"-- after --\"", name)
	}
	m.before, m.after = plainLines(before), after
	for line := range strings.Lines(head) {
		line = strings.TrimSpace(line)
		if file, is := strings.CutPrefix(line, "file: "); is {
			m.file = file
		} else if test, is := strings.CutPrefix(line, "test: "); is {
			pkg, run, _ := strings.Cut(test, " ")
			m.tests = append(m.tests, namedTest{pkg, run})
			if run == "" {
				return m, fmt.Errorf("%s: the line %q names no test; want a package and a test", name, line)
			}
		} else {
			m.what = strings.TrimSpace(m.what + " " + line)
		}
	}
	switch {
	case m.what == "":
		return m, fmt.Errorf("%s: it does not say in words what is broken", name)
	case m.file == "":
		return m, fmt.Errorf("%s: it has no line \"file: ...\"", name)
	case len(m.tests) == 0:
		return m, fmt.Errorf("%s: it has no line \"test: ...\"", name)
	case len(m.before) == 0:
		return m, fmt.Errorf("%s: its text before is empty", name)
	}
	return m, nil
}

// plainLines returns the lines of a text, each plain.
func plainLines(text string) []string {
	var lines []string
	for line := range strings.Lines(text) {
		lines = append(lines, plain(line))
	}
	return lines
}

// plain returns a line without its indentation and alignment.
func plain(line string) string { return strings.Join(strings.Fields(line), " ") }

// mutated returns the mutation's file in a tree, broken.
func (m *mutation) mutated(tree string) ([]byte, error) {
	content, err := os.ReadFile(filepath.Join(tree, filepath.FromSlash(m.file)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", m.name, err)
	}
	lines := bytes.SplitAfter(content, []byte("\n"))
	at, found := 0, 0
	for i := range lines {
		if m.isAt(lines[i:]) {
			at = i
			found++
		}
	}
	if found != 1 {
		return nil, fmt.Errorf("%s: its text before is in %s %d times, want once: what it breaks has changed, so bring it up to date", m.name, m.file, found)
	}
	var broken bytes.Buffer
	broken.Write(bytes.Join(lines[:at], nil))
	broken.WriteString(m.after)
	broken.Write(bytes.Join(lines[at+len(m.before):], nil))
	return broken.Bytes(), nil
}

// isAt reports whether lines begin with the text before.
func (m *mutation) isAt(lines [][]byte) bool {
	if len(lines) < len(m.before) {
		return false
	}
	for i, want := range m.before {
		if plain(string(lines[i])) != want {
			return false
		}
	}
	return true
}
