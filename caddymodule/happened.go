package caddymodule

import (
	"errors"
	"fmt"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// happened says which request a run was for, and what happened to it, for the log
// line about a key that is held or free again: who has to decide whether the upstream
// has executed it needs that. A run whose response is kept has no such line.
func (x *exchange) happened(err error, end idempotency.End) []zap.Field {
	if end.How == idempotency.Answered && end.Response != nil && end.Response.Status < 300 && end.UpstreamStatus < 300 {
		return nil
	}
	path, _ := asSent(x.r) // without the query, which may have a token
	facts := []zap.Field{zap.String("method", x.r.Method), zap.String("host", x.r.Host), zap.String("path", path)}
	if repl, ok := x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		if _, chosen := repl.Get(upstreamAddress); chosen {
			host, _ := repl.GetString("http.reverse_proxy.upstream.hostport")
			facts = append(facts, zap.String("upstream", host))
		}
	}
	return append(facts, zap.NamedError("error", causeOf(err, end)))
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
