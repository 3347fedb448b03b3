package integration

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// recipe is the Caddyfile of a page in docs/recipes. A test runs that very text:
// what it has to put in its place is named, and must be there.
type recipe struct {
	page, text string
}

func readRecipe(t *testing.T, page string) recipe {
	t.Helper()
	return recipe{page, recipeBlock(t, page, "caddyfile")}
}

// recipeBlock is the one block of a language in a page.
func recipeBlock(t *testing.T, page, language string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../docs/recipes", page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := slices.DeleteFunc(fencedBlocks(page, string(text)), func(b block) bool { return b.language != language })
	if len(blocks) != 1 {
		t.Fatalf("%s has %d blocks of %s, want 1", page, len(blocks), language)
	}
	return blocks[0].text
}

// with returns the recipe with texts replaced: the first by the second, the third
// by the fourth, and so on. Each must be there, once.
func (r recipe) with(t *testing.T, replacements ...string) recipe {
	t.Helper()
	for pair := range slices.Chunk(replacements, 2) {
		if n := strings.Count(r.text, pair[0]); n != 1 {
			t.Fatalf("%s has %q %d times, to be replaced by %q; want it once", r.page, pair[0], n, pair[1])
		}
		r.text = strings.Replace(r.text, pair[0], pair[1], 1)
	}
	return r
}

// before puts the upstream in place of the page's.
func (r recipe) before(t *testing.T, up *upstream) recipe {
	t.Helper()
	if !strings.Contains(r.text, "localhost:3000") {
		t.Fatalf("%s has no upstream localhost:3000", r.page)
	}
	r.text = strings.ReplaceAll(r.text, "localhost:3000", up.addr)
	return r
}

// on puts a Redis in place of the page's.
func (r recipe) on(t *testing.T, addr string) recipe {
	t.Helper()
	return r.with(t, "{env.REDIS_URL}", "redis://"+addr)
}

// start runs the recipe on a free port.
func (r recipe) start(t *testing.T) *caddy {
	t.Helper()
	return r.startAs(t, conf{dir: shortTempDir(t), port: freeport.Of(t)})
}

// startAs runs the recipe with the home and the port of an earlier process.
func (r recipe) startAs(t *testing.T, c conf) *caddy {
	t.Helper()
	options, found := strings.CutPrefix(r.with(t, "\n:8080 {", fmt.Sprintf("\n:%d {", c.port)).text, "{\n")
	if !found {
		t.Fatalf("%s does not begin with the global options", r.page)
	}
	text := fmt.Sprintf("{\n\tadmin unix/%s\n\tdefault_bind 127.0.0.1\n\tpersist_config off\n%s", adminSocket(c.dir), options)
	file := filepath.Join(c.dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProcess(t, c.dir, "run", "--config", file)
	p.conf, p.addr = c, fmt.Sprintf("127.0.0.1:%d", c.port)
	p.awaitLog(t, "serving initial configuration", func(e entry) bool {
		return e.text("msg") == "serving initial configuration"
	})
	return p
}

// restart ends the process as a power cut would and starts the recipe again.
func (r recipe) restart(t *testing.T, p *caddy) *caddy {
	t.Helper()
	p.kill(t)
	return r.startAs(t, p.conf)
}

// lives returns for how long Redis keeps each of its keys on.
func lives(t *testing.T, client *redis.Client) map[string]time.Duration {
	t.Helper()
	ctx := context.Background()
	keys, err := client.Keys(ctx, "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]time.Duration)
	for _, key := range keys {
		life, err := client.PTTL(ctx, key).Result()
		if err != nil {
			t.Fatal(err)
		}
		all[key] = life
	}
	return all
}

// wantLives fails unless Redis keeps so many keys, each for more than least and
// for most at most.
func wantLives(t *testing.T, client *redis.Client, n int, least, most time.Duration) {
	t.Helper()
	all := lives(t, client)
	if len(all) != n {
		t.Errorf("Redis has %d keys, want %d: %v", len(all), n, all)
	}
	for key, life := range all {
		if life <= least || life > most {
			t.Errorf("Redis keeps %s for %s, want more than %s and %s at most", key, life, least, most)
		}
	}
}

// answersJSON answers with a status and a JSON body.
func answersJSON(status int, format string, values ...any) answering {
	return func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		fmt.Fprintf(w, format, values...)
	}
}
