package caddymodule

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

// outcomes are all outcomes.
var outcomes = []outcome{
	outcomeFresh, outcomeReplayed, outcomeWaited, outcomeInFlight, outcomeReused, outcomeHeld, outcomeExhausted, outcomeForced,
	outcomeConflict, outcomeAcknowledge, outcomeMissing, outcomeInvalid, outcomeTooLarge, outcomeNotKept, outcomeUnprotected,
	outcomeOverloaded, outcomeUnavailable, outcomeUnreadable, outcomeNoHandler, outcomeLoop,
}

// outcome is what became of a request, for {http.dedup.outcome}, logs and
// metrics.
type outcome string

const (
	outcomeFresh       outcome = "fresh"
	outcomeReplayed    outcome = "replayed"
	outcomeWaited      outcome = "waited"
	outcomeInFlight    outcome = "in_flight"
	outcomeReused      outcome = "reused"
	outcomeHeld        outcome = "held"
	outcomeExhausted   outcome = "exhausted"
	outcomeForced      outcome = "forced"
	outcomeConflict    outcome = "conflict"
	outcomeAcknowledge outcome = "acknowledged"
	outcomeMissing     outcome = "missing"
	outcomeInvalid     outcome = "invalid"
	outcomeTooLarge    outcome = "too_large"
	outcomeNotKept     outcome = "not_kept"
	outcomeUnprotected outcome = "unprotected"
	outcomeOverloaded  outcome = "overloaded"
	outcomeUnavailable outcome = "store_unavailable"
	outcomeUnreadable  outcome = "record_unreadable"
	outcomeNoHandler   outcome = "no_handler"
	outcomeLoop        outcome = "loop"
)

// placeholderPrefix is what the names of our placeholders begin with.
const placeholderPrefix = "http.dedup."

// logPrefix is what the names of our fields in the access log begin with.
const logPrefix = "dedup_"

// said is what is known of a request and its key, for placeholders and the access log.
// One request has one, however many handlers of ours it passes: who speaks last counts,
// unless it knows of no key. What is not known stays as it was.
type said struct {
	outcome              outcome
	key                  idempotency.Key
	provider, deliveryID string
	executionID          string
	attempt              int
	logged               bool // the access log will ask
}

// saidName is the placeholder behind which a request has what is said of it; nobody can write
// it in a configuration. It stands among the placeholders, which have a lock, and not among
// the request's variables: those a dial still reads that a proxy in front has left behind.
const saidName = "\x00caddy-dedup"

// saying returns what is said of a request so far, and makes our placeholders known to
// it. Those that have no value are empty: Caddy leaves the text of one that it does not
// know as it stands, and `{http.dedup.key}` itself, handed on to a service, would be one
// key for all requests without one.
func saying(r *http.Request) *said {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return new(said)
	}
	known, _ := repl.Get(saidName)
	if s, ok := known.(*said); ok {
		return s
	}
	s := new(said)
	repl.Map(func(name string) (any, bool) {
		if name == saidName {
			return s, true
		}
		name, ours := strings.CutPrefix(name, placeholderPrefix)
		if !ours {
			return nil, false
		}
		return s.value(name)
	})
	return s
}

// sayables are the names of what is said, as placeholders and fields of the access log.
var sayables = []string{"outcome", "key", "provider", "delivery_id", "execution_id", "attempt"}

// value returns what is said under a name, and whether the name is ours. What has no
// value is an empty text.
func (s *said) value(name string) (value any, ours bool) {
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
func (s *said) MarshalLogObject(to zapcore.ObjectEncoder) error {
	for _, name := range sayables {
		switch value, _ := s.value(name); value := value.(type) {
		case string:
			if value != "" {
				to.AddString(logPrefix+name, value)
			}
		case int:
			to.AddInt(logPrefix+name, value)
		}
	}
	return nil
}

// report tells placeholders and the access log what became of the request, as far
// as it is known. It runs in the request's goroutine.
func (x *exchange) report(o outcome, executionID string, attempt int) {
	x.outcome = o
	switch o {
	case outcomeFresh, outcomeForced, outcomeMissing, outcomeUnprotected: // perhaps no handler answers it
	default:
		x.count()
	}
	s := x.said
	if o != outcomeMissing || s.key == (idempotency.Key{}) {
		s.outcome = o // else a handler in front knows of a key: it says what became of the request
	}
	if x.key != (idempotency.Key{}) {
		s.key = x.key
	}
	s.provider = cmp.Or(x.found.Provider, s.provider)
	if !x.encrypted {
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

// happened says which request a run was for, and what happened to it, for the log
// line about a key that is held or free again: who has to decide whether the upstream
// has executed it needs that. A run whose response is kept has no such line, and no reason.
func (x *exchange) happened(err error, end idempotency.End) (facts []zap.Field, reason string) {
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
