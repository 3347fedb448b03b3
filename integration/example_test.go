package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/k8s"
)

// The example that the README starts with works as it says.
func TestExampleCaddyfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	api, upstream := strconv.Itoa(freePort(t)), strconv.Itoa(freePort(t))
	// Only its ports are taken elsewhere, for other tests run beside this one.
	caddyfile := strings.NewReplacer("8080", api, "8081", upstream).Replace(string(text))
	dir := shortTempDir(t)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, dir, "run", "--config", file)
	p.addr = "127.0.0.1:" + api
	p.awaitLog(t, "serving initial configuration", func(e entry) bool { return e.text("msg") == "serving initial configuration" })

	first := p.post(t, "/payments", "order-1", "amount=10")
	if first.Status != 201 || !strings.HasPrefix(first.Body, "payment ") || first.replayed() {
		t.Fatalf("got %d %q, want a fresh payment", first.Status, first.Body)
	}
	wantReplay(t, p.post(t, "/payments", "order-1", "amount=10"), first)
	other := p.post(t, "/payments", "order-2", "amount=10")
	if other.Status != 201 || other.Body == first.Body || other.replayed() {
		t.Errorf("another key got %d %q, want another payment", other.Status, other.Body)
	}
	wantProblem(t, p.post(t, "/payments", "order-1", "amount=11"), 422, "idempotency_key_reused")
}

// The sidecar's configuration is valid with the environment that its pod gives
// it, and not without.
func TestSidecarCaddyfile(t *testing.T) {
	t.Parallel()
	text, err := k8s.Caddyfile()
	if err != nil {
		t.Fatal(err)
	}
	dir := shortTempDir(t)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, valid := range map[string]bool{"redis://redis:6379": true, "": false} {
		cmd := exec.CommandContext(t.Context(), binary, "validate", "--config", file)
		cmd.Env = append(homeEnv(dir), "REDIS_URL="+url)
		if output, err := cmd.CombinedOutput(); (err == nil) != valid {
			t.Errorf("with REDIS_URL=%q: %v\n%s", url, err, output)
		}
	}
}
