package caddymodule

import (
	"errors"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// exchange is one request on its way through the handler, and its response.
type exchange struct {
	*Handler
	w    http.ResponseWriter
	r    *http.Request
	next caddyhttp.Handler

	found   delivery.Found
	key     string
	release func() // gives the store back
}

// refusal is a refusal of the handler's own.
type refusal struct {
	reason idempotency.Reason
	detail string
}

// identify finds the request's key and reads its body. It returns nothing for a
// request that passes without a key, and an error for a body that could not be
// read: then there is nothing to claim.
func (x *exchange) identify() (*idempotency.Request, *refusal, error) {
	found, err := delivery.Find(x.sources, delivery.Request{Header: x.r.Header}, x.MaxKeyLength)
	var invalid *delivery.InvalidError
	switch {
	case errors.As(err, &invalid) && x.mode() == delivery.ModeAPI:
		return nil, &refusal{reasonInvalid, invalid.Error()}, nil
	case errors.As(err, &invalid):
		x.logger.Warn("the delivery ID is invalid and counts as missing", zap.Error(invalid))
		return x.withoutKey("the delivery ID is invalid: " + invalid.Error())
	case err != nil:
		return x.withoutKey(err.Error())
	}
	body, whole, err := readBody(x.r, x.MaxRequestBody)
	switch {
	case err != nil:
		return nil, nil, err
	case whole || !x.needsBody():
	case x.mode() == delivery.ModeAPI:
		return nil, &refusal{reasonTooLarge, x.tooLarge()}, nil
	default:
		x.logger.Warn("the request counts as one without a key", zap.String("reason", x.tooLarge()))
		return x.withoutKey(x.tooLarge())
	}
	return x.identified(found, body), nil, nil
}

func (x *exchange) withoutKey(reason string) (*idempotency.Request, *refusal, error) {
	if x.Missing == missingReject {
		return nil, &refusal{reasonMissing, reason}, nil
	}
	report(x.r, outcomeMissing, "", "", "", 0)
	return nil, nil, nil
}

func (x *exchange) needsBody() bool {
	return x.Fingerprint != string(idempotency.FingerprintNone)
}

func (x *exchange) identified(found delivery.Found, body []byte) *idempotency.Request {
	repl := x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	key := idempotency.Identity{
		Namespace: x.space,
		Scope:     x.scopeOf(x.r, repl, found),
		Kind:      found.Kind,
		Prefix:    found.Prefix,
		ID:        found.ID,
	}.Key()
	path, query := asSent(x.r)
	x.found, x.key = found, key.String()
	return &idempotency.Request{
		Key:         key,
		Fingerprint: idempotency.Fingerprint(idempotency.FingerprintKind(x.Fingerprint), path, query, body),
		Provider:    found.Provider,
		DeliveryID:  found.ID,
		Policy:      x.policy(),
	}
}

// begin asks the engine. The store stays open for this request until done: a
// configuration reload does not wait for requests.
func (x *exchange) begin(request idempotency.Request) (idempotency.Decision, error) {
	engine, release, err := x.store.acquire()
	if err != nil {
		return idempotency.Refusal{Reason: idempotency.ReasonUnavailable, Err: err}, nil
	}
	x.release = release
	return engine.Begin(x.r.Context(), request)
}

func (x *exchange) done() {
	if x.release != nil {
		x.release()
	}
}

// report tells placeholders and the access log what became of the request.
func (x *exchange) report(o outcome, executionID string, attempt int) {
	report(x.r, o, x.key, x.found.Provider, executionID, attempt)
}
