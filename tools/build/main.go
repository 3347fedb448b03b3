// Command build builds Caddy with this project's module in it, as xcaddy.json
// says. The file has the schema of xcaddy.Builder, so that the build is written
// down in one place for every program that uses that package.
//
//	go -C tools run ./build [-config ../xcaddy.json] [-output ../dist/caddy]
//
// Replacements that are relative paths start at the file's own folder.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/caddyserver/xcaddy"
)

func main() {
	config := flag.String("config", "../xcaddy.json", "the build's description, in the schema of xcaddy.Builder")
	output := flag.String("output", "../dist/caddy", "the binary to write")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := build(ctx, *config, *output, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func build(ctx context.Context, config, output string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; there are only flags", rest[0])
	}
	builder, err := read(config)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	return builder.Build(ctx, output)
}

// read returns the build that a file describes.
func read(path string) (xcaddy.Builder, error) {
	var builder xcaddy.Builder
	content, err := os.ReadFile(path)
	if err != nil {
		return builder, err
	}
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&builder); err != nil {
		return builder, fmt.Errorf("%s: %w", path, err)
	}
	if builder.CaddyVersion == "" || len(builder.Plugins) == 0 {
		return builder, errors.New(path + ": it must name a caddy_version and at least one of plugins")
	}
	folder, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return builder, err
	}
	for i, r := range builder.Replacements {
		// The build runs in a folder of its own, where a relative path would lead
		// nowhere.
		if to := r.New.String(); to == "." || to == ".." || strings.HasPrefix(to, "./") || strings.HasPrefix(to, "../") {
			builder.Replacements[i].New = xcaddy.ReplacementPath(filepath.Join(folder, filepath.FromSlash(to)))
		}
	}
	return builder, nil
}
