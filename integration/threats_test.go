package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// These hold what docs/security.md says that somebody can do, so that the page stays
// true. What nobody can do is in attacks_test.go, and beside the rules.

// A replay to a webhook asks nobody for a signature: who knows the URL and the ID of a
// delivery gets its response. acknowledge gives nothing of it away.
func TestWhoKnowsURLAndIDOfAWebhook(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, verifying(401))
	p := start(t, conf{store: "store memory", site: lines(
		"handle /hook {", "dedup github", proxyTo(up), "}",
		"handle /quiet {", "dedup github {", "on_duplicate acknowledge", "}", proxyTo(up), "}")})
	for _, path := range []string{"/hook", "/quiet"} {
		genuine := []option{header("X-GitHub-Delivery", path), header("X-Hub-Signature-256", "sha256=genuine")}
		forged := []option{header("X-GitHub-Delivery", path), header("X-Hub-Signature-256", "sha256=forged")}
		first := p.post(t, path, "", "body", genuine...)
		wantFresh(t, first, 201, "run 1 of "+path)
		got := p.post(t, path, "", "another body", forged...)
		if path == "/hook" {
			wantReplay(t, got, first)
		} else if got.Status != 200 || got.Body != "" {
			t.Errorf("acknowledge gave away %d %q", got.Status, got.Body)
		}
		up.wantRuns(t, path, 1)
	}
}

// GitHub signs the body, and not the delivery ID: who has captured a delivery can have it run again
// under another ID, unless the key is made of the body. What the matcher leaves out is not verified.
func TestWhoHasCapturedADelivery(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	secret := filepath.Join(shortTempDir(t), "secret")
	if err := os.WriteFile(secret, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := "{file." + secret + "}"
	p := start(t, conf{store: "store memory", site: lines(
		"dedup /id/* github {", "verify "+file, "}",
		"dedup /body/* {", "mode webhook", "key content github", "verify hmac {",
		"secret "+file, "header X-Hub-Signature-256", "format sha256={signature}", "}", "}", proxyTo(up))})
	hash := hmac.New(sha256.New, []byte("s3cret"))
	hash.Write([]byte("body"))
	delivery := func(id string) []option {
		return []option{header("X-GitHub-Delivery", id), header("X-Hub-Signature-256", "sha256="+hex.EncodeToString(hash.Sum(nil)))}
	}
	for path, again := range map[string]bool{"/id/hook": true, "/body/hook": false} {
		first := p.post(t, path, "", "body", delivery(path+"1")...)
		wantReplay(t, p.post(t, path, "", "body", delivery(path+"1")...), first)
		if got := p.post(t, path, "", "body", delivery(path+"2")...); got.Status != 201 || got.replayed() == again {
			t.Errorf("%s: under another ID it gets %d, replayed: %t", path, got.Status, got.replayed())
		}
		if got := p.post(t, path, "", "another body", delivery(path+"3")...); got.Status != 401 {
			t.Errorf("%s: another body under the same signature gets %d", path, got.Status)
		}
	}
	if got := p.post(t, "/ID-hook", "", "another body", delivery("4")...); got.Status != 201 {
		t.Errorf("beside the matcher it gets %d", got.Status)
	}
}

// What a forged delivery leaves in the store: for one lease if it was answered with 401
// or 403, and else for the retention.
func TestCallerAnswersAreForgottenSoon(t *testing.T) {
	t.Parallel()
	for status, most := range map[int]time.Duration{401: 30 * time.Second, 403: 30 * time.Second, 400: 7 * 24 * time.Hour} {
		server := redistest.Start(t)
		up := startUpstream(t, verifying(status))
		p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup github", proxyTo(up))})
		if got := p.post(t, "/", "", "body", header("X-GitHub-Delivery", "d")); got.Status != status {
			t.Fatalf("got %d, want %d", got.Status, status)
		}
		for name, life := range lives(t, redisClient(t, server)) {
			record := strings.HasSuffix(name, "}") // and not the answer, for those who waited
			if record && (life > most || life < most-time.Minute) {
				t.Errorf("after %d Redis keeps %s for %s, want %s", status, name, life, most)
			}
		}
	}
}

// encrypt can be turned on without forgetting: so it also reads what somebody who can
// write to the store has put there without a key.
func TestUnencryptedResponseUnderEncrypt(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	store, site := redisStore(t), lines("dedup", proxyTo(up))
	plain := start(t, conf{store: store, site: site})
	first := plain.post(t, "/", "k", "body")
	encrypting := start(t, conf{store: store, dedup: keyFiles(t, shortTempDir(t), "a"), site: site})
	wantReplay(t, encrypting.post(t, "/", "k", "body"), first)
	up.wantRuns(t, "k", 1)
}
