package integration

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

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
	p := start(t, conf{store: storeAt(server.Addr), site: lines(keyHeader, bothModes(up))})
	foreign := map[string]func(key string) error{
		"a string": func(key string) error { return client.Set(ctx, key, "not ours", 0).Err() },
		"a list":   func(key string) error { return client.RPush(ctx, key, "not ours").Err() },
		"a hash":   func(key string) error { return client.HSet(ctx, key, "name", "not ours").Err() },
		"an empty record": func(key string) error {
			return client.HSet(ctx, key, "r", "", "t", "x", "l", "0", "v", "1").Err()
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
	p := start(t, conf{store: storeAt(server.Addr), site: lines(keyHeader, "dedup", proxyTo(up))})
	refused := 0
	damages := map[string]func(string) string{
		"flipped": func(s string) string { b := []byte(s); b[len(b)/2] ^= 1; return string(b) },
		"cut":     func(s string) string { return s[:len(s)/2] },
		"longer":  func(s string) string { return s + "x" },
	}
	first := p.post(t, "/", "sample", "body")
	fields := client.HGetAll(ctx, recordIn(first.Header.Get("X-Key"))).Val()
	if len(fields) == 0 {
		t.Fatal("the record has no fields")
	}
	for field := range fields {
		for name, damage := range damages {
			id := field + " " + name
			first := p.post(t, "/", id, "body")
			key := recordIn(first.Header.Get("X-Key"))
			sound := client.HGet(ctx, key, field).Val()
			if sound == "" {
				continue
			}
			if err := client.HSet(ctx, key, field, damage(sound)).Err(); err != nil {
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
	}
	if refused < len(damages) {
		t.Errorf("%d damaged records were refused, want at least those of the record itself", refused)
	}

	// A record that was moved to another key is not taken for its own.
	a, b := p.post(t, "/", "a", "body"), p.post(t, "/", "b", "body")
	if err := client.Copy(ctx, recordIn(a.Header.Get("X-Key")), recordIn(b.Header.Get("X-Key")), 0, true).Err(); err != nil {
		t.Fatal(err)
	}
	wantProblem(t, p.post(t, "/", "b", "body"), 500, "record_unreadable")
	up.wantRuns(t, "b", 1)
}

func TestSecondProcessOnOneFile(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	file := filepath.Join(shortTempDir(t), "state", "dedup.db")
	c := conf{store: "store file " + file, site: lines("dedup", proxyTo(up))}
	p := start(t, c)
	first := p.post(t, "/", "k", "body")

	dir := shortTempDir(t)
	text := c.caddyfile(dir, freePort(t))
	caddyfile := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(caddyfile, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	output, code := command(t, dir, "run", "--config", caddyfile, "--adapter", "caddyfile")
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if code == 0 || !strings.Contains(output, file) || !strings.Contains(output, pid) {
		t.Errorf("the second process ended with %d; want a failure that names %s and process %s:\n%s", code, file, pid, output)
	}
	// Validation opens nothing.
	if output, code := command(t, dir, "validate", "--config", caddyfile, "--adapter", "caddyfile"); code != 0 {
		t.Errorf("validate ended with %d:\n%s", code, output)
	}
	wantReplay(t, p.post(t, "/", "k", "body"), first)
}

func TestFileThatIsNoStore(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	sound := filepath.Join(shortTempDir(t), "sound.db")
	p := start(t, conf{store: "store file " + sound, site: lines("dedup", proxyTo(up))})
	for n := range 20 {
		p.post(t, "/", strconv.Itoa(n), "body")
	}
	p.terminate(t)
	p.awaitExit(t)
	stored, err := os.ReadFile(sound)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(stored)
	for i := range 4096 * 2 { // both of its meta pages
		damaged[i] ^= 0xff
	}
	for name, content := range map[string][]byte{
		"foreign": []byte(strings.Repeat("This is a letter, not a store.\n", 1000)),
		"small":   []byte("x"),
		"cut":     stored[:len(stored)/2],
		"damaged": damaged,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortTempDir(t)
			file := filepath.Join(dir, name+".db")
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
			caddyfile := filepath.Join(dir, "Caddyfile")
			text := conf{store: "store file " + file, site: lines("dedup", proxyTo(up))}.caddyfile(dir, freePort(t))
			if err := os.WriteFile(caddyfile, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			output, code := command(t, dir, "run", "--config", caddyfile, "--adapter", "caddyfile")
			if code == 0 || !strings.Contains(output, file) || strings.Contains(output, "goroutine ") {
				t.Errorf("the process ended with %d; want a plain failure that names %s:\n%s", code, file, output)
			}
			if after, err := os.ReadFile(file); err != nil || !bytes.Equal(after, content) {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}
