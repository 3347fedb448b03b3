// Package report reports what became of a request, in our log lines, the access log, placeholders, traces
// and metrics.
package report

import (
	"cmp"
	"net/http"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Observer counts requests. Its methods are called concurrently.
type Observer interface {
	// Request counts a request by the provider of its key, or [Reporter.Label], and its outcome.
	// observed is [Reporter.Observed].
	Request(provider string, o Outcome, observed bool)
	// Differing counts a duplicate whose body differs from the first, by provider as Request does.
	Differing(provider string, observed bool)
	// Overloaded counts a request that was refused because of a limit.
	Overloaded(engine.Limit)
}

// Reporter reports on the requests of a handler.
type Reporter struct {
	Observer  Observer
	Logger    *zap.Logger
	Label     string // metric label of requests without a provider
	Encrypted bool   // the store encrypts, so that no delivery ID is shown
	Observed  bool   // the requests only pass

	differing, silent Sampler
}

// Report is the report of one handler on a request. Its methods are called in the request's goroutine.
type Report struct {
	*Reporter
	r    *http.Request
	info *Info

	key     idempotency.Key
	found   delivery.Found
	outcome Outcome // the last one
	counted bool
}

// Init initializes the report on a request.
func (p *Report) Init(of *Reporter, r *http.Request, info *Info) {
	p.Reporter, p.r, p.info = of, r, info
}

// Name names the delivery and its key.
func (p *Report) Name(key idempotency.Key, found delivery.Found) { p.key, p.found = key, found }

// Key returns the key of the request, and Found its delivery.
func (p *Report) Key() idempotency.Key  { return p.key }
func (p *Report) Found() delivery.Found { return p.found }

// Outcome returns the last outcome that was set.
func (p *Report) Outcome() Outcome { return p.outcome }

// KeyText returns the key in hex, "" if it is not known.
func (p *Report) KeyText() string { return keyText(p.key) }

func keyText(key idempotency.Key) string {
	if key == (idempotency.Key{}) {
		return ""
	}
	return key.String()
}

// MetricLabel returns the metric label of the request.
func (p *Report) MetricLabel() string { return cmp.Or(p.found.Provider, p.Label) }

// Set sets the outcome of the request, as far as it is known, for placeholders, the access log, traces and
// metrics. The execution ID and the number of the attempt may be unknown.
func (p *Report) Set(o Outcome, executionID string, attempt int) {
	p.outcome = o
	switch o {
	case Executed, Forced, Missing, Unusable, Passed, Unprotected: // it may become no_handler
	default:
		p.Count()
	}
	s := p.info
	if o != Missing && o != Unusable && o != Passed || s.key == (idempotency.Key{}) {
		s.outcome = o // else a handler in front has found a key, and its outcome stays
	}
	if p.key != (idempotency.Key{}) {
		s.key = p.key
	}
	s.provider = cmp.Or(p.found.Provider, s.provider)
	s.deliveryID = cmp.Or(p.shownID(), s.deliveryID)
	s.executionID = cmp.Or(executionID, s.executionID)
	s.attempt = cmp.Or(attempt, s.attempt)
	p.trace()
	if s.logged {
		return
	}
	s.logged = true
	if server, ok := p.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && server.Logs == nil {
		return // there is no access log
	}
	if fields, ok := p.r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		fields.Add(zap.Inline(s))
	}
}

// Becomes replaces the outcome that is counted.
func (p *Report) Becomes(o Outcome) { p.outcome = o }

// Count counts the request by its outcome, once. A request without an outcome is one whose store has
// panicked.
func (p *Report) Count() {
	if !p.counted {
		p.counted = true
		p.Observer.Request(p.MetricLabel(), cmp.Or(p.outcome, Unavailable), p.Observed)
	}
}

// Leave keeps the request from being counted.
func (p *Report) Leave() { p.counted = true }

// Differs reports a duplicate whose body differs from the first: its key may be that of several events, of
// which all but the first are lost. executionID is that of the first run.
func (p *Report) Differs(executionID string) {
	p.info.differs = true
	p.Observer.Differing(p.MetricLabel(), p.Observed)
	if leftOut, ok := p.differing.Allow(""); ok {
		p.Logger.Warn("differs: a duplicate has another body than the first request with its key; if these are two events, the key needs more than this ID",
			zap.Inline(p), zap.String("execution_id", executionID), LeftOut(leftOut))
	}
}

// Silent logs, at most once a second, an answer that has nothing of what its mode keeps.
func (p *Report) Silent(why error, status int) {
	if leftOut, ok := p.silent.Allow(""); ok {
		p.Logger.Warn("silent: a request with a key was answered in a form that is never kept, and its repeat runs again",
			zap.Inline(p), zap.Int("status", status), zap.NamedError("reason", why), LeftOut(leftOut))
	}
}

// shownID returns the delivery ID for logs and placeholders. It is "" under encrypt: what the store
// encrypts is not shown.
func (p *Report) shownID() string {
	if p.Encrypted {
		return ""
	}
	return p.found.ID
}

// MarshalLogObject implements [zapcore.ObjectMarshaler], for the request and its delivery in our own log
// lines. The path has no query, which may contain a token.
func (p *Report) MarshalLogObject(to zapcore.ObjectEncoder) error {
	path, _ := OriginalPath(p.r)
	for _, field := range [...][2]string{
		{"method", p.r.Method}, {"host", p.r.Host}, {"path", path},
		{"key", p.KeyText()}, {"provider", p.found.Provider}, {"delivery_id", p.shownID()},
	} {
		if field[1] != "" {
			to.AddString(field[0], field[1])
		}
	}
	if len(p.found.Parts) > 0 && !p.Encrypted {
		zap.Strings("parts", p.found.Parts).AddTo(to)
	}
	return nil
}

// The events of a span.
const (
	Takeover  = "dedup.takeover"
	Wait      = "dedup.wait"
	Replaying = "dedup.replay"
)

// tracePrefix is the prefix of our span attributes.
const tracePrefix = "dedup."

// trace gives the request's span what is known of it. A span that is not recorded costs nothing.
func (p *Report) trace() {
	span := trace.SpanFromContext(p.r.Context())
	if !span.IsRecording() {
		return
	}
	attributes := make([]attribute.KeyValue, 0, len(InfoFields))
	for name, value := range p.info.known {
		switch value := value.(type) {
		case string:
			attributes = append(attributes, attribute.String(tracePrefix+name, value))
		case int:
			attributes = append(attributes, attribute.Int(tracePrefix+name, value))
		}
	}
	span.SetAttributes(attributes...)
}

// Event adds an event to the request's span.
func (p *Report) Event(name string) { trace.SpanFromContext(p.r.Context()).AddEvent(name) }
