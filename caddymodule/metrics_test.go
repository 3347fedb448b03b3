package caddymodule

import (
	"errors"
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// registryOf is a registry with these metrics.
func registryOf(t *testing.T, m *metrics) *prometheus.Registry {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := m.register(registry); err != nil {
		t.Fatal(err)
	}
	return registry
}

// gathered counts the series of each family, as Prometheus stores them, and sums up the
// values of counters and gauges by their labels.
func gathered(t *testing.T, registry *prometheus.Registry) (series map[string]int, values map[string]float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series, values = make(map[string]int), make(map[string]float64)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			n := 1
			if h := metric.GetHistogram(); h != nil {
				n = len(h.GetBucket()) + 3 // +Inf, sum and count
			}
			series[family.GetName()] += n
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			values[name] += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
		}
	}
	return series, values
}

// The providers of a configuration have their series from the start, and nothing of a request
// makes one.
func TestProvidersOfMetrics(t *testing.T) {
	prefixed := "dedup {\nmode webhook\nkey header X-GitHub-Delivery github\nkey header X-Gitlab-Event-UUID gitlab\n" +
		"key parts jangar {\nheader X-Jangar\ncontent optional\n}\n}"
	for name, c := range map[string]struct {
		site  string
		field string // of the delivery ID
		want  string // label
		all   []string
	}{
		"an API":                            {"dedup", "Idempotency-Key", "api", []string{"api"}},
		"an API without a key":              {"dedup", "", "api", []string{"api"}},
		"another sender":                    {"dedup {\nmode webhook\nkey header X-Id\n}", "X-Id", "custom", []string{"custom"}},
		"a prefix":                          {prefixed, "X-GitHub-Delivery", "github", []string{"custom", "github", "gitlab", "jangar"}},
		"another prefix":                    {prefixed, "X-Gitlab-Event-UUID", "gitlab", []string{"custom", "github", "gitlab", "jangar"}},
		"a prefix of parts":                 {prefixed, "X-Jangar", "jangar", []string{"custom", "github", "gitlab", "jangar"}},
		"none of three":                     {prefixed, "", "custom", []string{"custom", "github", "gitlab", "jangar"}},
		"the only prefix, without an ID":    {"dedup {\nmode webhook\nkey header X-Id mine\n}", "", "mine", []string{"mine"}},
		"a prefix beside a key of an API":   {"dedup {\nkey header X-Id mine\nkey header X-Other\n}", "X-Other", "api", []string{"api", "mine"}},
		"a provider":                        {"dedup github", "X-GitHub-Delivery", "github", []string{"github"}},
		"the only provider, without an ID":  {"dedup github", "", "github", []string{"github"}},
		"a key beside a provider":           {"dedup github {\nmode webhook\nkey header X-Id\n}", "X-Id", "custom", []string{"custom", "github"}},
		"a provider with a prefix of its":   {"dedup github {\nmode webhook\nkey header X-Id github\n}", "X-Id", "github", []string{"github"}},
		"no ID of two providers":            {"dedup github gitlab", "", "custom", []string{"custom", "github", "gitlab"}},
		"a provider of an API, without one": {"dedup github {\nmode api\nkey header X-Id\n}", "", "api", []string{"api", "github"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, m := serve(t, c.site, "respond done 201"), newMetrics()
			h := s.handler()
			h.reporter().Observer = m
			m.addHandler(h.identification(), h.reporter().Label, false)
			registry := registryOf(t, m)
			before, _ := gathered(t, registry)
			outcome := "missing"
			if header := []string{c.field, "1"}; c.field != "" {
				outcome = "executed"
				s.mustPost("", "{}", header...)
				if got := s.only().Provider; got != c.want && (got != "" || c.want != "api" && c.want != "custom") {
					t.Errorf("the record has the provider %q", got)
				}
			} else {
				s.mustPost("", "{}")
			}
			after, values := gathered(t, registry)
			if !maps.Equal(before, after) || after["caddy_dedup_requests_total"] != len(c.all)*len(report.Outcomes) || after["caddy_dedup_runs_total"] != len(c.all)*len(engine.Results) {
				t.Errorf("the request changes the series %v to %v", before, after)
			}
			for _, provider := range c.all {
				want := 0.0
				if provider == c.want {
					want = 1
				}
				if got, ok := values["caddy_dedup_requests_total false "+outcome+" "+provider]; !ok || got != want {
					t.Errorf("%s has %v requests, %v; want %v", provider, got, ok, want)
				}
				if _, ok := values["caddy_dedup_runs_total "+provider+" kept"]; !ok {
					t.Errorf("%s has no runs", provider)
				}
			}
		})
	}
}

// The metric is 1 while ready has writes.
func TestMetricOfRefusedWrites(t *testing.T) {
	s := serveWith(t, "limits {\nmemory_store 1MiB\n}", "dedup", "respond done 201")
	s.mustPost("one", "")
	registry := registryOf(t, newMetrics())
	want := func(want float64) {
		t.Helper()
		if _, values := gathered(t, registry); values["caddy_dedup_writes_refused"] != want {
			t.Errorf("the metric is %v, want %v", values["caddy_dedup_writes_refused"], want)
		}
	}
	want(0)
	key := s.listed()[0].Key
	if err := s.keys.Release(t.Context(), key, idempotency.Precondition{}); err != nil {
		t.Fatal(err)
	}
	tooLarge := &idempotency.Response{Status: 200, Body: make([]byte, 1<<20)}
	if err := s.keys.Complete(t.Context(), key, tooLarge, idempotency.Precondition{}); !errors.Is(err, idempotency.ErrTooLarge) {
		t.Fatal(err)
	}
	want(1)
	s.stop() // no configuration uses the store any more
	want(0)
}

// Caddy has a registry for each configuration.
func TestCountersOutliveARegistry(t *testing.T) {
	m := newMetrics()
	for n := 1; n <= 2; n++ {
		registry := prometheus.NewPedanticRegistry()
		for range 2 { // as often as the configuration is provisioned
			if err := m.register(registry); err != nil {
				t.Fatal(err)
			}
		}
		m.TookOver()
		if _, values := gathered(t, registry); values["caddy_dedup_takeovers_total"] != float64(n) {
			t.Errorf("registry %d shows %v takeovers", n, values["caddy_dedup_takeovers_total"])
		}
	}
}
