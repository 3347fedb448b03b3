// Package integration tries the built binary, as a user would run it, before a
// real upstream and on real stores. It imports none of the product's code: what
// it holds is what users, their configuration and their clients depend on.
//
// DEDUP_BINARY names a binary to try instead of building one. The Redis tests
// use the redis-server in PATH; see redis_test.go for what happens without one.
package integration

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
)

// binary is the path of the program under test.
var binary string

var update = flag.Bool("update", false, "write what the commands of the guides and the recipes print into their pages")

const patience = deduptest.Patience

var (
	eventually   = deduptest.Eventually
	shortTempDir = deduptest.TempDir
)

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	flag.Parse()
	raiseParallelism()
	if binary = os.Getenv("DEDUP_BINARY"); binary != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "dedup-binary")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "caddy-dedup")
	build := exec.Command("go", "build", "-o", binary, "../cmd/caddy-dedup")
	build.Stdout, build.Stderr = os.Stdout, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "building cmd/caddy-dedup:", err)
		return 1
	}
	return m.Run()
}

// raiseParallelism lets more tests run at once than there are cores: most of
// them wait for a lease to lapse. A number given on the command line stands.
func raiseParallelism() {
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "8") // the flag exists and takes numbers
	}
}
