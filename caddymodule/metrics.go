package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
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

// The label `provider` of requests of no provider.
const (
	labelAPI    = "api"
	labelCustom = "custom"
)

// storeBuckets are the upper bounds of the histogram of the store's operations, in
// seconds: from a store in this process to Redis at its time limit. Caddy's own histograms
// have classic buckets as well.
var storeBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .1, .5, 1, 5}

// processMetrics are the counters of this process.
var processMetrics = newMetrics()

func init() { stores.Observer = processMetrics }

// metrics are counters. Every series is there from the start: a rule sees no increase of one that
// begins with 1.
type metrics struct {
	requests    *prometheus.CounterVec
	runs        *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	storeErrors *prometheus.CounterVec
	takeovers   prometheus.Counter
	overloads   *prometheus.CounterVec
}

func metricOpts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "caddy", Subsystem: "dedup", Name: name, Help: help}
}

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts(metricOpts(name, help)), labels)
}

func newMetrics() *metrics {
	m := &metrics{
		requests: newCounterVec("requests_total", "Requests with a method that is deduplicated, by outcome.", "provider", "outcome", "observed"),
		runs:     newCounterVec("runs_total", "Runs that have ended, by what became of their claims.", "provider", "result"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "dedup", Name: "store_duration_seconds",
			Help: "How long the operations of the store take.", Buckets: storeBuckets,
		}, []string{"operation"}),
		storeErrors: newCounterVec("store_errors_total", "Operations that the store could not do.", "operation"),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts(metricOpts("takeovers_total",
			"Runs that took over a claim whose lease was not renewed."))),
		overloads: newCounterVec("overloads_total", "How often a limit refused something.", "limit"),
	}
	for _, operation := range engine.Operations {
		m.durations.WithLabelValues(string(operation))
		m.storeErrors.WithLabelValues(string(operation))
	}
	for _, limit := range engine.AllLimits {
		m.overloads.WithLabelValues(string(limit))
	}
	return m
}

// addHandler makes the series of a handler's requests: those of the providers that its
// configuration names, and of requests that are of none of them.
func (m *metrics) addHandler(c exchange.Config) {
	labels := []string{c.Label}
	for _, source := range c.Sources {
		labels = append(labels, cmp.Or(source.Provider, c.Label))
	}
	for _, label := range labels {
		for _, o := range exchange.Outcomes {
			m.requests.WithLabelValues(label, string(o), observedLabel(c.Observe))
		}
		for _, result := range engine.Results {
			m.runs.WithLabelValues(label, string(result))
		}
	}
}

// labelOf returns the label of requests whose key is of no provider: in an API or of a sender that
// has no name. If all keys of a handler are of one provider, requests without a key count as its.
func labelOf(mode delivery.Mode, sources []delivery.Source) string {
	only := sources[0].Provider
	switch {
	case only != "" && !slices.ContainsFunc(sources, func(s delivery.Source) bool { return s.Provider != only }):
		return only
	case mode == delivery.ModeAPI:
		return labelAPI
	default:
		return labelCustom
	}
}

func observedLabel(observed bool) string { return strconv.FormatBool(observed) }

// Request implements [exchange.Observer].
func (m *metrics) Request(provider string, o exchange.Outcome, observed bool) {
	m.requests.WithLabelValues(provider, string(o), observedLabel(observed)).Inc()
}

// RunEnded implements [engine.Observer].
func (m *metrics) RunEnded(provider string, result engine.Result) {
	m.runs.WithLabelValues(provider, string(result)).Inc()
}

// TookOver implements [engine.Observer].
func (m *metrics) TookOver() { m.takeovers.Inc() }

// Overloaded implements [engine.Observer] and [exchange.Observer].
func (m *metrics) Overloaded(limit engine.Limit) { m.overloads.WithLabelValues(string(limit)).Inc() }

// Asked implements [engine.Observer].
func (m *metrics) Asked(operation engine.Operation, took time.Duration, failed bool) {
	m.durations.WithLabelValues(string(operation)).Observe(took.Seconds())
	if failed {
		m.storeErrors.WithLabelValues(string(operation)).Inc()
	}
}

// byOutcome returns how many requests had which outcome, those of all providers together. It
// leaves out those that are only observed.
func (m *metrics) byOutcome() map[string]uint64 {
	series := make(chan prometheus.Metric)
	go func() {
		m.requests.Collect(series)
		close(series)
	}()
	counts := make(map[string]uint64, len(exchange.Outcomes))
	for counter := range series {
		var now dto.Metric
		_ = counter.Write(&now) // it never fails
		labels := make(map[string]string)
		for _, label := range now.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if labels["observed"] == observedLabel(false) {
			counts[labels["outcome"]] += uint64(now.GetCounter().GetValue())
		}
	}
	return counts
}

// gauges are read when the metrics are collected.
type gauges struct{ inFlight, waiters, unreplicated, buffered, localCopies *prometheus.Desc }

func newDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc(prometheus.BuildFQName("caddy", "dedup", name), help, nil, nil)
}

var processGauges = gauges{
	inFlight:     newDesc("in_flight", "Runs in flight, and ends of runs that are not stored yet."),
	waiters:      newDesc("waiting", "Requests that wait for a run."),
	unreplicated: newDesc("unreplicated_total", "Kept responses that were answered before they were on as many replicas as are wanted."),
	buffered:     newDesc("buffered_bytes", "Bytes that are held for requests: bodies, what they are parsed into, responses and replays."),
	localCopies:  newDesc("local_copies_bytes", "Bytes of the kept responses of which this process has copies."),
}

// Describe implements [prometheus.Collector].
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{g.inFlight, g.waiters, g.unreplicated, g.buffered, g.localCopies} {
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
	gauge(g.waiters, float64(now.Waiting))
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
	_ exchange.Observer    = (*metrics)(nil)
	_ prometheus.Collector = gauges{}
)
