// Package browser tries the page for operators in a real browser, as the built binary
// serves it. It is a module of its own: the browser's driver is no requirement of the
// product, and nothing of the product is imported.
//
// DEDUP_BINARY names a binary to try instead of building one. DEDUP_BROWSER=1 makes a
// missing browser a failure.
package browser

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// patience bounds every wait for something that must happen. It says nothing of how fast
// that should be.
const patience = 60 * time.Second

// binary returns the path of the program under test, built once.
var binary = sync.OnceValues(func() (string, error) {
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

// built is the directory of what the tests build.
var built, errBuilt = os.MkdirTemp("", "dedup-browser")

func TestMain(m *testing.M) {
	status := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(status)
}

// serve runs the binary before an upstream, with the page under /ops/, and returns its
// address once it answers.
func serve(t *testing.T, upstream string) string {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0") // closed: no server listens there
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	dir, addr := t.TempDir(), free.Addr().String()
	_, port, _ := net.SplitHostPort(addr)
	file := filepath.Join(dir, "Caddyfile")
	config := strings.NewReplacer("PORT", port, "UPSTREAM", upstream).Replace(`{
	admin off
	default_bind 127.0.0.1
	auto_https off
	persist_config off
	dedup {
		namespace payments
		store memory
	}
}
http://hooks.example.com:PORT, http://127.0.0.1:PORT {
	handle_path /ops/* {
		dedup_dashboard title production
	}
	handle /orders {
		dedup {
			release_on off
		}
		reverse_proxy UPSTREAM
	}
	handle {
		dedup github {
			on_unknown hold
		}
		reverse_proxy UPSTREAM
	}
}
`)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(program, "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &log, &log, patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); t.Failed() {
			t.Logf("the process printed:\n%s", log.String())
		}
	})
	eventually(t, "the page is served", func() error {
		got, err := http.Get("http://" + addr + "/ops/?file=page.css")
		if err != nil {
			return err
		}
		defer got.Body.Close()
		if got.StatusCode != http.StatusOK {
			return fmt.Errorf("got %s", got.Status)
		}
		return nil
	})
	return addr
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
