package integration

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// keyHeader shows the key of each request to its client.
const keyHeader = "header >X-Key {http.dedup.key}"

func TestForeignRedisRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	ctx := context.Background()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines(keyHeader, bothModes(up))})
	for _, path := range []string{"/", "/hook"} {
		key := recordIn(p.post(t, path, path, "body").Header.Get("X-Key"))
		if n := client.Del(ctx, key).Val(); n != 1 {
			t.Fatalf("Redis has no key %q after a request that shows it", key)
		}
		if err := client.HSet(ctx, key, "name", "not ours").Err(); err != nil {
			t.Fatal(err)
		}
		before := client.Dump(ctx, key).Val()
		got := p.post(t, path, path, "body")
		if path == "/hook" {
			wantProblem(t, got, 503, "record_unreadable")
			wantRetryAfter(t, got)
		} else {
			wantProblem(t, got, 500, "record_unreadable")
		}
		if strings.Contains(got.Body, "not ours") {
			t.Errorf("the refusal shows the record: %s", got.Body)
		}
		up.wantRuns(t, path, 1)
		if after := client.Dump(ctx, key).Val(); after != before {
			t.Error("the foreign record was changed")
		}
		p.awaitLog(t, "the name of the unreadable record", func(e entry) bool {
			return e.text("level") == "error" && strings.Contains(e.text("error")+e.text("msg")+e.text("where"), key)
		})
	}
}

func TestSecondProcessOnOneStore(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir := filepath.Join(shortTempDir(t), "state", "dedup")
	c := conf{store: "store file " + dir, site: lines("dedup", proxyTo(up))}
	p := start(t, c)
	first := p.post(t, "/", "k", "body")

	second := shortTempDir(t)
	text := c.caddyfile(second, freeport.Of(t))
	caddyfile := filepath.Join(second, "Caddyfile")
	if err := os.WriteFile(caddyfile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output, code := command(t, second, "run", "--config", caddyfile, "--adapter", "caddyfile")
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if code == 0 || !strings.Contains(output, dir) || !strings.Contains(output, pid) {
		t.Errorf("the second process ended with %d; want a failure that names %s and process %s:\n%s", code, dir, pid, output)
	}
	// Validation opens nothing.
	if output, code := command(t, second, "validate", "--config", caddyfile, "--adapter", "caddyfile"); code != 0 {
		t.Errorf("validate ended with %d:\n%s", code, output)
	}
	wantReplay(t, p.post(t, "/", "k", "body"), first)
}

// filesIn returns the files at a path and below it, by their names.
func filesIn(t *testing.T, path string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(path, func(name string, entry os.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(name)
		found[name] = string(content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// One flipped bit in a table, and a file of bodies that is gone: keys of the damaged block are refused, a
// response without its body is refused as such, the others are replayed, and new keys run.
func TestDamagedFileStore(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("large ", 20<<10)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if n.Key == "large" {
			_, _ = io.WriteString(w, large)
			return
		}
		answers201(w, r, n)
	})
	dir := filepath.Join(shortTempDir(t), "state", "dedup")
	c := conf{store: "store file " + dir, dedup: "local_copies off", site: lines("dedup", proxyTo(up))}
	p := start(t, c)
	const kept = 200
	firsts := make(map[string]reply)
	for n := range kept {
		key := strconv.Itoa(n)
		firsts[key] = p.post(t, "/", key, "body")
	}
	wantFresh(t, p.post(t, "/", "large", "body"), 200, large)
	for range 2 { // the second start writes the log to a table
		p.terminate(t)
		p.awaitExit(t)
		p = start(t, c)
	}
	p.terminate(t)
	p.awaitExit(t)
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("tables: %v, %v", tables, err)
	}
	content, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	if err := os.WriteFile(tables[0], content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "bodies")); err != nil {
		t.Fatal(err)
	}

	p = start(t, c)
	unreadable := 0
	for key, first := range firsts {
		if got := p.post(t, "/", key, "body"); got.Status == 500 {
			unreadable++
			wantProblem(t, got, 500, "record_unreadable")
		} else {
			wantReplay(t, got, first)
		}
		up.wantRuns(t, key, 1)
	}
	if unreadable == 0 || unreadable == kept {
		t.Errorf("%d of %d keys are unreadable", unreadable, kept)
	}
	if got := p.post(t, "/", "large", "body"); got.Status != 500 { // it may be in the damaged block
		wantProblem(t, got, 409, "response_not_kept")
	}
	up.wantRuns(t, "large", 1)
	wantFresh(t, p.post(t, "/", "new", "body"), 201, "run 1 of new")
	if n := p.scrape(t)["caddy_dedup_store_damages_total"]; n == 0 {
		t.Error("the metrics count no damage")
	}
	p.awaitLog(t, "the damaged file", func(e entry) bool { return e.text("file") == tables[0] })
}
