package exchange

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// refuse answers with a refusal of the handler's own.
func (x *exchange) refuse(r identify.Refusal) {
	p := x.newProblem(r.Reason, r.Detail, "", 0)
	p.outcome = r.Outcome
	x.answerProblem(p, nil)
}

// refuseOrPass answers with a refusal of the engine, or passes the request unprotected if the store
// failed and `on_store_error pass` is configured. A request that is known to have been executed
// never passes.
func (x *exchange) refuseOrPass(d engine.Refusal) error {
	if d.Reason == engine.ReasonUnavailable && d.Record == nil && x.PassUnavailable && !errors.Is(d.Err, storepool.ErrNotOpen) {
		x.Logger.Error("unprotected: the store failed and the request passes without a claim",
			zap.Inline(x), zap.Error(d.Err))
		x.Set(report.Unprotected, "", 0)
		x.leaveStore()
		x.r.Header.Set(httpfield.Key, x.KeyText())
		return x.passUnclaimed()
	}
	x.answerProblem(x.problemOf(d), d.Err)
	return nil
}

// problemOf returns a refusal of the engine as a problem.
func (x *exchange) problemOf(d engine.Refusal) problem {
	id, attempt := d.Run()
	return x.newProblem(d.Reason, x.detailOf(d), id, attempt)
}

// detailOf explains a refusal to the client. The store's error, which names addresses, is only logged.
func (x *exchange) detailOf(d engine.Refusal) string {
	switch d.Reason {
	case engine.ReasonReused:
		if x.Call() != nil {
			return "the key was used before with a call that differs in its query or params; use a new key for a new call"
		}
		return "the key was used before with a request that differs in path, query or body; use a new key for a new request"
	case engine.ReasonInFlight:
		return "the first request with this key has not been answered yet; repeat this one later"
	case engine.ReasonHeld:
		return "an earlier request with this key may or may not have been executed; an operator has to release the key " + x.KeyText()
	case engine.ReasonExhausted:
		return "the request was tried as often as max_attempts allows, and whether the last attempt was executed is unknown"
	case engine.ReasonLoop:
		return "the request is part of the run that is in flight under its key: another dedup on its way has the same store, " +
			"namespace and key; set another namespace for one of them, or another scope within one configuration"
	case engine.ReasonUnreadable:
		return "the stored record of the key " + x.KeyText() + " cannot be read; an operator has to look at it"
	case engine.ReasonOverloaded:
		if errors.Is(d.Err, idempotency.ErrFull) {
			return "the request was not executed: the store is full; repeat it later"
		}
		if d.Record != nil { // it is being executed: the client must not take another key
			return "the first request with this key has not been answered yet, and too many others wait; repeat this one later"
		}
		return "the request was not executed: too much is in progress; repeat it later"
	case engine.ReasonUnavailable:
		if d.Record != nil {
			return "the request was executed, and its response cannot be read now; repeat the request later"
		}
		fallthrough
	default:
		return "the request was not executed: whether it is a duplicate is unknown; repeat it later"
	}
}

// refuseNoHandler refuses a request that no handler behind has answered. With Caddy's empty 200, a
// webhook sender would take a missing reverse_proxy for success.
func (x *exchange) refuseNoHandler(executionID string, attempt int) {
	p := x.newProblem(reasonNoHandler, "the request was not executed: no handler answered it", executionID, attempt)
	x.answerProblem(p, upstream.ErrNoHandler)
}

// answerProblem logs a refusal, drains the rest of the request's body, and answers. The cause is
// only logged.
func (x *exchange) answerProblem(p problem, cause error) {
	x.leaveStore() // it isn't needed while error routes run and the client reads
	x.Set(p.outcome, p.ExecutionID, p.attempt)
	leftOut, logged := int64(0), p.Code != identify.ReasonSignature // which identify logs
	if p.Code == identify.ReasonMissing {
		leftOut, logged = x.keys.LogMissing(p.Detail)
	}
	if logged {
		x.Logger.Log(refusalRules[p.Code].level, "refused a request", zap.Inline(x),
			zap.String("code", string(p.Code)),
			zap.Int("status", p.Status),
			zap.String("execution_id", p.ExecutionID),
			zap.Int("attempt", p.attempt),
			zap.String("detail", p.Detail),
			zap.Error(cause),
			report.LeftOut(leftOut))
	}
	reqbody.Drain(x.w, x.r)
	p.setHeader(x.w.Header())
	if call := x.Call(); call != nil {
		refuseCall(x.toClient(), call, p)
	} else if !x.serveErrorPage(caddyhttp.Error(p.Status, errors.New(string(p.Code)+": "+p.Detail))) {
		p.write(x.w)
	}
}

// refuseCall answers a call with a refusal.
func refuseCall(to recording.Writer, call identify.Call, p problem) {
	status, body := call.Refuse(p.ofCall())
	header := to.Client.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	to.Client.WriteHeader(status)
	_ = to.Send(body) // an error means that the client has disconnected
}

// ofCall returns the problem of a call.
func (p problem) ofCall() identify.CallRefusal {
	return identify.CallRefusal{
		Status: p.Status, Code: string(p.Code), Message: p.Title + ": " + p.Detail, RetryAfter: p.retryAfter, ExecutionID: p.ExecutionID,
	}
}

// Reasons for which the handler itself refuses, besides those of the engine and of identify.
const (
	reasonNotKept   engine.Reason = "response_not_kept"
	reasonConflict  engine.Reason = "duplicate_request"
	reasonNoHandler engine.Reason = "no_handler"
	// reasonFailed is that of a tool call that waited for a run which ended in an error.
	reasonFailed engine.Reason = "upstream_failed"
)

// refusalRule is one row of the table of refusals. The titles for missing, reused and outstanding
// keys are those of draft-ietf-httpapi-idempotency-key-header-07, section 2.7, without the name of
// a header field, because many keys are not in one. Webhook senders drop an event for good after
// most 4xx, so webhooks get 503 wherever the same event may pass later.
type refusalRule struct {
	title        string
	api, webhook int
	retryAfter   int // seconds, with a 503 and beside a run in flight; 0 for none
	outcome      report.Outcome
	// level is that of the log line: info for a fault of the client, warn for what an operator has to
	// check, error for a failing store or configuration.
	level zapcore.Level
}

var refusalRules = map[engine.Reason]refusalRule{
	identify.ReasonMissing:   {"The idempotency key is missing", 400, 400, 0, report.Missing, zapcore.InfoLevel},
	identify.ReasonInvalid:   {"The idempotency key is invalid", 400, 400, 0, report.Invalid, zapcore.InfoLevel},
	identify.ReasonSignature: {"The signature is missing or invalid", 401, 401, 0, report.SignatureInvalid, zapcore.WarnLevel},
	engine.ReasonReused:      {"The idempotency key is already used", 422, 422, 0, report.Reused, zapcore.InfoLevel},
	engine.ReasonInFlight:    {"A request with this idempotency key is outstanding", 409, 503, 2, report.InFlight, zapcore.InfoLevel},
	engine.ReasonHeld:        {"The outcome of an earlier request is unknown", 409, 503, 60, report.Held, zapcore.WarnLevel},
	engine.ReasonExhausted:   {"The allowed attempts are exhausted", 409, 503, 60, report.Exhausted, zapcore.WarnLevel},
	reasonConflict:           {"The request is a duplicate", 409, 409, 0, report.Conflict, zapcore.InfoLevel},
	reasonNotKept:            {"The response of an earlier request was not kept", 409, 409, 0, report.NotKept, zapcore.InfoLevel},
	identify.ReasonTooLarge:  {"The request is too large", 413, 413, 0, report.TooLarge, zapcore.InfoLevel},
	reasonFailed:             {"The upstream failed", 502, 502, 0, "", zapcore.InfoLevel}, // its outcome is that of the answer
	reasonNoHandler:          {"No handler answered the request", 500, 500, 0, report.NoHandler, zapcore.ErrorLevel},
	engine.ReasonLoop:        {"A loop was detected", 508, 508, 0, report.Loop, zapcore.ErrorLevel},
	engine.ReasonUnavailable: {"The idempotency store is unavailable", 503, 503, 5, report.Unavailable, zapcore.ErrorLevel},
	engine.ReasonUnreadable:  {"The idempotency record cannot be read", 500, 503, 60, report.Unreadable, zapcore.ErrorLevel},
	engine.ReasonOverloaded:  {"Too much is in progress", 503, 503, 5, report.Overloaded, zapcore.WarnLevel},
}

// problem is the body of a refusal (RFC 9457).
type problem struct {
	Type        string        `json:"type,omitempty"`
	Title       string        `json:"title"`
	Status      int           `json:"status"`
	Detail      string        `json:"detail"`
	Code        engine.Reason `json:"code"`
	Key         string        `json:"key,omitempty"`
	ExecutionID string        `json:"execution_id,omitempty"`

	// The first response, for `on_duplicate conflict`.
	OriginalStatus   int             `json:"original_status,omitempty"`
	OriginalLocation string          `json:"original_location,omitempty"`
	OriginalResponse json.RawMessage `json:"original_response,omitempty"`

	outcome    report.Outcome
	attempt    int // number of the run that is the reason; 0 for none
	retryAfter int
	within     string // the execution ID of the run that the request is part of
}

// newProblem returns the problem of the request, by the table. The execution ID and the attempt are those of the
// run that is the reason, if there is one.
func (x *exchange) newProblem(reason engine.Reason, detail, executionID string, attempt int) problem {
	rule := refusalRules[reason]
	p := problem{
		Type:        x.Docs,
		Title:       rule.title,
		Status:      rule.api,
		Detail:      detail,
		Code:        reason,
		Key:         x.KeyText(),
		ExecutionID: executionID,
		outcome:     rule.outcome,
		attempt:     attempt,
		within:      x.within,
	}
	if x.mode == delivery.ModeWebhook {
		p.Status = rule.webhook
	}
	if p.Status == http.StatusServiceUnavailable || reason == engine.ReasonInFlight {
		p.retryAfter = rule.retryAfter
	}
	return p
}

// setHeader sets the header fields of a refusal, also where error routes write its body.
func (p problem) setHeader(header http.Header) {
	if p.ExecutionID != "" {
		header.Set(httpfield.ExecutionID, p.ExecutionID)
	}
	if p.retryAfter > 0 {
		header.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.within != "" && p.Code != reasonFailed {
		header.Set(httpfield.NotExecuted, string(p.Code))
	}
	if p.Type != "" {
		header.Add("Link", fmt.Sprintf("<%s>; rel=\"describedby\"", p.Type))
	}
}

// write answers with the problem itself.
func (p problem) write(w http.ResponseWriter) {
	var body bytes.Buffer
	encoder := json.NewEncoder(&body)
	encoder.SetEscapeHTML(false) // escaped, a response within could grow sixfold
	_ = encoder.Encode(p)        // its fields are texts and valid JSON
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Content-Length", strconv.Itoa(body.Len()))
	w.WriteHeader(p.Status)
	_, _ = w.Write(body.Bytes()) // an error means that the client has disconnected
}
