package exchange

import (
	"cmp"
	"net/http"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Outcomes are all outcomes.
var Outcomes = []Outcome{
	OutcomeExecuted, OutcomeReplayed, OutcomeWaited, OutcomeInFlight, OutcomeReused, OutcomeHeld, OutcomeExhausted, OutcomeForced,
	OutcomeConflict, OutcomeAcknowledged, OutcomeSeeOther, OutcomeMissing, OutcomeUnusable, OutcomePassed, OutcomeInvalid, OutcomeSignatureInvalid, OutcomeTooLarge,
	OutcomeNotKept, OutcomeUnprotected, OutcomeOverloaded, OutcomeUnavailable, OutcomeUnreadable, OutcomeNoHandler, OutcomeLoop,
}

// Outcome is what became of a request, for {http.dedup.outcome}, logs and
// metrics.
type Outcome string

const (
	OutcomeExecuted         Outcome = "executed"
	OutcomeReplayed         Outcome = "replayed"
	OutcomeWaited           Outcome = "waited"
	OutcomeInFlight         Outcome = "in_flight"
	OutcomeReused           Outcome = "reused"
	OutcomeHeld             Outcome = "held"
	OutcomeExhausted        Outcome = "exhausted"
	OutcomeForced           Outcome = "forced"
	OutcomeConflict         Outcome = "conflict"
	OutcomeAcknowledged     Outcome = "acknowledged"
	OutcomeSeeOther         Outcome = "see_other"
	OutcomeMissing          Outcome = "missing"
	OutcomeUnusable         Outcome = "unusable" // a member of the body or a text is there and cannot be a key
	OutcomePassed           Outcome = "passed"   // a handshake of a provider
	OutcomeInvalid          Outcome = "invalid"
	OutcomeSignatureInvalid Outcome = "signature_invalid"
	OutcomeTooLarge         Outcome = "too_large"
	OutcomeNotKept          Outcome = "not_kept"
	OutcomeUnprotected      Outcome = "unprotected"
	OutcomeOverloaded       Outcome = "overloaded"
	OutcomeUnavailable      Outcome = "store_unavailable"
	OutcomeUnreadable       Outcome = "record_unreadable"
	OutcomeNoHandler        Outcome = "no_handler"
	OutcomeLoop             Outcome = "loop"
)

// report sets the outcome of the request, as far as it is known, for placeholders, the access log,
// traces and metrics. It runs in the request's goroutine.
func (x *exchange) report(o Outcome, executionID string, attempt int) {
	x.outcome = o
	switch o {
	case OutcomeExecuted, OutcomeForced, OutcomeMissing, OutcomeUnusable, OutcomePassed, OutcomeUnprotected: // it may become no_handler
	default:
		x.count()
	}
	s := x.info
	if o != OutcomeMissing && o != OutcomeUnusable && o != OutcomePassed || s.key == (idempotency.Key{}) {
		s.outcome = o // else a handler in front has found a key, and its outcome stays
	}
	if x.key != (idempotency.Key{}) {
		s.key = x.key
	}
	s.provider = cmp.Or(x.found.Provider, s.provider)
	s.deliveryID = cmp.Or(x.shownID(), s.deliveryID)
	s.executionID = cmp.Or(executionID, s.executionID)
	s.attempt = cmp.Or(attempt, s.attempt)
	x.trace()
	if s.logged {
		return
	}
	s.logged = true
	if server, ok := x.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok && server.Logs == nil {
		return // there is no access log
	}
	if fields, ok := x.r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields); ok {
		fields.Add(zap.Inline(s))
	}
}

// noteDiffering reports a duplicate whose body differs from the first: its key may be that of several
// events, of which all but the first are lost.
func (x *exchange) noteDiffering(decision engine.Decision) {
	record := engine.DiffersFrom(decision)
	if record == nil {
		return
	}
	x.info.differs = true
	x.Observer.Differing(x.label(), x.Observe)
	if leftOut, ok := x.differingLog.allow(time.Since(start), ""); ok {
		x.Logger.Warn("differs: a duplicate has another body than the first request with its key; if these are two events, the key needs more than this ID",
			zap.Inline(x), zap.String("execution_id", record.ExecutionID), leftOutField(leftOut))
	}
}

// reportPass reports the outcome of a request that passes.
func (x *exchange) reportPass(p pass) {
	if p.outcome == "" {
		x.counted = true
		return
	}
	x.report(p.outcome, "", 0)
}

// count counts the request by its outcome, once. A request without an outcome is one whose store has
// panicked.
func (x *exchange) count() {
	if !x.counted {
		x.counted = true
		x.Observer.Request(x.label(), cmp.Or(x.outcome, OutcomeUnavailable), x.Observe)
	}
}

// label returns the metric label of the request.
func (x *exchange) label() string { return cmp.Or(x.found.Provider, x.Label) }

// PlaceholderPrefix is the prefix of our placeholders.
const PlaceholderPrefix = "http.dedup."

// LogPrefix is the prefix of our fields in the access log.
const LogPrefix = "dedup_"

// requestInfo is what is known of a request and its key, for placeholders, the access log and
// traces. If several dedup handlers see one request, they share it, and the last one that found a key
// wins. A value that this one does not know stays as it was.
type requestInfo struct {
	outcome              Outcome
	key                  idempotency.Key
	provider, deliveryID string
	executionID          string
	attempt              int
	differs              bool // the request is a duplicate whose body differs from the first
	logged               bool // it was added to the access log

	members map[string]member // of the body, by JSON pointer, that were read with the key
	// exchange is that of the last dedup handler, for the other members and the first run.
	exchange *exchange
}

// infoName is the name of a placeholder whose value is the request's info. No configuration can
// contain it. Placeholders have a lock. The request's variables have none, and a dial that a proxy
// in front has abandoned may still read them.
const infoName = "\x00caddy-dedup"

// infoOf returns the info of a request, and adds our placeholders to the request. A placeholder
// without a value is empty. Caddy leaves an unknown one as it is, and a service that gets the text
// `{http.dedup.key}` would take it for one key of many requests.
func infoOf(r *http.Request) *requestInfo {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return new(requestInfo)
	}
	known, _ := repl.Get(infoName)
	if s, ok := known.(*requestInfo); ok {
		return s
	}
	s := new(requestInfo)
	repl.Map(func(name string) (any, bool) {
		if name == infoName {
			return s, true
		}
		name, ours := strings.CutPrefix(name, PlaceholderPrefix)
		if !ours {
			return nil, false
		}
		return s.value(name)
	})
	return s
}

// InfoFields are the names of placeholders, fields of the access log and attributes of spans,
// without their prefixes.
var InfoFields = []string{"outcome", "key", "provider", "delivery_id", "execution_id", "attempt", "differs"}

// value returns the value of a placeholder, "" for none, and whether the placeholder is ours.
func (s *requestInfo) value(name string) (value any, ours bool) {
	switch name {
	case "outcome":
		return string(s.outcome), true
	case "key":
		if s.key == (idempotency.Key{}) {
			return "", true
		}
		return s.key.String(), true
	case "provider":
		return s.provider, true
	case "delivery_id":
		return s.deliveryID, true
	case "execution_id":
		return s.executionID, true
	case "attempt":
		if s.attempt == 0 {
			return "", true
		}
		return s.attempt, true
	case "differs":
		if !s.differs {
			return "", true
		}
		return "true", true
	}
	if pointer, is := strings.CutPrefix(name, membersPrefix); is {
		return s.member(unescaped(pointer)), true
	}
	if name, is := strings.CutPrefix(name, "first."); is {
		return s.exchange.first(name)
	}
	return nil, false
}

// MarshalLogObject implements [zapcore.ObjectMarshaler], for the access log.
func (s *requestInfo) MarshalLogObject(to zapcore.ObjectEncoder) error {
	for _, name := range InfoFields {
		switch value, _ := s.value(name); value := value.(type) {
		case string:
			if value != "" {
				to.AddString(LogPrefix+name, value)
			}
		case int:
			to.AddInt(LogPrefix+name, value)
		}
	}
	return nil
}

// The events of a span.
const (
	spanTakeover = "dedup.takeover"
	spanWait     = "dedup.wait"
	spanReplay   = "dedup.replay"
)

// tracePrefix is the prefix of our span attributes.
const tracePrefix = "dedup."

// trace gives the request's span what is known of it. A span that is not recorded costs nothing.
func (x *exchange) trace() {
	span := trace.SpanFromContext(x.r.Context())
	if !span.IsRecording() {
		return
	}
	attributes := make([]attribute.KeyValue, 0, len(InfoFields))
	for _, name := range InfoFields {
		switch value, _ := x.info.value(name); value := value.(type) {
		case string:
			if value != "" {
				attributes = append(attributes, attribute.String(tracePrefix+name, value))
			}
		case int:
			attributes = append(attributes, attribute.Int(tracePrefix+name, value))
		}
	}
	span.SetAttributes(attributes...)
}

// traceEvent adds an event to the request's span.
func (x *exchange) traceEvent(name string) {
	trace.SpanFromContext(x.r.Context()).AddEvent(name)
}
