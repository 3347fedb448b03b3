// Command mutate breaks the code in known ways, one at a time, and expects a test
// to fail each time. A promise whose code can be broken without a failing test is
// tested by nothing.
//
//	go -C tools run ./mutate [-root ..] [-run regexp] [-v]
//
// The files of mutate/mutations say what is broken and which tests have to notice
// (mutation.go says how). All is done in a temporary copy of the tree, with what
// is not committed yet; the checkout stays as it is. First the named tests have to
// pass in the copy as it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	var o options
	flag.StringVar(&o.root, "root", "..", "the tree to be tried")
	flag.StringVar(&o.mutations, "mutations", "mutate/mutations", "the directory of the mutations")
	run := flag.String("run", "", "try only the mutations whose names match")
	flag.BoolVar(&o.verbose, "v", false, "show how each test has failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if o.run, err = regexp.Compile(*run); err == nil {
		err = mutate(ctx, os.Stdout, o)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
		stop()
		os.Exit(1) //nolint:gocritic // stop is called above
	}
}

type options struct {
	root, mutations string
	run             *regexp.Regexp
	verbose         bool
}

// mutate tries the mutations, and returns an error that names each one that no
// test has noticed or that could not be tried.
func mutate(ctx context.Context, out io.Writer, o options) error {
	all, err := readAll(o.mutations)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(m *mutation) bool { return !o.run.MatchString(m.name) })
	if len(all) == 0 {
		return fmt.Errorf("no mutation in %s matches %q", o.mutations, o.run)
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return err
	}
	// What does not fit any more is said before anything takes time.
	var wrong []error
	for _, m := range all {
		_, err := m.mutated(root)
		wrong = append(wrong, err)
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	tree, err := copyTree(ctx, root)
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tree) }() // the system clears what stays
	if err := mustPass(ctx, out, tree, all); err != nil {
		return err
	}
	var unnoticed []string
	for _, m := range all {
		begun := time.Now()
		err := try(ctx, out, tree, m, o.verbose)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		took := time.Since(begun).Round(time.Second)
		if err != nil {
			fmt.Fprintf(out, "NOT NOTICED %s (%s): %v\n", m.name, took, err)
			unnoticed = append(unnoticed, m.name)
			continue
		}
		fmt.Fprintf(out, "noticed     %s (%s)\n", m.name, took)
	}
	if len(unnoticed) > 0 {
		return fmt.Errorf("not noticed: %s", strings.Join(unnoticed, ", "))
	}
	return nil
}

// mustPass runs each named test on the tree as it is: a test that fails anyway, or
// that is not there, notices nothing.
func mustPass(ctx context.Context, out io.Writer, tree string, all []*mutation) error {
	tried := map[namedTest]bool{}
	for _, m := range all {
		for _, test := range m.tests {
			if tried[test] {
				continue
			}
			tried[test] = true
			got, err := runTest(ctx, tree, test)
			switch {
			case err != nil:
				return fmt.Errorf("%s: %w", m.name, err)
			case got.failed:
				return fmt.Errorf("%s: %s fails without the mutation:\n%s", m.name, test, got.output)
			case !got.passed:
				return fmt.Errorf("%s: there is no %s, or it is skipped:\n%s", m.name, test, got.output)
			}
		}
	}
	fmt.Fprintf(out, "%d tests pass without a mutation\n", len(tried))
	return nil
}

// try applies a mutation to the tree, runs its tests, and takes it back.
func try(ctx context.Context, out io.Writer, tree string, m *mutation, verbose bool) (err error) {
	mutated, err := m.mutated(tree)
	if err != nil {
		return err
	}
	path := filepath.Join(tree, filepath.FromSlash(m.file))
	original, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, mutated, 0o600); err != nil {
		return err
	}
	defer func() {
		if back := os.WriteFile(path, original, 0o600); err == nil {
			err = back
		}
	}()
	for _, test := range m.tests {
		got, err := runTest(ctx, tree, test)
		if err != nil {
			return err
		}
		if !got.failed {
			return fmt.Errorf("%s does not fail", test)
		}
		if verbose {
			fmt.Fprintf(out, "%s: %s\n%s\n", m.name, test, got.output)
		}
	}
	return nil
}
