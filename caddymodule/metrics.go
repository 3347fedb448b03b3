package caddymodule

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

// The metrics of this process. Caddy makes a new registry for each configuration, and
// shows that of the latest one: the counters are the process's own, and each registry
// gets them, so that they go on over a reload.

// What the label `provider` says of requests that are of no provider with series of its
// own.
const (
	labelAPI    = "api"
	labelCustom = "custom"
)

// mostProviders is how many providers have series of their own, with [labelAPI] and
// [labelCustom]. All metrics together have at most 400 series, however many providers are
// configured; each takes one for each outcome. Who comes later counts as [labelCustom].
const mostProviders = 13

// storeBuckets are the upper bounds of the histogram of the store's operations, in
// seconds: from a store in this process to Redis at its time limit. Caddy's own histograms
// have classic buckets as well.
var storeBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .1, .5, 1, 5}

// processMetrics are the counters of this process.
var processMetrics = newMetrics()

func init() { stores.Observer = processMetrics }

// metrics are counters, each made beforehand, so that counting looks nothing up and
// allocates nothing, and every series is there from the start: of one that begins with 1,
// a rule sees no increase.
type metrics struct {
	requests    *prometheus.CounterVec
	runs        *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	storeErrors *prometheus.CounterVec
	takeovers   prometheus.Counter
	overloads   *prometheus.CounterVec

	results    map[engine.Result]prometheus.Counter
	operations map[engine.Operation]operationCounts
	limits     map[engine.Limit]prometheus.Counter

	mu        sync.Mutex
	providers map[string]outcomeCounts
}

// operationCounts counts one operation of the stores.
type operationCounts struct {
	took   prometheus.Observer
	failed prometheus.Counter
}

// outcomeCounts counts what becomes of the requests of one provider.
type outcomeCounts map[exchange.Outcome]prometheus.Counter

func metricOpts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "caddy", Subsystem: "dedup", Name: name, Help: help}
}

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts(metricOpts(name, help)), labels)
}

func newMetrics() *metrics {
	m := &metrics{
		requests: newCounterVec("requests_total", "Requests with a method that is deduplicated, by what became of them.", "provider", "outcome"),
		runs:     newCounterVec("runs_total", "Runs that have ended, by what became of their claims.", "result"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "dedup", Name: "store_duration_seconds",
			Help: "How long the operations of the store take.", Buckets: storeBuckets,
		}, []string{"operation"}),
		storeErrors: newCounterVec("store_errors_total", "Operations that the store could not do.", "operation"),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts(metricOpts("takeovers_total",
			"Runs that took over a claim whose lease was not renewed."))),
		overloads:  newCounterVec("overloads_total", "How often a limit refused something.", "limit"),
		results:    make(map[engine.Result]prometheus.Counter),
		operations: make(map[engine.Operation]operationCounts),
		limits:     make(map[engine.Limit]prometheus.Counter),
		providers:  make(map[string]outcomeCounts),
	}
	for _, result := range engine.Results {
		m.results[result] = m.runs.WithLabelValues(string(result))
	}
	for _, operation := range engine.Operations {
		m.operations[operation] = operationCounts{
			m.durations.WithLabelValues(string(operation)), m.storeErrors.WithLabelValues(string(operation)),
		}
	}
	for _, limit := range engine.AllLimits {
		m.limits[limit] = m.overloads.WithLabelValues(string(limit))
	}
	m.provider(labelAPI)
	m.provider(labelCustom)
	return m
}

// RunEnded implements [engine.Observer].
func (m *metrics) RunEnded(result engine.Result) { m.results[result].Inc() }

// TookOver implements [engine.Observer].
func (m *metrics) TookOver() { m.takeovers.Inc() }

// Overloaded implements [engine.Observer].
func (m *metrics) Overloaded(limit engine.Limit) { m.limits[limit].Inc() }

// Asked implements [engine.Observer].
func (m *metrics) Asked(operation engine.Operation, took time.Duration, failed bool) {
	counts := m.operations[operation]
	counts.took.Observe(took.Seconds())
	if failed {
		counts.failed.Inc()
	}
}

// provider returns the counters of a provider: its own, or those of [labelCustom], where
// too many have some.
func (m *metrics) provider(name string) outcomeCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if counts, ok := m.providers[name]; ok {
		return counts
	}
	if len(m.providers) == mostProviders {
		return m.providers[labelCustom]
	}
	counts := make(outcomeCounts)
	for _, o := range exchange.Outcomes {
		counts[o] = m.requests.WithLabelValues(name, string(o))
	}
	m.providers[name] = counts
	return counts
}

// byOutcome returns how many requests had which outcome, those of all providers together.
func (m *metrics) byOutcome() map[string]uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	counts := make(map[string]uint64, len(exchange.Outcomes))
	for _, provider := range m.providers {
		for o, counter := range provider {
			var now dto.Metric
			if err := counter.Write(&now); err == nil { // it never fails
				counts[string(o)] += uint64(now.GetCounter().GetValue())
			}
		}
	}
	return counts
}

// requestCounts counts the requests of one handler.
type requestCounts struct {
	providers map[string]outcomeCounts
	// others are of no provider, as far as is known.
	others outcomeCounts
}

// requestsOf returns the counters for the requests of a handler. Those that are known to be
// of no provider are of an API or of a sender of the user's own. Where there is only one
// sender, those without a delivery ID are its, too.
func (m *metrics) requestsOf(h *Handler) requestCounts {
	counts := requestCounts{providers: make(map[string]outcomeCounts)}
	for _, name := range h.Providers {
		counts.providers[name] = m.provider(name)
	}
	switch {
	case len(h.Providers) == 1 && len(h.Keys) == 0:
		counts.others = m.provider(h.Providers[0])
	case h.Mode == string(delivery.ModeAPI):
		counts.others = m.provider(labelAPI)
	default:
		counts.others = m.provider(labelCustom)
	}
	return counts
}

// Request implements [exchange.Observer].
func (c requestCounts) Request(provider string, o exchange.Outcome) {
	counts, ok := c.providers[provider]
	if !ok {
		counts = c.others
	}
	counts[o].Inc()
}

// Overloaded implements [exchange.Observer].
func (requestCounts) Overloaded(limit engine.Limit) { processMetrics.Overloaded(limit) }

// gauges are what is read when somebody asks for the metrics.
type gauges struct{ inFlight, waiting, unreplicated, buffered, localCopies *prometheus.Desc }

func newDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("caddy", "dedup", name), help, nil, nil)
}

var processGauges = gauges{
	inFlight:     newDesc("in_flight", "Runs in flight, and ends of runs that are not stored yet."),
	waiting:      newDesc("waiting", "Requests that wait for a run."),
	unreplicated: newDesc("unreplicated_total", "Kept responses that were answered before they were on as many replicas as are wanted."),
	buffered:     newDesc("buffered_bytes", "Bytes that are held for requests: bodies, responses and replays."),
	localCopies:  newDesc("local_copies_bytes", "Bytes of the kept responses of which this process has copies."),
}

// Describe implements [prometheus.Collector].
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{g.inFlight, g.waiting, g.unreplicated, g.buffered, g.localCopies} {
		to <- desc
	}
}

// Collect implements [prometheus.Collector]. It asks no store.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	now := stores.InProgress()
	gauge := func(desc *prometheus.Desc, value float64) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value)
	}
	gauge(g.inFlight, float64(now.InFlight))
	gauge(g.waiting, float64(now.Waiting))
	gauge(g.buffered, float64(buffered.Used()))
	gauge(g.localCopies, float64(localCopies.Bytes()))
	to <- prometheus.MustNewConstMetric(g.unreplicated, prometheus.CounterValue, float64(now.Unreplicated))
}

// register puts the metrics into the registry of a configuration.
func (m *metrics) register(registry prometheus.Registerer) error {
	for _, collector := range []prometheus.Collector{
		m.requests, m.runs, m.durations, m.storeErrors, m.takeovers, m.overloads, processGauges,
	} {
		err := registry.Register(collector)
		if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !ok {
			return fmt.Errorf("registering the metrics: %w", err)
		}
	}
	return nil
}

var (
	_ engine.Observer      = (*metrics)(nil)
	_ prometheus.Collector = gauges{}
)
