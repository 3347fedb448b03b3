package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/report"
	"github.com/caddy-dedup/caddy-dedup/bench/internal/servers"
)

// The test's program is the upstream too, as the benchmark's own is.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "upstream" {
		exitOn(servers.ServeUpstream(context.Background(), os.Args[2]))
		return
	}
	os.Exit(m.Run())
}

// needsServers skips a test that starts servers where there is no redis-server, and in the
// short form of the tests: it builds the whole proxy first.
func needsServers(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds the proxy: without -short it runs")
	}
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") != "true" {
		t.Skip("no redis-server in PATH")
	}
}

// The smallest form of a run has figures of each kind, and leaves nothing behind.
func TestSmallestRun(t *testing.T) {
	needsServers(t)
	dir := t.TempDir()
	file := filepath.Join(t.TempDir(), "result.json")
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("<!-- bench:requests -->\n<!-- /bench -->\n<!-- bench:run -->\n<!-- /bench -->\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, progress strings.Builder
	err := run(t.Context(), []string{
		"-short", "-rounds", "1", "-for", "100ms", "-keys", "600", "-dir", dir, "-json", file, "-write", page,
		"-cases", "^(first/memory|first/redis|duplicate/redis|bare/redis|fiber/first|latency/first/file|growth/file)$",
	}, &out, &progress)
	if err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	result, err := report.ReadJSON(file)
	if err != nil {
		t.Fatal(err)
	}
	has := make(map[string]bool)
	for _, g := range result.Groups {
		for _, row := range g.Rows {
			for key, cell := range row.Cells {
				has[g.Name+" "+row.Name+" "+key] = cell.Rounds > 0
			}
		}
	}
	for _, want := range []string{
		"requests plain rate", "requests first/memory ratio", "requests first/redis redis", "requests duplicate/redis of-respond",
		"requests first/redis allocations", "requests bare/redis ratio", "requests fiber/first ratio",
		"latency latency/plain@300 p50", "latency latency/first/file@300 added", "growth growth/file speed", "growth growth/file disk",
		"growth growth/file expiring",
	} {
		if !has[want] {
			t.Errorf("the result has no figure %q", want)
		}
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "first delivery, memory") || !strings.Contains(string(text), result.Commit) {
		t.Errorf("the page is, %v:\n%s", err, text)
	}
	wantEmpty(t, dir)
}

// wantEmpty fails the test if a run has left anything in its directory.
func wantEmpty(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("the run left %v in its directory: %v", left, err)
	}
}

// interrupting ends a context as soon as a line with these words is written.
type interrupting struct {
	words  string
	cancel context.CancelFunc
}

func (i interrupting) Write(line []byte) (int, error) {
	if strings.Contains(string(line), i.words) {
		i.cancel()
	}
	return len(line), nil
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	needsServers(t)
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := run(ctx, []string{"-cases", "^first/memory$", "-dir", dir}, io.Discard, interrupting{"round 1", cancel})
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Errorf("the run ended with %v", err)
	}
	wantEmpty(t, dir)
}

func TestARunThatTakesTooLongEnds(t *testing.T) {
	needsServers(t)
	dir := t.TempDir()
	err := run(t.Context(), []string{"-within", "1ms", "-dir", dir}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "not finished within -within 1ms") {
		t.Errorf("the run ended with %v", err)
	}
	wantEmpty(t, dir)
}

func TestFlags(t *testing.T) {
	c, err := parse([]string{"-short", "-rounds", "9", "-cases", "^first/"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	o := c.options
	if o.Rounds != 9 || o.For != 300*time.Millisecond || o.Keys != 4000 || len(o.Rates) != 1 || !o.Cases.MatchString("first/file") {
		t.Errorf("-short with -rounds 9 is %+v", o)
	}
	if c, err = parse([]string{"-rates", "10,2.5"}, io.Discard); err != nil || len(c.options.Rates) != 2 || c.options.Rates[1] != 2.5 || c.options.Keys != 200_000 {
		t.Errorf("-rates 10,2.5 is %+v, %v", c, err)
	}
	for _, bad := range [][]string{
		{"-cases", "("}, {"-rates", "0"}, {"-rates", "fast"}, {"-rates", "NaN"}, {"-rounds", "0"}, {"-for", "1ms"}, {"-keys", "9"},
		{"-connections", "0"}, {"first/file"}, {"-unknown"},
	} {
		if c, err := parse(bad, io.Discard); err == nil {
			t.Errorf("%q is taken for %+v", bad, c.options)
		}
	}
}

// The page has the flags that a reader needs, and no paths of the machine.
func TestSettingsOfTheRun(t *testing.T) {
	c, err := parse([]string{"-short", "-json", "/tmp/a", "-rounds=3", "--write=b.md", "-cases", "^first/", "-dir", "/disk", "-against", "/old"}, io.Discard)
	if want := []string{"-short", "-rounds=3", "-cases", "^first/"}; err != nil || !slices.Equal(c.settings, want) {
		t.Errorf("the settings are %q, %v; want %q", c.settings, err, want)
	}
}

func TestAResultIsShownAgain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "result.json")
	text, err := json.Marshal(report.Result{Notes: []string{"A note."}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"-from", file}, &out, io.Discard); err != nil || !strings.Contains(out.String(), "A note.") {
		t.Errorf("it shows %q, %v", out.String(), err)
	}
}
