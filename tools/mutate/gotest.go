package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// outcome is how a test went.
type outcome struct {
	// passed and failed say whether the named test did. Neither is so where there
	// is no such test, or where it is skipped.
	passed, failed bool
	output         string
}

// event is a line of go test -json.
type event struct{ Action, Test, Output string }

// runTest runs one test. An error says that it could not be run: the package does
// not compile, for example.
func runTest(ctx context.Context, tree string, test namedTest) (outcome, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-timeout=2m", "-run", test.pattern(), test.pkg)
	cmd.Dir = tree
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // go passes it on
	cmd.WaitDelay = time.Minute
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return outcome{}, err
	}
	var got outcome
	var output strings.Builder
	for line := range bytes.Lines(stdout.Bytes()) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			output.Write(line) // go says something else than what a test did
			continue
		}
		output.WriteString(e.Output)
		if e.Test == test.run {
			got.passed = got.passed || e.Action == "pass"
			got.failed = got.failed || e.Action == "fail"
		}
	}
	got.output = output.String() + stderr.String()
	if err != nil && !got.failed {
		return got, fmt.Errorf("%s did not run, or ended without a verdict:\n%s", test, got.output)
	}
	return got, nil
}

// copyTree copies what git knows or would add, as it is now, to a new directory.
func copyTree(ctx context.Context, root string) (tree string, err error) {
	cmd := exec.CommandContext(ctx, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	names, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git ls-files in %s: %w", root, err)
	}
	tree, err = os.MkdirTemp("", "mutate-")
	if err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			_ = os.RemoveAll(tree) // the first error is the one to report
		}
	}()
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names), "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(tree, name)); err != nil {
			return "", err
		}
	}
	return tree, nil
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil // deleted, and not committed yet
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file", from)
	}
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	return os.WriteFile(to, content, info.Mode().Perm())
}
