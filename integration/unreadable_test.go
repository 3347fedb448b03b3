package integration

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
	"github.com/redis/go-redis/v9"
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

// Whatever is damaged: the answer is the stored one or a refusal, and nothing runs.
func TestDamagedRedisRecord(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	ctx := context.Background()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines(keyHeader, "dedup", proxyTo(up))})
	refused := 0
	damage := func(id string, change func(string) string) {
		first := p.post(t, "/", id, "body")
		key := recordIn(first.Header.Get("X-Key"))
		if err := client.Set(ctx, key, change(client.Get(ctx, key).Val()), redis.KeepTTL).Err(); err != nil {
			t.Fatal(err)
		}
		got := p.post(t, "/", id, "body")
		switch {
		case got.Status == 500:
			wantProblem(t, got, 500, "record_unreadable")
			refused++
		default:
			wantReplay(t, got, first)
		}
		up.wantRuns(t, id, 1)
	}
	damage("longer", func(s string) string { return s + "x" })
	const step = 5 // bytes
	size := len(client.Get(ctx, recordIn(p.post(t, "/", "sample", "body").Header.Get("X-Key"))).Val())
	for at := 0; at < size; at += step {
		damage(fmt.Sprint("flipped at ", at), func(s string) string {
			b := []byte(s)
			if at < len(b) {
				b[at] ^= 1
			}
			return string(b)
		})
		damage(fmt.Sprint("cut at ", at), func(s string) string { return s[:min(at, len(s))] })
	}
	// Most of what is left when the end of a lease or the expiry is another one can be
	// replayed, and so can what is the same after the change.
	if want := 2*size/step - 20; refused < want {
		t.Errorf("%d damaged records were refused, want at least %d", refused, want)
	}

	// A record that was moved to another key is not taken for its own.
	a, b := p.post(t, "/", "a", "body"), p.post(t, "/", "b", "body")
	if err := client.Copy(ctx, recordIn(a.Header.Get("X-Key")), recordIn(b.Header.Get("X-Key")), 0, true).Err(); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, p.post(t, "/", "b", "body"), 500, "record_unreadable")
	up.wantRuns(t, "b", 1)
}

// A response that Redis has lost, as by an eviction, is as little to be seen by an operator as
// by a client, and both are told so.
func TestResponseThatRedisHasLost(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redisClient(t, server)
	ctx := context.Background()
	up := startUpstream(t, answersLarge(20_000))
	p := start(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines(keyHeader, "dedup", proxyTo(up))})
	key := p.post(t, "/", "k", "body").Header.Get("X-Key")
	beside := client.Keys(ctx, recordIn(key)+":*").Val()
	if len(beside) != 1 {
		t.Fatalf("beside the record there are %q", beside)
	}
	if shown := p.operator(t, "GET", key+"?body=true", 200); shown["response"] == nil {
		t.Errorf("before: %v", shown)
	}
	client.Del(ctx, beside[0])
	wantProblem(t, p.post(t, "/", "k", "body"), 500, "record_unreadable")
	if said := p.operator(t, "GET", key+"?body=true", 500); said["code"] != "record_unreadable" {
		t.Errorf("the response is shown as %v", said)
	}
	p.operator(t, "GET", key, 200)
	p.keys(t, 1, "show", "--body", key)
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

// What lies where a store is to be, and is none, or a damaged one.
func TestDirectoryThatIsNoStore(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	sound := filepath.Join(shortTempDir(t), "sound")
	p := start(t, conf{store: "store file " + sound, site: lines("dedup", proxyTo(up))})
	for n := range 20 {
		p.post(t, "/", strconv.Itoa(n), "body")
	}
	p.kill(t)
	for name, make := range map[string]func(path string) error{
		"foreign file":      func(path string) error { return os.WriteFile(path, []byte("This is a letter, not a store.\n"), 0o600) },
		"foreign directory": func(path string) error { return os.CopyFS(path, os.DirFS("testdata")) },
		"damaged store":     cutManifest(sound),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortTempDir(t)
			path := filepath.Join(dir, "state")
			if err := make(path); err != nil {
				t.Fatal(err)
			}
			before := filesIn(t, path)
			caddyfile := filepath.Join(dir, "Caddyfile")
			text := conf{store: "store file " + path, site: lines("dedup", proxyTo(up))}.caddyfile(dir, freeport.Of(t))
			if err := os.WriteFile(caddyfile, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			output, code := command(t, dir, "run", "--config", caddyfile, "--adapter", "caddyfile")
			if code == 0 || !strings.Contains(output, path) || strings.Contains(output, "goroutine ") {
				t.Errorf("the process ended with %d; want a plain failure that names %s:\n%s", code, path, output)
			}
			if strings.HasPrefix(name, "foreign") && !maps.Equal(filesIn(t, path), before) {
				t.Error("what was there was changed")
			}
		})
	}
}

// cutManifest copies a store without the second half of its manifest.
func cutManifest(store string) func(path string) error {
	return func(path string) error {
		if err := os.CopyFS(path, os.DirFS(store)); err != nil {
			return err
		}
		found, err := filepath.Glob(filepath.Join(path, "MANIFEST-*"))
		if err != nil || len(found) != 1 {
			return fmt.Errorf("manifests: %v, %w", found, err)
		}
		info, err := os.Stat(found[0])
		if err != nil {
			return err
		}
		return os.Truncate(found[0], info.Size()/2)
	}
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
