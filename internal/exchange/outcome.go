package exchange

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Outcomes are all outcomes.
var Outcomes = []Outcome{
	OutcomeExecuted, OutcomeReplayed, OutcomeWaited, OutcomeInFlight, OutcomeReused, OutcomeHeld, OutcomeExhausted, OutcomeForced,
	OutcomeConflict, OutcomeAcknowledged, OutcomeSeeOther, OutcomeMissing, OutcomePassed, OutcomeInvalid, OutcomeTooLarge,
	OutcomeNotKept, OutcomeUnprotected, OutcomeOverloaded, OutcomeUnavailable, OutcomeUnreadable, OutcomeNoHandler, OutcomeLoop,
}

// Outcome is what became of a request, for {http.dedup.outcome}, logs and
// metrics.
type Outcome string

const (
	OutcomeExecuted     Outcome = "executed"
	OutcomeReplayed     Outcome = "replayed"
	OutcomeWaited       Outcome = "waited"
	OutcomeInFlight     Outcome = "in_flight"
	OutcomeReused       Outcome = "reused"
	OutcomeHeld         Outcome = "held"
	OutcomeExhausted    Outcome = "exhausted"
	OutcomeForced       Outcome = "forced"
	OutcomeConflict     Outcome = "conflict"
	OutcomeAcknowledged Outcome = "acknowledged"
	OutcomeSeeOther     Outcome = "see_other"
	OutcomeMissing      Outcome = "missing"
	OutcomePassed       Outcome = "passed" // a handshake of a provider
	OutcomeInvalid      Outcome = "invalid"
	OutcomeTooLarge     Outcome = "too_large"
	OutcomeNotKept      Outcome = "not_kept"
	OutcomeUnprotected  Outcome = "unprotected"
	OutcomeOverloaded   Outcome = "overloaded"
	OutcomeUnavailable  Outcome = "store_unavailable"
	OutcomeUnreadable   Outcome = "record_unreadable"
	OutcomeNoHandler    Outcome = "no_handler"
	OutcomeLoop         Outcome = "loop"
)

// PlaceholderPrefix is what the names of our placeholders begin with.
const PlaceholderPrefix = "http.dedup."

// LogPrefix is what the names of our fields in the access log begin with.
const LogPrefix = "dedup_"

// requestInfo is what is known of a request and its key, for placeholders and the access log.
// One request has one, however many handlers of ours it passes: who speaks last counts,
// unless it knows of no key. What is not known stays as it was.
type requestInfo struct {
	outcome              Outcome
	key                  idempotency.Key
	provider, deliveryID string
	executionID          string
	attempt              int
	logged               bool // the access log will ask
}

// infoName is the placeholder behind which a request has what is said of it; nobody can write
// it in a configuration. It stands among the placeholders, which have a lock, and not among
// the request's variables: those a dial still reads that a proxy in front has left behind.
const infoName = "\x00caddy-dedup"

// infoOf returns what is known of a request so far, and makes our placeholders known to
// it. Those that have no value are empty: Caddy leaves the text of one that it does not
// know as it stands, and `{http.dedup.key}` itself, handed on to a service, would be one
// key for all requests without one.
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

// InfoFields are the names of what is said, as placeholders and fields of the access log.
var InfoFields = []string{"outcome", "key", "provider", "delivery_id", "execution_id", "attempt"}

// value returns what is said under a name, and whether the name is ours. What has no
// value is an empty text.
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
	default:
		return nil, false
	}
}

// MarshalLogObject implements [zapcore.ObjectMarshaler]: the access log asks when the
// request is over.
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

// report tells placeholders and the access log what became of the request, as far
// as it is known. It runs in the request's goroutine.
func (x *exchange) report(o Outcome, executionID string, attempt int) {
	x.outcome = o
	switch o {
	case OutcomeExecuted, OutcomeForced, OutcomeMissing, OutcomePassed, OutcomeUnprotected: // perhaps no handler answers it
	default:
		x.count()
	}
	s := x.info
	if o != OutcomeMissing && o != OutcomePassed || s.key == (idempotency.Key{}) {
		s.outcome = o // else a handler in front knows of a key: it says what became of the request
	}
	if x.key != (idempotency.Key{}) {
		s.key = x.key
	}
	s.provider = cmp.Or(x.found.Provider, s.provider)
	if !x.Encrypted {
		s.deliveryID = cmp.Or(x.found.ID, s.deliveryID)
	}
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

// runLogFields says which request a run was for, and what happened to it, for the log
// line about a key that is held or free again: who has to decide whether the upstream
// has executed it needs that. A run whose response is kept has no such line, and no reason.
func (x *exchange) runLogFields(err error, end idempotency.End) (facts []zap.Field, reason string) {
	if end.How == idempotency.Answered && end.Response != nil && end.Response.Status < 300 && end.UpstreamStatus < 300 {
		return nil, ""
	}
	path, _ := asSent(x.r) // now: the line may come long after the request
	facts = []zap.Field{zap.String("method", x.r.Method), zap.String("host", x.r.Host), zap.String("path", path)}
	if repl, ok := x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		if _, chosen := repl.Get(upstreamAddress); chosen {
			host, _ := repl.GetString("http.reverse_proxy.upstream.hostport")
			facts = append(facts, zap.String("upstream", host))
		}
	}
	cause := causeOf(err, end)
	if cause != nil {
		reason = cause.Error()
		reason = strings.ToValidUTF8(reason[:min(len(reason), idempotency.MaxReason)], "")
	}
	return append(facts, zap.NamedError("error", cause)), reason
}

// MarshalLogObject implements [zapcore.ObjectMarshaler]: it says which request it is. The
// path comes without the query, which may have a token.
func (x *exchange) MarshalLogObject(to zapcore.ObjectEncoder) error {
	path, _ := asSent(x.r)
	to.AddString("method", x.r.Method)
	to.AddString("host", x.r.Host)
	to.AddString("path", path)
	return nil
}

// causeOf says why a run ended otherwise than with a whole response, nil if it did not.
func causeOf(err error, end idempotency.End) error {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.Is(err, errAborted):
		return errors.New("the response was cut off, or a handler was aborted")
	case errors.As(err, &handlerError) && handlerError.Err != nil:
		return handlerError.Err
	case err != nil:
		return err
	case end.How == idempotency.Answered && end.UpstreamStatus != 0:
		return fmt.Errorf("the upstream answered with %d", end.UpstreamStatus)
	case end.How == idempotency.Unknown:
		return errors.New("the response was cut off, or the run was cancelled")
	default:
		return nil
	}
}

// count counts the request by its outcome, once. One without an outcome has panicked over a
// store.
func (x *exchange) count() {
	if !x.counted {
		x.counted = true
		x.Observer.Request(x.label(), cmp.Or(x.outcome, OutcomeUnavailable), x.Observe)
	}
}

// label is the provider under which the request counts.
func (x *exchange) label() string { return cmp.Or(x.found.Provider, x.Label) }
