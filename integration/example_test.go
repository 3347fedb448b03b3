package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
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
