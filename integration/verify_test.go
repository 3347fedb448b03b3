package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// signedDelivery is a delivery of GitHub, signed with a secret.
func signedDelivery(id, secret, body string) []option {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(body))
	return []option{header("X-GitHub-Delivery", id), header("X-Hub-Signature-256", "sha256="+hex.EncodeToString(mac.Sum(nil)))}
}

// secretFile writes a secret, as an editor would, and returns its placeholder.
func secretFile(t *testing.T, file, secret string) string {
	t.Helper()
	if err := os.WriteFile(file, []byte(secret+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return "{file." + file + "}"
}

// Whoever has not the secret costs no operation of the store, whatever the method and the protocol,
// and does not get the response of a genuine delivery.
func TestForgedDeliveriesCostNoStoreOperation(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	secret := secretFile(t, filepath.Join(t.TempDir(), "secret"), "genuine")
	p := start(t, conf{
		store: storeAt(server.Addr), dedup: "local_copies off", global: h2c,
		site: lines("dedup github {", "verify "+secret, "max_request_body 1KiB", "}", proxyTo(up)),
	})
	const body = `{"action": "opened"}`
	first := p.post(t, "/", "", body, signedDelivery("d", "genuine", body)...)
	wantFresh(t, first, 201, "run 1 of d")
	m := startMonitor(t, server)
	grpc := func(r *http.Request) { r.Header.Set("Content-Type", "application/grpc") }
	for name, request := range map[string]*http.Request{
		"a forged duplicate":  p.newPost("/", "", body, signedDelivery("d", "forged", body)...),
		"another body":        p.newPost("/", "", body+" ", signedDelivery("d", "genuine", body)...),
		"a new delivery":      p.newPost("/", "", body, signedDelivery("e", "forged", body)...),
		"an unsigned one":     p.newPost("/", "", body, header("X-GitHub-Delivery", "d")),
		"an idempotency key":  p.newPost("/", "k", body),
		"GET":                 p.newPost("/", "", "", method("GET")),
		"PUT":                 p.newPost("/", "", body, method("PUT")),
		"gRPC":                p.newPost("/", "", body, grpc),
		"an offer to upgrade": p.newPost("/", "", "", method("GET"), header("Connection", "Upgrade"), header("Upgrade", "websocket")),
	} {
		client := oneShot
		if name == "gRPC" {
			client = unencryptedHTTP2()
		}
		got, err := try(client, request)
		if err != nil || got.Status != 401 || !strings.Contains(got.Body, `"code":"signature_invalid"`) {
			t.Errorf("%s: got %d %s %v", name, got.Status, got.Body, err)
		}
	}
	padded := body + strings.Repeat(" ", 2<<10)
	if got := p.post(t, "/", "", padded, signedDelivery("f", "genuine", padded)...); got.Status != 413 {
		t.Errorf("a body over max_request_body: got %d %s", got.Status, got.Body)
	}
	if commands := m.since(t); len(commands) > 0 {
		t.Errorf("forged requests cost the commands %v", commands)
	}
	wantReplay(t, p.post(t, "/", "", body, signedDelivery("d", "genuine", body)...), first)
	if all := up.all(); len(all) != 1 {
		t.Errorf("the upstream got %d requests, want 1", len(all))
	}
	if log := p.log.String(); strings.Contains(log, "genuine") || !strings.Contains(log, `"code":"signature_invalid"`) {
		t.Errorf("the log has the secret, or no line about a forged request:\n%s", log)
	}
}

// A secret is replaced without a delivery lost: the next one beside it, a reload, then the next alone.
// A secret that cannot be read fails the reload, and the old one stays.
func TestSecretsAreRotatedByReloads(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir := t.TempDir()
	one, two := secretFile(t, filepath.Join(dir, "one"), "one"), secretFile(t, filepath.Join(dir, "two"), "two")
	site := func(secrets string) string {
		return lines("dedup github {", "verify github "+secrets, "}", proxyTo(up))
	}
	p := start(t, conf{store: "store memory", site: site(one)})
	n := 0
	want := func(when string, statuses map[string]int) {
		t.Helper()
		for secret, status := range statuses {
			n++
			if got := p.post(t, "/", "", "{}", signedDelivery(fmt.Sprint(n), secret, "{}")...); got.Status != status {
				t.Errorf("%s: a delivery signed with %s got %d, want %d", when, secret, got.Status, status)
			}
		}
	}
	want("at first", map[string]int{"one": 201, "two": 401})
	p.reload(t, site(one+" "+two))
	want("with both", map[string]int{"one": 201, "two": 201})
	secretFile(t, filepath.Join(dir, "one"), "")
	broken := p.conf
	broken.site = site(one)
	if status, answer := p.askAdmin(t, "POST", "/load", "text/caddyfile", broken.caddyfile(p.conf.dir, p.conf.port)); status == 200 || !strings.Contains(answer, "is empty") {
		t.Errorf("an empty secret was loaded: %d %s", status, answer)
	}
	want("after a reload that failed", map[string]int{"one": 201, "two": 201})
	p.reload(t, site(two))
	want("with the next alone", map[string]int{"one": 401, "two": 201})
}

func TestProxyCommandVerifies(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	secret := secretFile(t, filepath.Join(t.TempDir(), "secret"), "genuine")
	p := startProxyCommand(t, up, "--provider", "github", "--path", "/hooks/*", "--verify", "github="+secret)
	wantFresh(t, p.post(t, "/hooks/a", "", "{}", signedDelivery("d", "genuine", "{}")...), 201, "run 1 of d")
	if got := p.post(t, "/hooks/a", "", "{}", signedDelivery("d", "forged", "{}")...); got.Status != 401 {
		t.Errorf("a forged delivery got %d", got.Status)
	}
	if got := p.post(t, "/other", "", "{}"); got.Status != 201 {
		t.Errorf("a request for another path got %d", got.Status)
	}
}

// docs/security.md says what an attacker with a captured delivery can do: GitHub signs the body but not the delivery
// ID, so the delivery runs again under another ID, unless the key is made of the body. A path outside the matcher is
// not verified.
func TestWhoHasCapturedADelivery(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	secret := secretFile(t, filepath.Join(t.TempDir(), "secret"), "s3cret")
	p := start(t, conf{store: "store memory", site: lines(
		"dedup /id/* github {", "verify "+secret, "}",
		"dedup /body/* {", "mode webhook", "key content github", "verify hmac {",
		"secret "+secret, "header X-Hub-Signature-256", "format sha256={signature}", "}", "}", proxyTo(up))})
	for path, again := range map[string]bool{"/id/hook": true, "/body/hook": false} {
		first := p.post(t, path, "", "body", signedDelivery(path+"1", "s3cret", "body")...)
		wantReplay(t, p.post(t, path, "", "body", signedDelivery(path+"1", "s3cret", "body")...), first)
		if got := p.post(t, path, "", "body", signedDelivery(path+"2", "s3cret", "body")...); got.Status != 201 || got.replayed() == again {
			t.Errorf("%s: under another ID it gets %d, replayed: %t", path, got.Status, got.replayed())
		}
		if got := p.post(t, path, "", "another body", signedDelivery(path+"3", "s3cret", "body")...); got.Status != 401 {
			t.Errorf("%s: another body under the same signature gets %d", path, got.Status)
		}
	}
	if got := p.post(t, "/ID-hook", "", "another body", signedDelivery("4", "s3cret", "body")...); got.Status != 201 {
		t.Errorf("beside the matcher it gets %d", got.Status)
	}
}
