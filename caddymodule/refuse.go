package caddymodule

import (
	"errors"
	"net/http"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// refuse answers with a refusal of the handler's own.
func (x *exchange) refuse(r refusal) error {
	return x.refuseFor(r.reason, "", r.detail)
}

// refuseOrPass answers with a refusal of the engine's, or lets the request pass
// unprotected where the store fails and the user chose so.
func (x *exchange) refuseOrPass(d engine.Refusal) error {
	if d.Reason == engine.ReasonUnavailable && x.StoreErrors == storeErrorsPass {
		x.logger.Error("unprotected: the store failed and the request passes without a claim",
			zap.String("key", x.key), zap.String("provider", x.found.Provider), zap.Error(d.Err))
		x.report(outcomeUnprotected, "", 0)
		return x.passUnclaimed(x.w, x.r, x.next)
	}
	return x.answerProblem(newProblem(d.Reason, x.mode(), x.detailOf(d), d.ExecutionID, x.Docs), d.Err)
}

// detailOf explains a refusal to the client. What the store said stays in the
// log: it names addresses.
func (x *exchange) detailOf(d engine.Refusal) string {
	switch d.Reason {
	case engine.ReasonReused:
		return "the key was used before with a request that differs in path, query or body; use a new key for a new request"
	case engine.ReasonInFlight:
		return "the first request with this key has not been answered yet; repeat this one later"
	case engine.ReasonHeld:
		return "an earlier request with this key may or may not have been executed; an operator has to release the key " + x.key
	case engine.ReasonExhausted:
		return "the request was tried as often as is allowed, and the last attempt's outcome is unknown"
	case engine.ReasonUnreadable:
		return "the stored record of the key " + x.key + " cannot be read; an operator has to look at it"
	case engine.ReasonOverloaded:
		if errors.Is(d.Err, idempotency.ErrFull) {
			return "the request was not executed: the store is full; repeat it later"
		}
		return "the request was not executed: too much is in progress; repeat it later"
	default:
		return "the request was not executed: whether it is a duplicate could not be found out; repeat it later"
	}
}

// refuseFor logs a refusal and answers with it, once the rest of the request's
// body is out of the way.
func (x *exchange) refuseFor(reason engine.Reason, executionID, detail string) error {
	return x.answerProblem(newProblem(reason, x.mode(), detail, executionID, x.Docs), nil)
}

// answerProblem is refuseFor with a problem that is made already, and with what
// the store said of it, which goes to the log only.
func (x *exchange) answerProblem(p problem, storeSaid error) error {
	x.report(refusalRules[p.Code].outcome, p.ExecutionID, 0)
	log := x.logger.Info
	if storeSaid != nil {
		log = x.logger.Error
	}
	path, _ := asSent(x.r)
	log("refused a request",
		zap.String("method", x.r.Method), zap.String("host", x.r.Host), zap.String("path", path),
		zap.String("code", string(p.Code)),
		zap.Int("status", p.Status),
		zap.String("key", x.key),
		zap.String("provider", x.found.Provider),
		zap.String("execution_id", p.ExecutionID),
		zap.String("detail", p.Detail),
		zap.Error(storeSaid))
	readOff(x.w, x.r)
	p.setHeader(x.w.Header())
	return answerError(x.w, x.r, p.Status, errors.New(string(p.Code)+": "+p.Detail), func(w http.ResponseWriter) error {
		return p.write(w)
	})
}
