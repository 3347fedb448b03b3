package caddymodule

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// Caddy creates a registry for each configuration and serves that of the latest one. The counters
// belong to the process and are registered with each registry, so they survive a reload.

// The label `provider` of requests without a provider.
const (
	labelAPI    = "api"
	labelCustom = "custom"
)

// storeBuckets are the buckets of store operations, in seconds: from a local store to Redis at
// its timeout. They are classic buckets, as those of Caddy's own histograms.
var storeBuckets = []float64{.0005, .001, .0025, .005, .01, .025, .1, .5, 1, 5}

// processMetrics are the counters of this process.
var processMetrics = newMetrics()

func init() { stores.Observer = processMetrics }

// metrics are counters. Every series exists from the start: Prometheus sees no increase in a
// series whose first sample is 1.
type metrics struct {
	providers   sync.Map // the labels of all handlers so far
	requests    *prometheus.CounterVec
	runs        *prometheus.CounterVec
	durations   *prometheus.HistogramVec
	storeErrors *prometheus.CounterVec
	takeovers   prometheus.Counter
	bodies      prometheus.Counter
	differing   *prometheus.CounterVec
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
		runs:     newCounterVec("runs_total", "Completed runs, by what happened to their claims.", "provider", "result"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "caddy", Subsystem: "dedup", Name: "store_duration_seconds",
			Help: "Duration of store operations.", Buckets: storeBuckets,
		}, []string{"operation"}),
		storeErrors: newCounterVec("store_errors_total", "Failed store operations.", "operation"),
		takeovers: prometheus.NewCounter(prometheus.CounterOpts(metricOpts("takeovers_total",
			"Runs that took over a claim whose lease was not renewed."))),
		bodies: prometheus.NewCounter(prometheus.CounterOpts(metricOpts("bodies_dropped_total",
			"Responses kept without their bodies because the store could not take them."))),
		differing: newCounterVec("differing_total", "Duplicates whose body differs from the first request with their key.", "provider", "observed"),
		overloads: newCounterVec("overloads_total", "Requests and copies refused by a limit.", "limit"),
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

// addHandler creates the series of a handler: one set for each of its providers, and one for
// requests without a provider.
func (m *metrics) addHandler(c identify.Config, label string, observed bool) {
	labels := []string{label}
	for _, source := range c.Sources {
		labels = append(labels, cmp.Or(source.Provider, label))
	}
	for _, label := range labels {
		m.providers.Store(label, nil)
		for _, o := range report.Outcomes {
			m.requests.WithLabelValues(label, string(o), strconv.FormatBool(observed))
		}
		m.differing.WithLabelValues(label, strconv.FormatBool(observed))
		for _, result := range engine.Results {
			m.runs.WithLabelValues(label, string(result))
		}
	}
}

// labelOf returns the label of requests without a provider. If all keys of a handler belong to
// one provider, requests without a key are counted under it.
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

// Request implements [report.Observer].
func (m *metrics) Request(provider string, o report.Outcome, observed bool) {
	m.requests.WithLabelValues(provider, string(o), strconv.FormatBool(observed)).Inc()
}

// Differing implements [report.Observer].
func (m *metrics) Differing(provider string, observed bool) {
	m.differing.WithLabelValues(provider, strconv.FormatBool(observed)).Inc()
}

// RunEnded implements [engine.Observer].
func (m *metrics) RunEnded(provider string, result engine.Result) {
	m.runs.WithLabelValues(provider, string(result)).Inc()
}

// TookOver implements [engine.Observer].
func (m *metrics) TookOver() { m.takeovers.Inc() }

// BodyDropped implements [engine.Observer].
func (m *metrics) BodyDropped() { m.bodies.Inc() }

// Overloaded implements [engine.Observer] and [report.Observer].
func (m *metrics) Overloaded(limit engine.Limit) { m.overloads.WithLabelValues(string(limit)).Inc() }

// Asked implements [engine.Observer].
func (m *metrics) Asked(operation engine.Operation, took time.Duration, failed bool) {
	m.durations.WithLabelValues(string(operation)).Observe(took.Seconds())
	if failed {
		m.storeErrors.WithLabelValues(string(operation)).Inc()
	}
}

// byOutcome returns the number of requests with each outcome, over all providers and without
// observed ones.
func (m *metrics) byOutcome() map[string]uint64 {
	series := make(chan prometheus.Metric)
	go func() {
		m.requests.Collect(series)
		close(series)
	}()
	counts := make(map[string]uint64, len(report.Outcomes))
	for counter := range series {
		var now dto.Metric
		_ = counter.Write(&now) // it never fails
		labels := make(map[string]string)
		for _, label := range now.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if labels["observed"] == "false" {
			counts[labels["outcome"]] += uint64(now.GetCounter().GetValue())
		}
	}
	return counts
}

func newGauge(name, help string, value func() float64) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts(metricOpts(name, help)), value)
}

func newTotal(name, help string, value func(storepool.InProgress) int64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts(metricOpts(name, help)), func() float64 { return float64(value(stores.InProgress())) })
}

// measured are the metrics that are read when they are collected. They ask no store.
var measured = []prometheus.Collector{
	newGauge("in_flight", "Runs in flight, including those whose end is not stored yet.", func() float64 { return float64(stores.InProgress().InFlight) }),
	newGauge("waiting", "Requests that wait for a run.", func() float64 { return float64(stores.InProgress().Waiting) }),
	newGauge("writes_refused", "1 while a store refuses or loses writes although it can be read, until a minute after the last one.", func() float64 {
		if stores.InProgress().WritesRefused {
			return 1
		}
		return 0
	}),
	newGauge("buffered_bytes", "Bytes held for requests: bodies, parsed bodies, responses and replays.", func() float64 { return float64(buffered.Used()) }),
	newGauge("local_copies_bytes", "Bytes of kept responses copied in this process.", func() float64 { return float64(localCopies.Bytes()) }),
	newTotal("unreplicated_total", "Kept responses sent to the client before wait_replicas replicas had them.", func(n storepool.InProgress) int64 { return n.Unreplicated }),
	newTotal("store_damages_total", "Damaged data found in a store.", func(n storepool.InProgress) int64 { return n.Damages }),
}

// register registers the metrics with the registry of a configuration.
func (m *metrics) register(registry prometheus.Registerer) error {
	counters := []prometheus.Collector{m.requests, m.runs, m.durations, m.storeErrors, m.takeovers, m.bodies, m.differing, m.overloads}
	for _, collector := range slices.Concat(counters, measured) {
		err := registry.Register(collector)
		if _, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); err != nil && !ok {
			return fmt.Errorf("registering the metrics: %w", err)
		}
	}
	return nil
}

var (
	_ engine.Observer = (*metrics)(nil)
	_ report.Observer = (*metrics)(nil)
)
