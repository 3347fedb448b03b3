package integration

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

// What a page, an alert or a panel says of a metric of ours.
var (
	namedMetric = regexp.MustCompile(`(caddy_dedup_\w*[a-z])\b(?:\{([^}]*)\})?`)
	namedLabel  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"`)
)

// scrapedLabels returns the labels of each metric and their values, as a process shows them.
func scrapedLabels(t *testing.T) map[string]map[string][]string {
	t.Helper()
	p := start(t, conf{store: "store memory", site: lines("dedup", "handle /tried {", dedupBlock("observe"), "}", "respond done 201")})
	found := make(map[string]map[string][]string)
	for name := range p.scrape(t) {
		metric, labels, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		metric = strings.TrimSuffix(metric, "_sum") // what a histogram is called
		if found[metric] == nil {
			found[metric] = make(map[string][]string)
		}
		for _, pair := range namedLabel.FindAllStringSubmatch(labels, -1) {
			found[metric][pair[1]] = append(found[metric][pair[1]], pair[2])
		}
	}
	return found
}

// Pages, alerts and the dashboard name only metrics, labels and values that there are, and the
// pages and the dashboard name each metric. The label instance is Prometheus's own.
func TestNamedMetricsAreReal(t *testing.T) {
	t.Parallel()
	const dashboard = "../docs/grafana.json"
	real, inPages, inDashboard := scrapedLabels(t), make(map[string]bool), make(map[string]bool)
	texts := make(map[string]string)
	for _, p := range docPages(t) {
		texts[p.path] = p.text
	}
	for _, file := range []string{"../docs/alerts.yml", dashboard} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts[file] = string(text)
	}
	for file, text := range texts {
		for _, m := range namedMetric.FindAllStringSubmatch(strings.NewReplacer(`\"`, `"`, `\|`, "|").Replace(text), -1) {
			labels, ok := real[m[1]]
			if !ok {
				t.Errorf("%s: there is no metric %s", file, m[1])
				continue
			}
			name := strings.TrimSuffix(strings.TrimSuffix(m[1], "_bucket"), "_count")
			if file == dashboard {
				inDashboard[name] = true
			} else {
				inPages[name] = true
			}
			for _, pair := range namedLabel.FindAllStringSubmatch(m[2], -1) {
				for value := range strings.SplitSeq(pair[2], "|") {
					own := pair[1] == "provider" && regexp.MustCompile(`(?m)^\s+key .* `+regexp.QuoteMeta(value)+`$`).MatchString(text) // a prefix of the page's
					if pair[1] != "instance" && !own && value != "…" && !strings.HasPrefix(value, "$") && !slices.Contains(labels[pair[1]], value) {
						t.Errorf("%s: %s of %s is never %q; it is one of %q", file, pair[1], m[1], value, labels[pair[1]])
					}
				}
			}
		}
	}
	for metric := range real {
		name := strings.TrimSuffix(strings.TrimSuffix(metric, "_bucket"), "_count")
		if !inPages[name] || !inDashboard[name] {
			t.Errorf("%s is in the pages: %v, and in the dashboard: %v", name, inPages[name], inDashboard[name])
		}
	}
}

// An alert about anything more than nothing neither asks for a rate nor waits: where few requests
// come, that is over before. What the rules say of counters is in testdata/alerts.yml.
func TestAlertsNoticeOneRequest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr, For string }
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		t.Fatal(err)
	}
	moreThanNothing := regexp.MustCompile(`> 0(\s|$)`)
	for _, group := range rules.Groups {
		for _, rule := range group.Rules {
			if moreThanNothing.MatchString(rule.Expr) && (rule.For != "" || strings.Contains(rule.Expr, "rate(")) {
				t.Errorf("%s asks for a rate, or waits for %q", rule.Alert, rule.For)
			}
		}
	}
}
