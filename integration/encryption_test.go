package integration

import (
	"bytes"
	"context"
	"encoding/base64"
	endian "encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"
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
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() || filepath.Base(path) == "Caddyfile" {
			return err
		}
		content, err := os.ReadFile(path)
		all.Write(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
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

// A sealed response that was changed, or that was sealed with a key which is not
// configured, is not replayed and not run over.
func TestSealedResponseThatDoesNotOpen(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, ctx := redisClient(t, server), context.Background()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), dedup: lines(keyFiles(t, shortTempDir(t), "a"), "local_copies off"),
		site: lines(keyHeader, bothModes(up))})
	sealedBy := regexp.MustCompile(`[0-9a-f]{16}`)
	for name, c := range map[string]struct {
		change func(head, body []byte)
		log    string
	}{
		"another key": {func(head, _ []byte) {
			at := sealedBy.FindIndex(head)
			copy(head[at[0]:at[1]], "0123456789abcdef")
		}, `"0123456789abcdef", which is not configured`},
		"one bit": {func(_, body []byte) { body[len(body)/2] ^= 1 }, "does not open"},
		"nonce":   {func(_, body []byte) { body[0] ^= 1 }, "does not open"},
		"tag":     {func(_, body []byte) { body[len(body)-1] ^= 1 }, "does not open"},
	} {
		for _, path := range []string{"/", "/hook"} {
			id := name + path
			key := p.post(t, path, id, "body").Header.Get("X-Key")
			value := []byte(client.Get(ctx, recordIn(key)).Val())
			token, at := responseIn(t, string(value))
			resealed(t, value[at:], key, token, c.change)
			if err := client.Set(ctx, recordIn(key), value, redis.KeepTTL).Err(); err != nil {
				t.Fatal(err)
			}
			got := p.post(t, path, id, "body")
			if path == "/hook" {
				wantProblem(t, got, 503, "record_unreadable")
				wantRetryAfter(t, got)
			} else {
				wantProblem(t, got, 500, "record_unreadable")
			}
			up.wantRuns(t, id, 1)
			p.awaitLog(t, "why the response does not open", func(e entry) bool {
				return e.text("level") == "error" && strings.Contains(e.text("error"), c.log) && strings.Contains(e.text("error"), key)
			})
		}
	}
}

// resealed changes a stored response in place, and makes its checksums right: that of the
// body, with which the head ends, and that of the head.
func resealed(t *testing.T, stored []byte, key, token string, change func(head, body []byte)) {
	t.Helper()
	const checksumAt, headLengthAt, headAt = 4, 12, 16
	if len(stored) < headAt {
		t.Fatalf("%d bytes are no stored response", len(stored))
	}
	end := headAt + int(endian.BigEndian.Uint32(stored[headLengthAt:]))
	change(stored[headAt:end], stored[end:])
	endian.BigEndian.PutUint64(stored[end-8:end], xxhash.Sum64(stored[end:]))
	owner, err := hex.DecodeString(key)
	if err != nil {
		t.Fatal(err)
	}
	sum := xxhash.New()
	_, _ = sum.Write(append(owner, token...)) // a hash never fails
	_, _ = sum.Write(stored[headLengthAt:end])
	endian.BigEndian.PutUint64(stored[checksumAt:], sum.Sum64())
}

// Who has another key, or none, cannot read what is kept, whatever the store: it
// neither replays it nor runs it again. Whoever has the key still can.
func TestAnotherEncryptionKeyReadsNothing(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	store, dir := redisStore(t), shortTempDir(t)
	a := start(t, conf{store: store, dedup: keyFiles(t, dir, "a"), site: lines(keyHeader, bothModes(up))})
	first := a.post(t, "/", "k", "body")
	for _, keys := range []string{"b", ""} {
		p := start(t, conf{store: store, dedup: keyFiles(t, dir, keys), site: lines(keyHeader, bothModes(up))})
		got := p.post(t, "/", "k", "body")
		wantProblem(t, got, 500, "record_unreadable")
		if got.Header.Get("X-Key") != first.Header.Get("X-Key") {
			t.Errorf("keys %q: the key is another one", keys)
		}
		p.awaitLog(t, "which key is missing", func(e entry) bool {
			return e.text("level") == "error" && strings.Contains(e.text("error"), "configured")
		})
	}
	wantReplay(t, a.post(t, "/", "k", "body"), first)
	up.wantRuns(t, "k", 1)
}

// Without its encryption key, a record is unreadable for operators. A request is told so
// where an answer would have to be opened; that its key is held or exhausted is said
// without. Freeing it needs no encryption key, as forgetting it does not.
func TestRecordsOfAMissingEncryptionKey(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.N == 1 && n.Key != "kept" {
			noAnswer(w, r, n)
			return
		}
		answers201(w, r, n)
	})
	store, dir := redisStore(t), shortTempDir(t)
	site := onPaths(up, map[string]string{
		"/":     "dedup",
		"/hold": dedupBlock("on_unknown hold"),
		"/once": dedupBlock("max_attempts 1"),
	})
	p := start(t, conf{store: store, dedup: keyFiles(t, dir, "a"), site: site})
	codes := map[string][]any{
		"kept": {"/", 500, "record_unreadable"}, "held": {"/hold", 409, "outcome_unknown"}, "gone": {"/once", 409, "attempts_exhausted"},
	}
	keys := make(map[string]string)
	for id, c := range codes {
		p.post(t, c[0].(string), id, "body")
		keys[id] = objects(t, p.keys(t, 0, "show", "--json", id))[0]["key"].(string)
	}
	p.terminate(t)
	p.awaitExit(t)

	p = start(t, conf{store: store, dedup: keyFiles(t, dir, "b"), site: site})
	if listed := objects(t, p.keys(t, 0, "list", "--json", "--state", "unreadable")); len(listed) != len(keys) {
		t.Errorf("unreadable are %v, want %d", listed, len(keys))
	}
	for id, c := range codes {
		wantProblem(t, p.post(t, c[0].(string), id, "body"), c[1].(int), c[2].(string))
		if shown := p.keys(t, 0, "show", id); !strings.Contains(shown, "unreadable") {
			t.Errorf("%s is shown as %s", id, shown)
		}
		mustSay(t, p.keys(t, 0, "release", keys[id]), "released", "was unreadable")
		wantFresh(t, p.post(t, c[0].(string), id, "body"), 201, "run 2 of "+id)
	}
}

// A secret namespace, from the environment, names keys as nobody else can.
func TestNamespaceFromTheEnvironment(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	store, dir := redisStore(t), shortTempDir(t)
	if err := os.WriteFile(filepath.Join(dir, "namespace"), []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := make(map[string]string)
	for _, line := range []string{"namespace {file." + dir + "/namespace}", "namespace s3cret", "namespace other", ""} {
		p := start(t, conf{store: store, dedup: line, site: lines(keyHeader, "dedup", proxyTo(up))})
		names[line] = p.post(t, "/", "k", "body").Header.Get("X-Key")
	}
	if names["namespace {file."+dir+"/namespace}"] != names["namespace s3cret"] || names["namespace s3cret"] == names["namespace other"] ||
		names["namespace other"] == names[""] {
		t.Errorf("the keys are %v", names)
	}
	up.wantRuns(t, "k", 3)

	file := filepath.Join(dir, "Caddyfile")
	for _, namespace := range []string{"{env.DEDUP_NO_SUCH_NAMESPACE}", "shop-{env.DEDUP_NO_SUCH_NAMESPACE}"} {
		text := conf{dedup: "namespace " + namespace, site: "dedup"}.caddyfile(dir, 8080)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, code := command(t, dir, "validate", "--config", file, "--adapter", "caddyfile")
		if code == 0 || !strings.Contains(out, "namespace: "+namespace) {
			t.Errorf("%s: validate ended with %d:\n%s", namespace, code, out)
		}
	}
}

func TestOperatorReadsEncryptedRecords(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, answers201)
		p := start(t, conf{store: store, dedup: keyFiles(t, shortTempDir(t), "ab"), site: lines(keyHeader, "dedup", proxyTo(up))})
		key := p.post(t, "/", "k", "body").Header.Get("X-Key")
		record := p.operator(t, "GET", key+"?body=true", 200)
		response, _ := record["response"].(map[string]any)
		if record["delivery_id"] != "k" || record["status"] != 201.0 || response["body"] != "run 1 of k" {
			t.Errorf("the operator is shown %v", record)
		}
		p.operator(t, "POST", key+"/release", 204)
		wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 2 of k")
		p.operator(t, "DELETE", key, 204)
		wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 3 of k")
	})
}

func TestValidateChecksEncryptionKeys(t *testing.T) {
	t.Parallel()
	dir := shortTempDir(t)
	const short = "c2VjcmV0"
	if err := os.WriteFile(filepath.Join(dir, "short"), []byte(short), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		line, want string
	}{
		"good":  {keyFiles(t, dir, "ab"), "Valid configuration"},
		"unset": {"encrypt {env.DEDUP_NO_SUCH_KEY}", "encrypt: {env.DEDUP_NO_SUCH_KEY} is empty"},
		"short": {"encrypt {file." + dir + "/short}", "has 6 bytes in base64; a key is 32 random bytes"},
	} {
		file := filepath.Join(dir, "Caddyfile")
		text := conf{dedup: c.line, site: "dedup"}.caddyfile(dir, 8080)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		out, code := command(t, dir, "validate", "--config", file, "--adapter", "caddyfile")
		if (code == 0) != (name == "good") || !strings.Contains(out, c.want) || strings.Contains(out, short) {
			t.Errorf("%s: validate ended with %d, want %q:\n%s", name, code, c.want, out)
		}
	}

	// The same in JSON, where no line was parsed.
	config := filepath.Join(dir, "caddy.json")
	if err := os.WriteFile(config, []byte(`{"apps":{"dedup":{"encrypt":["`+short+`"]}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, code := command(t, dir, "validate", "--config", config)
	if code == 0 || !strings.Contains(out, "encrypt: argument 1 is not one placeholder") || strings.Contains(out, short) {
		t.Errorf("a literal in JSON: validate ended with %d:\n%s", code, out)
	}
}
