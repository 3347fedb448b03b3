package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// The example that the README starts with works as it says.
func TestExampleCaddyfile(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	api, upstream, admin := strconv.Itoa(freeport.Of(t)), strconv.Itoa(freeport.Of(t)), strconv.Itoa(freeport.Of(t))
	// Only its ports are taken elsewhere, for other tests run beside this one.
	caddyfile := strings.NewReplacer("8080", api, "8081", upstream, "2019", admin).Replace(string(text))
	dir := shortTempDir(t)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, dir, "run", "--config", file)
	p.addr = "127.0.0.1:" + api
	p.awaitLog(t, "serving initial configuration", func(e entry) bool { return e.text("msg") == "serving initial configuration" })

	if warnings := p.log.find(func(e entry) bool { return e.text("level") != "info" }); len(warnings) != 0 {
		t.Errorf("the start warns: %v", warnings)
	}

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

	if failed := p.post(t, "/payments", "order-3", "amount=10", header("Fail", "503")); failed.Status != 503 {
		t.Errorf("a payment that fails got %d", failed.Status)
	}
	if again := p.post(t, "/payments", "order-3", "amount=10"); again.Status != 201 || again.replayed() {
		t.Errorf("the next one with its key got %d, replayed: %v", again.Status, again.replayed())
	}
	github := header("X-GitHub-Delivery", "delivery-1")
	delivery := p.post(t, "/webhooks/github", "", "{}", github)
	wantReplay(t, p.post(t, "/webhooks/github", "", "{}", github), delivery)

	list, code := command(t, dir, "keys", "list", "--address", "localhost:"+admin)
	for _, id := range []string{"order-1", "order-2", "order-3", "delivery-1"} {
		if code != 0 || !strings.Contains(list, id) {
			t.Errorf("keys list ends with %d, without %s:\n%s", code, id, list)
		}
	}
}

// Its lines that are comments run as soon as they are none.
func TestExampleCaddyfileUncommented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	redis := redistest.Start(t)
	api, upstream, admin := strconv.Itoa(freeport.Of(t)), strconv.Itoa(freeport.Of(t)), strconv.Itoa(freeport.Of(t))
	caddyfile := strings.NewReplacer("8080", api, "8081", upstream, "2019", admin, "localhost:6379", redis.Addr,
		"\t\tstore file\n", "", "\t\t#store", "\t\tstore", "\t\t#\tprefix", "\t\t\tprefix", "\t\t#}", "\t\t}", "\t#on_missing", "\ton_missing").Replace(string(text))
	dir := shortTempDir(t)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(caddyfile), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, dir, "run", "--config", file)
	p.addr = "127.0.0.1:" + api
	p.awaitLog(t, "serving initial configuration", func(e entry) bool { return e.text("msg") == "serving initial configuration" })
	first := p.post(t, "/payments", "order-1", "amount=10")
	wantReplay(t, p.post(t, "/payments", "order-1", "amount=10"), first)
	wantProblem(t, p.post(t, "/payments", "", "amount=10"), 400, "idempotency_key_missing")
	if keys, _ := redis.Do("KEYS", "shop:dedup:*").([]any); len(keys) == 0 {
		t.Error("no key of Redis has the prefix")
	}
}
