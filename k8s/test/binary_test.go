package test

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for something that must happen. It says nothing of how fast
// that should be.
const patience = 60 * time.Second

// built is the directory of what the tests build.
var built, errBuilt = os.MkdirTemp("", "dedup-k8s")

func TestMain(m *testing.M) {
	status := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(status)
}

// buildBinary returns the path of the program under test, built once.
var buildBinary = sync.OnceValues(func() (string, error) {
	if given := os.Getenv("DEDUP_BINARY"); given != "" {
		return given, nil
	}
	if errBuilt != nil {
		return "", errBuilt
	}
	path := filepath.Join(built, "caddy-dedup")
	build := exec.Command("go", "build", "-o", path, "./cmd/caddy-dedup")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building cmd/caddy-dedup: %w\n%s", err, out)
	}
	return path, nil
})

// command returns the program with arguments, and with an environment that has a home and
// what is given, and nothing else: as in a container.
func command(t *testing.T, environment []string, arguments ...string) *exec.Cmd {
	t.Helper()
	program, err := buildBinary()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), program, arguments...)
	cmd.Env = append([]string{"HOME=" + home, "XDG_DATA_HOME=" + home, "XDG_CONFIG_HOME=" + home}, environment...)
	return cmd
}

// serve runs the program until the test ends.
func serve(t *testing.T, environment []string, arguments ...string) {
	t.Helper()
	cmd, out := command(t, environment, arguments...), new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); t.Failed() {
			t.Logf("%q:\n%s", arguments, out)
		}
	})
}

// freePort is one that nothing listens on now.
func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// eventually asks until there is no error; the test fails if that never is.
func eventually(t *testing.T, what string, ask func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still not so after %s: %s: %v", patience, what, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
