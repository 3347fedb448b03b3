// Package servers has what stands on the stage of the benchmark: the upstream, the proxies
// in front of it, and their stores. All of them listen on loopback, on free ports, and
// have directories of their own.
package servers

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/process"
)

// startPatience is how long a server may take until it serves.
const startPatience = 30 * time.Second

// Stage is where the servers of a run are started.
type Stage struct {
	set *process.Set
	ctx context.Context
	// dir is the run's own directory, which is removed at its end.
	dir string
	// project is the directory of caddy-dedup's source.
	project string
	// binary is caddy-dedup, built from it.
	binary string
	made   atomic.Int64
}

// NewStage returns a stage without servers. The directory must be the run's own.
func NewStage(ctx context.Context, set *process.Set, dir, project string) *Stage {
	return &Stage{set: set, ctx: ctx, dir: dir, project: project, binary: filepath.Join(dir, "caddy-dedup")}
}

// build builds a program of the module in a directory, as xcaddy and the releases do:
// without C, for which pebble has a larger compressor.
func (s *Stage) build(output, module, pkg string) error {
	command := exec.CommandContext(s.ctx, "go", "build", "-C", module, "-o", output, pkg)
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := command.CombinedOutput(); err != nil {
		if s.ctx.Err() != nil {
			return context.Cause(s.ctx)
		}
		return fmt.Errorf("go build %s in %s: %w\n%s", pkg, module, err, said)
	}
	return nil
}

// BuildProduct builds caddy-dedup, which the proxies of the stage are from then on.
func (s *Stage) BuildProduct() error { return s.build(s.binary, s.project, "./cmd/caddy-dedup") }

// BuildOther builds caddy-dedup from another directory, for [Site.Other].
func (s *Stage) BuildOther(project string) error {
	return s.build(s.other(), project, "./cmd/caddy-dedup")
}

func (s *Stage) other() string { return filepath.Join(s.dir, "other") }

// buildBare builds the handler in the directory bare, if it is not there yet. It must have
// the same libraries as caddy-dedup, or it would be compared with something else.
func (s *Stage) buildBare() (binary string, err error) {
	binary = filepath.Join(s.dir, "bare")
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	}
	module := filepath.Join(s.project, "bench", "bare")
	for _, library := range []string{"github.com/caddyserver/caddy/v2", "github.com/redis/go-redis/v9"} {
		var versions [2]string
		for i, dir := range []string{module, s.project} {
			if versions[i], err = Output(s.ctx, "go", "-C", dir, "list", "-m", "-f", "{{.Version}}", library); err != nil {
				return "", err
			}
		}
		if versions[0] != versions[1] {
			return "", fmt.Errorf("bench/bare has %s %s, and caddy-dedup has %s; they must be the same", library, versions[0], versions[1])
		}
	}
	return binary, s.build(binary, module, ".")
}

// Dir makes a new directory for one server.
func (s *Stage) Dir() (string, error) {
	dir := filepath.Join(s.dir, fmt.Sprint("d", s.made.Add(1)))
	return dir, os.Mkdir(dir, 0o700)
}

// Remove removes a directory of the stage, to give room on the disk back.
func (s *Stage) Remove(dir string) error { return os.RemoveAll(dir) }

// Output runs a program and returns what it prints, in one line.
func Output(ctx context.Context, program string, arguments ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, arguments...).Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", program, strings.Join(arguments, " "), err)
	}
	return strings.Join(strings.Fields(string(out)), " "), nil
}

// freeAddr returns an address of the loopback interface on which nobody listens now.
func freeAddr() (string, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer listener.Close()
	return listener.Addr().String(), nil
}

// DiskUse returns how many bytes of the disk the files of a directory take.
func DiskUse(dir string) (size int64) {
	// What a store removes meanwhile takes no room, and is passed over.
	_ = filepath.WalkDir(dir, func(_ string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			if info, err := entry.Info(); err == nil {
				size += blocksOf(info)
			}
		}
		return nil
	})
	return size
}
