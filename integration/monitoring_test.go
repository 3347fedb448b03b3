package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// What a query of PromQL says of a metric of ours.
var (
	queried = regexp.MustCompile(`(caddy_dedup_\w+)(?:\{([^}]*)\})?`)
	matcher = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
	// atAll asks whether something is more than nothing.
	atAll   = regexp.MustCompile(`> 0(\s|$)`)
	grouped = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
)

// scraped are the labels of each metric and their values, as a process shows them.
type scraped map[string]map[string][]string

func scrapedLabels(t *testing.T) scraped {
	t.Helper()
	p := start(t, conf{store: "store memory", site: lines("dedup", "handle /tried {", dedupBlock("observe"), "}", "respond done 201")})
	found := make(scraped)
	for name := range p.scrape(t) {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		if found[metric] == nil {
			found[metric] = make(map[string][]string)
		}
		for _, pair := range matcher.FindAllStringSubmatch(labels, -1) {
			found[metric][pair[1]] = append(found[metric][pair[1]], pair[2])
		}
	}
	return found
}

// wantQuery fails unless a query asks only for metrics, labels and values that there are.
// The label instance is Prometheus's own.
func (s scraped) wantQuery(t *testing.T, where, query string) {
	t.Helper()
	metrics := queried.FindAllStringSubmatch(query, -1)
	if len(metrics) == 0 {
		t.Errorf("%s asks for no metric of ours: %s", where, query)
	}
	for _, m := range metrics {
		labels, ok := s[m[1]]
		if !ok {
			t.Errorf("%s: there is no metric %s", where, m[1])
			continue
		}
		for _, pair := range matcher.FindAllStringSubmatch(m[2], -1) {
			name, values := pair[1], pair[2]
			if name == "instance" {
				continue
			}
			if labels[name] == nil {
				t.Errorf("%s: %s has no label %s", where, m[1], name)
			}
			for value := range strings.SplitSeq(values, "|") {
				if !strings.HasPrefix(value, "$") && !slices.Contains(labels[name], value) {
					t.Errorf("%s: %s of %s is never %q; it is one of %q", where, name, m[1], value, labels[name])
				}
			}
		}
		for _, by := range grouped.FindAllStringSubmatch(query, -1) {
			for name := range strings.SplitSeq(by[1], ",") {
				if name = strings.TrimSpace(name); name != "instance" && labels[name] == nil {
					t.Errorf("%s: %s has no label %s", where, m[1], name)
				}
			}
		}
	}
}

// used are the metrics that queries ask for.
func used(queries []string) map[string]bool {
	found := make(map[string]bool)
	for _, query := range queries {
		for _, m := range queried.FindAllStringSubmatch(query, -1) {
			found[m[1]] = true
		}
	}
	return found
}

func TestAlertsAskForRealMetrics(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr, For string
				Annotations      map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	real := scrapedLabels(t)
	var queries []string
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			real.wantQuery(t, rule.Alert, rule.Expr)
			queries = append(queries, rule.Expr)
			if atAll.MatchString(rule.Expr) && (rule.For != "" || strings.Contains(rule.Expr, "rate(")) {
				t.Errorf("%s asks for a rate, or waits for %q: where few requests come, that is over before", rule.Alert, rule.For)
			}
			if rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s does not say what it means", rule.Alert)
			}
		}
	}
	all := used(queries)
	for _, metric := range []string{
		"caddy_dedup_requests_total", "caddy_dedup_runs_total", "caddy_dedup_store_errors_total", "caddy_dedup_takeovers_total",
		"caddy_dedup_overloads_total", "caddy_dedup_unreplicated_total", "caddy_dedup_store_duration_seconds_bucket",
	} {
		if !all[metric] {
			t.Errorf("no alert asks for %s", metric)
		}
	}
	if promtool, err := exec.LookPath("promtool"); err == nil {
		if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "../docs/alerts.yml").CombinedOutput(); err != nil {
			t.Errorf("promtool check rules: %v\n%s", err, out)
		}
		if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", "testdata/alerts.yml").CombinedOutput(); err != nil {
			t.Errorf("promtool test rules: %v\n%s", err, out)
		}
	} else if os.Getenv("DEDUP_PROMTOOL") != "" {
		t.Fatal(err)
	}
}

func TestDashboardAsksForRealMetrics(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/grafana.json")
	if err != nil {
		t.Fatal(err)
	}
	type source struct{ Type, UID string }
	var dashboard struct {
		Title, UID    string
		SchemaVersion int
		Templating    struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			ID          int
			Type, Title string
			Datasource  source
			GridPos     struct{ X, Y, W, H int }
			Targets     []struct {
				Datasource   source
				Expr, RefID  string
				LegendFormat string
			}
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.Title == "" || dashboard.UID == "" || dashboard.SchemaVersion < 30 || len(dashboard.Panels) == 0 {
		t.Errorf("the dashboard is %+v", dashboard)
	}
	variables := make(map[string]string)
	for _, v := range dashboard.Templating.List {
		variables[v.Name] = v.Type
	}
	if variables["datasource"] != "datasource" {
		t.Errorf("its variables are %v; the data source is not one", variables)
	}
	real := scrapedLabels(t)
	ids := make(map[int]bool)
	var queries []string
	for _, panel := range dashboard.Panels {
		if ids[panel.ID] || panel.Title == "" || panel.GridPos.W == 0 || panel.GridPos.X+panel.GridPos.W > 24 || len(panel.Targets) == 0 {
			t.Errorf("the panel %+v is not one of its own, or has no place", panel)
		}
		ids[panel.ID] = true
		for _, target := range panel.Targets {
			if target.Datasource.UID != "${datasource}" || panel.Datasource.UID != "${datasource}" {
				t.Errorf("%s asks %+v", panel.Title, target.Datasource)
			}
			real.wantQuery(t, panel.Title, target.Expr)
			queries = append(queries, target.Expr)
			for _, name := range regexp.MustCompile(`\$(\w+)`).FindAllStringSubmatch(target.Expr, -1) {
				if _, ours := variables[name[1]]; !ours && !strings.HasPrefix(name[1], "__") {
					t.Errorf("%s uses the variable %s, which is not there", panel.Title, name[0])
				}
			}
		}
	}
	all := used(queries)
	for metric := range real {
		if base := strings.TrimSuffix(metric, "_sum"); !all[metric] && base == metric {
			t.Errorf("the dashboard does not show %s", metric)
		}
	}
}
