package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// buildFlags are those of the Dockerfile, so that a release has one binary for a system,
// whichever way it is had. Plugins that need databases are left out, as in Caddy's own
// releases; the repository's state is, because a build may be done without it.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-tags", "nobadger,nomysql,nopgx"}

// linkerFlags are those of the linker. $VERSION stands for the version.
const linkerFlags = "-w -s -X github.com/caddy-dedup/caddy-dedup.Version=$VERSION"

// compile builds the program for a system.
func (r *release) compile(ctx context.Context, t target, output string) error {
	output, err := filepath.Abs(output)
	if err != nil {
		return err
	}
	args := append([]string{"build"}, buildFlags...)
	args = append(args, "-ldflags", strings.ReplaceAll(linkerFlags, "$VERSION", r.version), "-o", output, "./cmd/caddy-dedup")
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOOS="+t.os, "GOARCH="+t.arch)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	fmt.Fprintf(os.Stderr, "release: build for %s\n", t)
	return cmd.Run()
}

// documents are the files of the repository that each archive has.
var documents = []string{"LICENSE", "README.md", "CHANGELOG.md", "Caddyfile.example", "packaging/systemd/Caddyfile", "packaging/systemd/caddy-dedup.service", "packaging/systemd/caddy-dedup@.service"}

// shells are those that commands are completed in.
var shells = []string{"bash", "zsh", "fish", "powershell"}

// sharedFiles are what is in every archive: the documents, and what the program writes
// about itself.
func (r *release) sharedFiles(ctx context.Context, work string) (all []entry, err error) {
	for _, name := range documents {
		content, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return nil, err
		}
		all = append(all, entry{name, content, false})
	}
	here := target{runtime.GOOS, runtime.GOARCH}
	program := filepath.Join(work, "here", here.binary())
	if err := r.compile(ctx, here, program); err != nil {
		return nil, err
	}
	said := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.made.Unix()))
		cmd.Stderr = os.Stderr
		return cmd.Output()
	}
	for _, shell := range shells {
		script, err := said("completion", shell)
		if err != nil {
			return nil, err
		}
		all = append(all, entry{"completions/caddy-dedup." + shell, script, false})
	}
	pages := filepath.Join(work, "man")
	if _, err := said("manpage", "--directory", pages); err != nil {
		return nil, err
	}
	found, err := os.ReadDir(pages)
	if err != nil {
		return nil, err
	}
	for _, page := range found {
		content, err := os.ReadFile(filepath.Join(pages, page.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, entry{"man/" + page.Name(), content, false})
	}
	return all, nil
}
