package caddymodule

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
)

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
)

// placeholderPrefix is what the names of our placeholders begin with.
const placeholderPrefix = "http.dedup."

// placeholderNames are our placeholders, without their prefix.
var placeholderNames = []string{"outcome", "key", "provider", "delivery_id", "execution_id", "attempt"}

// introducePlaceholders makes our placeholders empty until they have a value. Caddy
// leaves the text of one that it does not know as it stands: handed on to a service,
// `{http.dedup.key}` itself would be one key for all requests without one.
func introducePlaceholders(r *http.Request) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return
	}
	repl.Map(func(name string) (any, bool) { // it is asked behind what has been set
		name, ours := strings.CutPrefix(name, placeholderPrefix)
		return "", ours && slices.Contains(placeholderNames, name)
	})
}

// report tells placeholders and the access log what became of the request, as far
// as it is known; empty values are left out. It runs in the request's goroutine.
func (x *exchange) report(o outcome, executionID string, attempt int) {
	r := x.r
	repl, _ := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	fields, _ := r.Context().Value(caddyhttp.ExtraLogFieldsCtxKey).(*caddyhttp.ExtraLogFields)
	say := func(name, value string) {
		if value == "" {
			return
		}
		if repl != nil {
			repl.Set(placeholderPrefix+name, value)
		}
		if fields != nil {
			fields.Set(zap.String("dedup_"+name, value))
		}
	}
	say("outcome", string(o))
	say("key", x.keyText())
	say("provider", x.found.Provider)
	if !x.encrypted {
		say("delivery_id", x.found.ID)
	}
	say("execution_id", executionID)
	if attempt > 0 {
		if repl != nil {
			repl.Set(placeholderPrefix+"attempt", attempt)
		}
		if fields != nil {
			fields.Set(zap.Int("dedup_attempt", attempt))
		}
	}
}
