// Command build builds Caddy with this project's module in it, as xcaddy.json
// says. The file has the schema of xcaddy.Builder, so that the build is written
// down in one place for every program that uses that package.
//
//	go -C tools run ./build [-with module[@version][=path]]... [-version v0.1.0]
//
// It runs from any directory. Paths are relative to the folder of the file, but for
// those of -config and -output.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
)

func main() {
	var b request
	flag.StringVar(&b.config, "config", "../xcaddy.json", "the build's description, in the schema of xcaddy.Builder")
	flag.StringVar(&b.output, "output", "", "the binary to write (default dist/caddy beside the description)")
	flag.StringVar(&b.version, "version", "", "what `caddy-dedup version` says of a build from a folder, such as v0.1.0")
	flag.Func("with", "one more plugin, as `module[@version][=path]`; may be repeated", func(text string) error {
		b.with = append(b.with, text)
		return nil
	})
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := b.build(ctx, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

// request is what is to be built.
type request struct {
	config, output, version string
	with                    []string
}

func (b request) build(ctx context.Context, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected argument %q; there are only flags", rest[0])
	}
	builder, err := read(b.config)
	if err != nil {
		return err
	}
	for _, text := range b.with {
		if err := add(&builder, filepath.Dir(b.config), text); err != nil {
			return err
		}
	}
	if b.version != "" {
		if builder.BuildFlags, err = stamped(builder.BuildFlags, b.version); err != nil {
			return err
		}
	}
	if b.output == "" {
		b.output = filepath.Join(filepath.Dir(b.config), "dist", "caddy")
	}
	if err := os.MkdirAll(filepath.Dir(b.output), 0o755); err != nil {
		return err
	}
	return builder.Build(ctx, b.output)
}
