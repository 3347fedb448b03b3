package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// formats are those that the page says a version writes, by what they are of.
func formats(t *testing.T) map[string]int {
	t.Helper()
	of := make(map[string]int)
	for _, row := range pageTable(t, "upgrading.md", "| what | where | now | another one |") {
		of[row[0]] = int(figureIn(t, row[2]))
	}
	return of
}

// The page's formats are those that a process writes, and another one is refused.
func TestFormatsOfTheUpgradingPage(t *testing.T) {
	t.Parallel()
	said := formats(t)
	server := redistest.Start(t)
	client, up := redisClient(t, server), startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), dedup: "local_copies off", site: lines(keyHeader, bothModes(up))})
	for path, c := range map[string]struct {
		what, magic string
		status      int
	}{
		"/":     {"a record", "ddr", 500},
		"/hook": {"a response", "dda", 503},
	} {
		name := recordIn(p.post(t, path, "k", "body").Header.Get("X-Key"))
		value := client.Get(t.Context(), name).Val()
		if want := "D" + strconv.Itoa(said["a value in Redis"]); !strings.HasPrefix(value, want) {
			t.Errorf("a value in Redis begins with %q, and the page says %q", value[:2], want)
		}
		form := regexp.MustCompile(c.magic + `[\x00-\x1f]`) // an execution ID may have the magic's letters
		at := form.FindStringIndex(value)[1] - 1
		if got := int(value[at]); got != said[c.what] {
			t.Errorf("%s has format %d, and the page says %d", c.what, got, said[c.what])
		}
		next := []byte(value)
		next[at]++
		if err := client.Set(t.Context(), name, next, redis.KeepTTL).Err(); err != nil {
			t.Fatal(err)
		}
		wantProblem(t, p.post(t, path, "k", "body"), c.status, "record_unreadable")
		p.awaitLog(t, "which format it has", func(e entry) bool {
			return strings.Contains(e.text("error"), "format "+strconv.Itoa(said[c.what]+1)) &&
				strings.Contains(e.text("error"), "this version reads format "+strconv.Itoa(said[c.what]))
		})
		p.keys(t, 0, "forget", strings.Trim(strings.TrimPrefix(name, "dedup:"), "{}"))
		wantFresh(t, p.post(t, path, "k", "body"), 201, "run "+strconv.Itoa(len(up.runs("k")))+" of k")
	}

	f := start(t, conf{store: "store file", site: lines("dedup", proxyTo(up))})
	f.terminate(t)
	f.awaitExit(t)
	label := filepath.Join(f.conf.dir, "data", "caddy", "dedup", "caddy-dedup.format")
	text, err := os.ReadFile(label)
	if err != nil {
		t.Fatal(err)
	}
	directory := said["the directory of the file store"]
	if got := figureIn(t, string(text)); int(got) != directory {
		t.Errorf("the directory has %q, and the page says %d", text, directory)
	}
	next := regexp.MustCompile(`\d+`).ReplaceAllString(string(text), strconv.Itoa(directory+1))
	if err := os.WriteFile(label, []byte(next), 0o600); err != nil {
		t.Fatal(err)
	}
	output, code := command(t, f.conf.dir, "run", "--config", filepath.Join(f.conf.dir, "Caddyfile"))
	if code == 0 || !strings.Contains(output, "this version reads format") {
		t.Errorf("a directory of another format was answered with %d:\n%s", code, output)
	}
	if after, err := os.ReadFile(label); err != nil || string(after) != next {
		t.Errorf("the label was changed to %q, %v", after, err)
	}
}

// With the page's Caddyfile, no request runs twice on the way from the file store to
// Redis.
func TestFromOneStoreToAnother(t *testing.T) {
	t.Parallel()
	server, up := redistest.Start(t), startUpstream(t, answers201)
	old := start(t, conf{store: "store file", site: lines("dedup", proxyTo(up))})
	first := map[string]reply{"before": old.post(t, "/", "before", "body")}
	old.terminate(t)
	old.awaitExit(t)

	var page string
	for _, b := range docBlocks(t) {
		if b.page == "upgrading.md" && b.language == "caddyfile" {
			page = b.text
		}
	}
	options, site, found := strings.Cut(strings.NewReplacer("{env.REDIS_URL}", "redis://"+server.Addr, "localhost:3000", up.addr, ":8080 {", "http://:PORT {").Replace(page), "\n}\n\n")
	if !found {
		t.Fatal("the page has no Caddyfile")
	}
	both := start(t, conf{global: strings.TrimPrefix(options, "{\n"), sites: site, dir: old.conf.dir, port: old.conf.port})
	same := func(p *caddy, key string) {
		t.Helper()
		got := p.post(t, "/", key, "body")
		if !got.replayed() || got.Status != first[key].Status || got.Body != first[key].Body {
			t.Errorf("%s: got %d %q, replayed %t; want %q again", key, got.Status, got.Body, got.replayed(), first[key].Body)
		}
		up.wantRuns(t, key, 1)
	}
	same(both, "before")
	first["during"] = both.post(t, "/", "during", "body")
	wantFresh(t, first["during"], 201, "run 1 of during")
	same(both, "during")
	both.terminate(t)
	both.awaitExit(t)

	next := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up)), dir: old.conf.dir, port: old.conf.port})
	same(next, "before")
	same(next, "during")
}
