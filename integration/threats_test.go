package integration

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"testing"
)

// These hold what docs/security.md says that somebody can do, so that the page stays
// true. What nobody can do is in attacks_test.go, and beside the rules.

// GitHub signs the body, and not the delivery ID: whoever has captured a delivery can have it run again
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
