package caddymodule

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
)

// Reasons for which the handler itself refuses, beside those of the engine.
const (
	reasonMissing  engine.Reason = "idempotency_key_missing"
	reasonInvalid  engine.Reason = "idempotency_key_invalid"
	reasonTooLarge engine.Reason = "request_too_large"
	reasonNotKept  engine.Reason = "response_not_kept"
	reasonConflict engine.Reason = "duplicate_request"
)

// refusalRule is one row of the table of refusals. The titles of the first three
// statuses are those of draft-ietf-httpapi-idempotency-key-header-07, section
// 2.7. Webhook senders take most 4xx as a reason to drop an event for good, so
// that theirs are 503 wherever the same event may pass later.
type refusalRule struct {
	title        string
	api, webhook int
	retryAfter   int // seconds, 0 for none
	// apiRetries says that an API's client is told when to retry, too.
	apiRetries bool
	outcome    outcome
}

var refusalRules = map[engine.Reason]refusalRule{
	reasonMissing:            {"Idempotency-Key is missing", 400, 400, 0, false, outcomeMissing},
	reasonInvalid:            {"Idempotency-Key is invalid", 400, 400, 0, false, outcomeInvalid},
	engine.ReasonReused:      {"Idempotency-Key is already used", 422, 422, 0, false, outcomeReused},
	engine.ReasonInFlight:    {"A request is outstanding for this Idempotency-Key", 409, 503, 2, true, outcomeInFlight},
	engine.ReasonHeld:        {"The outcome of an earlier request is unknown", 409, 503, 60, false, outcomeHeld},
	engine.ReasonExhausted:   {"The allowed attempts are exhausted", 409, 503, 60, false, outcomeExhausted},
	reasonConflict:           {"The request is a duplicate", 409, 409, 0, false, outcomeConflict},
	reasonNotKept:            {"The response of an earlier request was not kept", 409, 409, 0, false, outcomeNotKept},
	reasonTooLarge:           {"The request is too large", 413, 413, 0, false, outcomeTooLarge},
	engine.ReasonUnavailable: {"The idempotency store is unavailable", 503, 503, 5, true, outcomeUnavailable},
	engine.ReasonUnreadable:  {"The idempotency record cannot be read", 500, 503, 60, false, outcomeUnreadable},
	engine.ReasonOverloaded:  {"Too much is in progress", 503, 503, 5, true, outcomeOverloaded},
}

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type        string        `json:"type,omitempty"`
	Title       string        `json:"title"`
	Status      int           `json:"status"`
	Detail      string        `json:"detail"`
	Code        engine.Reason `json:"code"`
	ExecutionID string        `json:"execution_id,omitempty"`

	// Of the first response, for `duplicate conflict`.
	OriginalStatus   int             `json:"original_status,omitempty"`
	OriginalLocation string          `json:"original_location,omitempty"`
	OriginalResponse json.RawMessage `json:"original_response,omitempty"`

	retryAfter int
	docs       string
}

// newProblem fills a row of the table for one request.
func newProblem(reason engine.Reason, mode delivery.Mode, detail, executionID, docs string) problem {
	rule := refusalRules[reason]
	p := problem{
		Type:        docs,
		Title:       rule.title,
		Status:      rule.api,
		Detail:      detail,
		Code:        reason,
		ExecutionID: executionID,
		docs:        docs,
	}
	if mode == delivery.ModeWebhook {
		p.Status = rule.webhook
	}
	if rule.apiRetries || p.Status == http.StatusServiceUnavailable {
		p.retryAfter = rule.retryAfter
	}
	return p
}

// setHeader sets the fields that a refusal has whoever writes its body.
func (p problem) setHeader(header http.Header) {
	if p.ExecutionID != "" {
		header.Set(executionIDHeader, p.ExecutionID)
	}
	if p.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.docs != "" {
		header.Add("Link", fmt.Sprintf("<%s>; rel=\"describedby\"", p.docs))
	}
}

// write answers with the problem itself.
func (p problem) write(w http.ResponseWriter) error {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // it is no HTML, and a response within would grow sixfold
	if err := encoder.Encode(p); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(p.Status)
	_, err := w.Write(body.Bytes())
	return err
}
