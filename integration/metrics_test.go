package integration

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// series are the series of a process and their values. Each has its name as Prometheus's
// text has it: the metric, and its labels in the order of their names.
type series map[string]float64

var sample = regexp.MustCompile(`(?m)^(caddy_dedup_\w+(?:\{[^}]*\})?) (\S+)$`)

// scrape asks the admin API for the metrics.
func (p *caddy) scrape(t *testing.T) series {
	t.Helper()
	status, text := p.askAdmin(t, "GET", "/metrics", "", "")
	if status != http.StatusOK {
		t.Fatalf("the metrics are answered %d %s", status, text)
	}
	found := make(series)
	for _, match := range sample.FindAllStringSubmatch(text, -1) {
		value, err := strconv.ParseFloat(match[2], 64)
		if err != nil {
			t.Fatalf("%s: %v", match[0], err)
		}
		found[match[1]] = value
	}
	return found
}

// since returns what counters have grown by, without those that have not.
func (s series) since(before series) series {
	grown := make(series)
	for name, value := range s {
		if d := value - before[name]; d != 0 && strings.Contains(name, "_total") {
			grown[name] = d
		}
	}
	return grown
}

func requests(provider, outcome string) string {
	return fmt.Sprintf(`caddy_dedup_requests_total{observed="false",outcome=%q,provider=%q}`, outcome, provider)
}

func runs(provider, result string) string {
	return fmt.Sprintf(`caddy_dedup_runs_total{provider=%q,result=%q}`, provider, result)
}

func eventuallyEqual(t *testing.T, name string, want series, get func() series) {
	t.Helper()
	var got series
	eventually(t, fmt.Sprintf("%s changes the counters by %v", name, want), func() bool {
		got = get()
		for series, value := range got { // one that is too high does not get better
			if value > want[series] {
				t.Fatalf("%s: the counters grew by %v, want %v", name, got, want)
			}
		}
		return maps.Equal(got, want)
	})
}

// Counters go on over a reload, and a client that panics out of its run counts once.
func TestCountersGoOnOverAReload(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, inTurn(answers201, cutStream))
	site := lines(dedupBlock("force X-Force"), proxyTo(up))
	p := start(t, conf{store: "store file", site: site})
	before := p.scrape(t)["caddy_dedup_local_copies_bytes"]
	p.post(t, "/", "k", "body")
	p.post(t, "/", "k", "body")
	if now := p.scrape(t)["caddy_dedup_local_copies_bytes"]; before != 0 || now < 64 {
		t.Errorf("local copies have %v bytes, and %v before there was one", now, before)
	}
	eventually(t, "both are counted", func() bool {
		now := p.scrape(t)
		return now[requests("api", "executed")] == 1 && now[requests("api", "replayed")] == 1 && now[runs("api", "kept")] == 1
	})
	p.reload(t, lines("header X-New 1", site))
	reloaded := p.scrape(t)
	if reloaded[requests("api", "executed")] != 1 || reloaded[requests("api", "replayed")] != 1 {
		t.Errorf("after a reload the counters are %v", reloaded)
	}
	p.post(t, "/", "k", "body")
	_, _ = try(oneShot, p.newPost("/", "k", "body", header("X-Force", "true"))) // its response is cut off
	eventuallyEqual(t, "two more requests", series{requests("api", "replayed"): 1, requests("api", "forced"): 1, runs("api", "released"): 1},
		func() series { return p.scrape(t).since(reloaded) })
}

func TestPromtoolReadsTheMetrics(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("DEDUP_PROMTOOL") != "" {
			t.Fatal(err)
		}
		t.Skip("no promtool in PATH (Debian's package prometheus)")
	}
	p := start(t, conf{store: "store memory", site: lines("dedup", "respond done 201")})
	p.post(t, "/", "k", "body")
	_, text := p.askAdmin(t, "GET", "/metrics", "", "")
	var ours []string
	for line := range strings.Lines(text) {
		if strings.Contains(line, "caddy_dedup_") {
			ours = append(ours, line)
		}
	}
	check := exec.CommandContext(t.Context(), promtool, "check", "metrics")
	check.Stdin = strings.NewReader(strings.Join(ours, ""))
	if out, err := check.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("promtool check metrics: %v\n%s", err, out)
	}
}
