package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// keyFiles writes one encryption key into a file for each letter, and returns the
// line that names them in this order.
func keyFiles(t *testing.T, dir, letters string) string {
	t.Helper()
	words := []string{"encrypt"}
	for _, letter := range letters {
		file := filepath.Join(dir, string(letter)+".key")
		key := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{byte(letter)}, 32))
		if err := os.WriteFile(file, []byte(key+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		words = append(words, "{file."+file+"}")
	}
	if letters == "" {
		return ""
	}
	return strings.Join(words, " ")
}

// The texts that must show nowhere. Responses say "run n of <key>".
var secrets = []string{"delivery-4711", "run 1 of", "run 2 of", "X-Answer", "bearer-secret", "api-key-secret"}

// secretsIn lists those of the secrets that a text shows.
func secretsIn(text string) []string {
	var found []string
	for _, secret := range secrets {
		if strings.Contains(text, secret) {
			found = append(found, secret)
		}
	}
	return found
}

// redisContents is all that a server holds, names and values.
func redisContents(t *testing.T, client *redis.Client) string {
	t.Helper()
	ctx := context.Background()
	var all strings.Builder
	for _, name := range client.Keys(ctx, "*").Val() {
		all.WriteString(name)
		switch kind := client.Type(ctx, name).Val(); kind {
		case "string":
			all.WriteString(client.Get(ctx, name).Val())
		default:
			t.Fatalf("Redis has a %s named %s", kind, name)
		}
	}
	return all.String()
}

// fileContents is all that lies in a process's home, but for what the test has
// put there.
func fileContents(t *testing.T, dir string) string {
	t.Helper()
	var all strings.Builder
	for name, content := range filesIn(t, dir) {
		if filepath.Base(name) != "Caddyfile" {
			all.WriteString(content)
		}
	}
	return all.String()
}

// Under encrypt neither store nor log shows an answer, a delivery ID or a
// credential, whatever state a key is in. Without, the store shows what this test
// looks for: it looks in the right place.
func TestEncryptedStoreShowsNothing(t *testing.T) {
	t.Parallel()
	for _, encrypted := range []bool{true, false} {
		name := map[bool]string{true: "encrypted", false: "readable"}[encrypted]
		t.Run(name+" file", func(t *testing.T) {
			t.Parallel()
			p := leaveRecords(t, "store file", encrypted)
			wantShown(t, fileContents(t, p.conf.dir), encrypted)
		})
		t.Run(name+" redis", func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			leaveRecords(t, storeAt(server.Addr), encrypted)
			wantShown(t, redisContents(t, redisClient(t, server)), encrypted)
		})
	}
}

func wantShown(t *testing.T, contents string, encrypted bool) {
	t.Helper()
	found := secretsIn(contents)
	if encrypted && len(found) > 0 {
		t.Errorf("the store shows %q", found)
	}
	if !encrypted && len(found) != 4 {
		t.Errorf("without encryption the store shows %q, want ID and answers, and no credential", found)
	}
}

// leaveRecords leaves records of all states in a store.
func leaveRecords(t *testing.T, store string, encrypted bool) *caddy {
	t.Helper()
	g := newGate(t)
	answer := func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("X-Answer", n.text())
		switch r.URL.Path {
		case "/free":
			answersStatus(500)(w, r, n)
		case "/held":
			noAnswer(w, r, n)
		case "/slow":
			g.before(answers201)(w, r, n)
		default:
			answers201(w, r, n)
		}
	}
	up := startUpstream(t, answer)
	keys := ""
	if encrypted {
		keys = keyFiles(t, shortTempDir(t), "a")
	}
	p := start(t, conf{store: store, dedup: keys, site: lines("log", dedupBlock("on_unknown hold", "force X-Force"), proxyTo(up))})
	const id = "delivery-4711"
	caller := []option{header("Authorization", "Bearer bearer-secret"), header("X-Api-Key", "api-key-secret")}
	first := p.post(t, "/kept", id, "body", caller...)
	wantFresh(t, first, 201, "run 1 of "+id)
	wantReplay(t, p.post(t, "/kept", id, "body", caller...), first)
	p.post(t, "/kept", id, "body", append(caller, header("X-Force", "true"))...)
	large := p.post(t, "/kept", id+strings.Repeat("x", 200), strings.Repeat("y", 20_000), caller...)
	wantReplay(t, p.post(t, "/kept", id+strings.Repeat("x", 200), strings.Repeat("y", 20_000), caller...), large)
	p.post(t, "/free", id, "body", caller...)
	p.post(t, "/free", id, "body", caller...)
	if got := p.post(t, "/held", id, "body", caller...); got.Status != 502 {
		t.Fatalf("got %d", got.Status)
	}
	wantProblem(t, p.post(t, "/held", id, "body", caller...), 409, "outcome_unknown")
	wantProblem(t, p.post(t, "/kept", id, "another", caller...), 422, "idempotency_key_reused")
	seen := len(up.runs(id))
	p.postLater("/slow", id, "body", caller...) // in flight when the store is looked at
	up.awaitRuns(t, id, seen+1)
	if encrypted {
		for _, e := range p.log.entries() {
			// Caddy's own logs have the headers of request and response in them, redacted
			// as far as it knows credentials.
			delete(e, "request")
			delete(e, "resp_headers")
			if found := secretsIn(fmt.Sprint(e)); len(found) > 0 {
				t.Errorf("the log shows %q: %v", found, e)
			}
		}
	}
	return p
}
