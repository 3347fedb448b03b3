package integration

import (
	"context"
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
	foreign := map[string]func(key string) error{
		"a string": func(key string) error { return client.Set(ctx, key, "not ours", 0).Err() },
		"a list":   func(key string) error { return client.RPush(ctx, key, "not ours").Err() },
		"a hash":   func(key string) error { return client.HSet(ctx, key, "name", "not ours").Err() },
		"an empty record": func(key string) error {
			const head = "D1e0123456789" + "0000000000000" + "9999999999999" + "001" + "00000" + "000" + "000000"
			return client.Set(ctx, key, head+"x", 0).Err()
		},
	}
	for name, put := range foreign {
		for _, path := range []string{"/", "/hook"} {
			id := name + path
			key := recordIn(p.post(t, path, id, "body").Header.Get("X-Key"))
			if n := client.Exists(ctx, key).Val(); n != 1 {
				t.Fatalf("Redis has no key %q after a request that shows it", key)
			}
			client.Del(ctx, key)
			if err := put(key); err != nil {
				t.Fatal(err)
			}
			before := client.Dump(ctx, key).Val()
			got := p.post(t, path, id, "body")
			if path == "/hook" {
				wantProblem(t, got, 503, "record_unreadable")
				wantRetryAfter(t, got)
			} else {
				wantProblem(t, got, 500, "record_unreadable")
			}
			if strings.Contains(got.Body, "not ours") {
				t.Errorf("%s: the refusal shows the record: %s", name, got.Body)
			}
			up.wantRuns(t, id, 1)
			if after := client.Dump(ctx, key).Val(); after != before {
				t.Errorf("%s: the foreign record was changed", name)
			}
			p.awaitLog(t, "the name of the unreadable record", func(e entry) bool {
				return e.text("level") == "error" && strings.Contains(e.text("error")+e.text("msg")+e.text("where"), key)
			})
		}
	}
}

// A response that Redis has lost, as by an eviction, is refused to clients and to operators.
func TestResponseThatRedisHasLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client, ctx := redisClient(t, server), context.Background()
	up := startUpstream(t, answersLarge(20_000))
	p := start(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines(keyHeader, "dedup", proxyTo(up))})
	key := p.post(t, "/", "k", "body").Header.Get("X-Key")
	if n := client.Del(ctx, client.Keys(ctx, recordIn(key)+":*").Val()...).Val(); n != 1 {
		t.Fatalf("beside the record there were %d", n)
	}
	wantProblem(t, p.post(t, "/", "k", "body"), 500, "record_unreadable")
	if said := p.operator(t, "GET", key+"?body=true", 500); said["code"] != "record_unreadable" {
		t.Errorf("the response is shown as %v", said)
	}
	up.wantRuns(t, "k", 1)
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
