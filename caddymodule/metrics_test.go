package caddymodule

import (
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

// gathered counts the series of each family, as Prometheus stores them, and sums up the
// values of counters by their labels.
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
			values[name] += metric.GetCounter().GetValue()
		}
	}
	return series, values
}

// However many providers are configured, there are at most 400 series, and no request is
// left out.
func TestSeriesAreBounded(t *testing.T) {
	m, registry := newMetrics(), prometheus.NewPedanticRegistry()
	if err := m.register(registry); err != nil {
		t.Fatal(err)
	}
	requests := 0
	for _, provider := range delivery.Providers() {
		for _, mode := range []delivery.Mode{delivery.ModeWebhook, delivery.ModeAPI} {
			h := &Handler{Settings: Settings{Providers: []string{provider.Name}, Mode: string(mode), Keys: []KeySource{{}}}}
			counts := m.requestsOf(h)
			for _, o := range exchange.Outcomes {
				for _, found := range []string{provider.Name, ""} {
					counts.Request(found, o)
					requests++
				}
			}
		}
	}
	for _, operation := range engine.Operations {
		m.Asked(operation, time.Millisecond, true)
	}
	for _, limit := range engine.AllLimits {
		m.Overloaded(limit)
	}
	for _, result := range engine.Results {
		m.RunEnded(result)
	}
	m.TookOver()
	series, values := gathered(t, registry)
	sum := 0
	for _, n := range series {
		sum += n
	}
	if sum > 400 {
		t.Errorf("%d series: %v; want at most 400", sum, series)
	}
	for _, name := range []string{
		"caddy_dedup_requests_total", "caddy_dedup_runs_total", "caddy_dedup_store_duration_seconds", "caddy_dedup_store_errors_total",
		"caddy_dedup_in_flight", "caddy_dedup_waiting", "caddy_dedup_takeovers_total", "caddy_dedup_overloads_total",
		"caddy_dedup_unreplicated_total", "caddy_dedup_buffered_bytes", "caddy_dedup_local_copies_bytes",
	} {
		if series[name] == 0 {
			t.Errorf("there is no %s", name)
		}
	}
	total := 0.0
	for name, value := range values {
		if len(name) > 27 && name[:26] == "caddy_dedup_requests_total" {
			total += value
		}
	}
	if total != float64(requests) {
		t.Errorf("%v requests are counted, want %d", total, requests)
	}
	if n := series["caddy_dedup_requests_total"]; n != mostProviders*len(exchange.Outcomes) {
		t.Errorf("requests have %d series, want %d", n, mostProviders*len(exchange.Outcomes))
	}
}

// Of which provider a request counts that brought none.
func TestProviderOfARequest(t *testing.T) {
	for name, c := range map[string]struct {
		settings Settings
		found    string
		want     string
	}{
		"an API":                                {Settings{Mode: "api"}, "", "api"},
		"an API with keys":                      {Settings{Mode: "api", Keys: []KeySource{{}}}, "", "api"},
		"keys of webhooks":                      {Settings{Mode: "webhook", Keys: []KeySource{{}}}, "", "custom"},
		"a provider":                            {Settings{Mode: "webhook", Providers: []string{"github"}}, "github", "github"},
		"the only provider, without an ID":      {Settings{Mode: "webhook", Providers: []string{"github"}}, "", "github"},
		"one of two":                            {Settings{Mode: "webhook", Providers: []string{"github", "stripe"}}, "stripe", "stripe"},
		"none of two":                           {Settings{Mode: "webhook", Providers: []string{"github", "stripe"}}, "", "custom"},
		"a key beside the only provider":        {Settings{Mode: "webhook", Providers: []string{"github"}, Keys: []KeySource{{}}}, "", "custom"},
		"a provider of an API":                  {Settings{Mode: "api", Providers: []string{"github"}}, "github", "github"},
		"no ID of the two providers of one API": {Settings{Mode: "api", Providers: []string{"github", "stripe"}}, "", "api"},
	} {
		t.Run(name, func(t *testing.T) {
			m, registry := newMetrics(), prometheus.NewPedanticRegistry()
			if err := m.register(registry); err != nil {
				t.Fatal(err)
			}
			m.requestsOf(&Handler{Settings: c.settings}).Request(c.found, exchange.OutcomeReplayed)
			if _, values := gathered(t, registry); values["caddy_dedup_requests_total replayed "+c.want] != 1 {
				t.Errorf("it does not count as %s: %v", c.want, values)
			}
		})
	}
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

// A healthy request makes at most two allocations more than without metrics.
func TestMetricsAllocateNothing(t *testing.T) {
	allocations := func(metrics bool) (first, duplicate float64) {
		if !metrics {
			stores.Observer = nil
			defer func() { stores.Observer = processMetrics }()
		}
		s := serveWith(t, "", "dedup", "respond done 201")
		if !metrics {
			s.handler().exchange.Observer = noopObserver{}
		}
		n := 0
		first = testing.AllocsPerRun(200, func() { n++; post(s.Config.Handler, strconv.Itoa(n)) })
		duplicate = testing.AllocsPerRun(200, func() { post(s.Config.Handler, "1") })
		s.stop()
		return first, duplicate
	}
	first, duplicate := allocations(true)
	firstWithout, duplicateWithout := allocations(false)
	if first > firstWithout+2 || duplicate > duplicateWithout+2 {
		t.Errorf("a first request makes %v allocations, %v without metrics; a duplicate %v, and %v", first, firstWithout, duplicate, duplicateWithout)
	}
	m := newMetrics()
	counts := m.requestsOf(&Handler{Settings: Settings{Providers: []string{"github"}}})
	if n := testing.AllocsPerRun(100, func() {
		counts.Request("github", exchange.OutcomeFresh)
		m.RunEnded(engine.ResultKept)
		m.Asked(engine.OperationClaim, time.Millisecond, false)
	}); n != 0 {
		t.Errorf("counting makes %v allocations", n)
	}
}

type noopObserver struct{}

func (noopObserver) Request(string, exchange.Outcome) {}
func (noopObserver) Overloaded(engine.Limit)          {}
