// Command release builds what a release has: an archive for each system, what each was
// made of, and the checksums of all.
//
//	go -C tools run ./release -version v0.1.0 [-output ../dist/release] [-targets linux/amd64,darwin/arm64]
//
// The same commit gives the same files, byte by byte. Their time is that of
// SOURCE_DATE_EPOCH, or else of the commit.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// allTargets are the systems that a release is for.
const allTargets = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64,windows/arm64"

func main() {
	var r release
	targets := ""
	flag.StringVar(&r.root, "root", "..", "the project's root")
	flag.StringVar(&r.version, "version", "", "the version, such as v0.1.0")
	flag.StringVar(&r.output, "output", "../dist/release", "the directory to write to; it must be empty, or not there yet")
	flag.StringVar(&targets, "targets", allTargets, "the systems to build for")
	notes := flag.Bool("notes", false, "only print what CHANGELOG.md says of the version")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := r.run(ctx, targets, *notes, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release is what is to be built.
type release struct {
	root, version, output string
	targets               []target
	made                  time.Time // the time of all files
}

// target is a system that Go builds for.
type target struct{ os, arch string }

func (t target) String() string { return t.os + "/" + t.arch }

// binary is the name of the program there.
func (t target) binary() string {
	if t.os == "windows" {
		return "caddy-dedup.exe"
	}
	return "caddy-dedup"
}

// versionForm is that of semantic versions, as Go's modules have them.
var versionForm = regexp.MustCompile(`^v\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?$`)

func (r *release) run(ctx context.Context, targets string, notes bool, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; there are only flags", rest[0])
	}
	if !versionForm.MatchString(r.version) {
		return fmt.Errorf("-version %q is not a version; write one such as v0.1.0", r.version)
	}
	if notes {
		return r.printNotes()
	}
	for _, text := range strings.Split(targets, ",") {
		system, arch, ok := strings.Cut(text, "/")
		if !ok || system == "" || arch == "" {
			return fmt.Errorf("-targets %q: %q is not a system; write one such as linux/amd64", targets, text)
		}
		r.targets = append(r.targets, target{system, arch})
	}
	var err error
	if r.made, err = r.time(ctx); err != nil {
		return err
	}
	if there, err := os.ReadDir(r.output); err == nil && len(there) > 0 {
		return fmt.Errorf("-output %s is not empty: it has %s", r.output, there[0].Name())
	}
	if err := os.MkdirAll(r.output, 0o755); err != nil {
		return err
	}
	return r.make(ctx)
}

// time is that of the release's files.
func (r *release) time(ctx context.Context) (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		cmd := exec.CommandContext(ctx, "git", "log", "-1", "--format=%ct")
		cmd.Dir = r.root
		out, err := cmd.Output()
		if err != nil {
			return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is not set, and git does not know the commit's time: %w", err)
		}
		text = strings.TrimSpace(string(out))
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// make builds and packs all of it.
func (r *release) make(ctx context.Context) error {
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	shared, err := r.sharedFiles(ctx, work)
	if err != nil {
		return err
	}
	for _, t := range r.targets {
		binary := filepath.Join(work, t.os+"_"+t.arch, t.binary())
		if err := r.compile(ctx, t, binary); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
		if err := r.pack(t, binary, shared); err != nil {
			return fmt.Errorf("%s: %w", t, err)
		}
	}
	return writeChecksums(r.output)
}

// pack writes the archive of a binary, and what the binary is made of.
func (r *release) pack(t target, binary string, shared []entry) error {
	name := fmt.Sprintf("caddy-dedup_%s_%s_%s", strings.TrimPrefix(r.version, "v"), t.os, t.arch)
	content, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	entries := append([]entry{{t.binary(), content, true}}, shared...)
	if err := writeArchive(filepath.Join(r.output, name), t.os == "windows", name, entries, r.made); err != nil {
		return err
	}
	return writeParts(filepath.Join(r.output, name+".cdx.json"), binary, r.version, r.made)
}

// printNotes prints the section of the changelog.
func (r *release) printNotes() error {
	text, err := os.ReadFile(filepath.Join(r.root, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	notes, err := notesOf(string(text), r.version)
	if err != nil {
		return err
	}
	fmt.Println(notes)
	return nil
}

// notesOf is what a changelog says of a version.
func notesOf(changelog, version string) (string, error) {
	_, rest, found := strings.Cut(changelog, "\n## ["+strings.TrimPrefix(version, "v")+"]")
	if !found {
		return "", fmt.Errorf("CHANGELOG.md has no section %s", strings.TrimPrefix(version, "v"))
	}
	_, rest, _ = strings.Cut(rest, "\n")
	notes, _, _ := strings.Cut(rest, "\n## [")
	notes, _, _ = strings.Cut(notes, "\n[") // the links at the end
	if notes = strings.TrimSpace(notes); notes == "" {
		return "", errors.New("CHANGELOG.md says nothing of " + version)
	}
	return notes, nil
}
