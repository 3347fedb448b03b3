package exchange

import (
	"cmp"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

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

// report sets what became of the request, as far as it is known, for placeholders, the access
// log, traces and metrics. It runs in the request's goroutine.
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
