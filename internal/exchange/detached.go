package exchange

import (
	"context"
	"maps"
	"net/http"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/identify"
)

// detached returns a function that hands the request on once it has been answered. What the handlers behind
// answer is dropped. The request has no body by then, and shares nothing with the one that is logged.
func (x *exchange) detached() (handOn func()) {
	ctx := context.WithoutCancel(x.r.Context())
	server, _ := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	r, own, w := x.r.Clone(ctx), caddy.NewReplacer(), dropped{}
	r.Body, r.ContentLength = http.NoBody, 0
	for _, name := range identify.CallerPlaceholders {
		if value, ok := x.repl().Get(name); ok {
			own.Set(name, value)
		}
	}
	vars, _ := ctx.Value(caddyhttp.VarsCtxKey).(map[string]any)
	vars = maps.Clone(vars)
	r = caddyhttp.PrepareRequest(r, own, w, server)
	ctx = context.WithValue(r.Context(), caddyhttp.VarsCtxKey, vars)
	r = r.WithContext(context.WithValue(ctx, caddyhttp.OriginalRequestCtxKey, x.r.Context().Value(caddyhttp.OriginalRequestCtxKey)))
	next, log := x.next, x.Logger
	return func() {
		defer func() {
			if failed := recover(); failed != nil && failed != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
				log.Error("a panic in a request that was handed on later", zap.Any("panic", failed), zap.Stack("stack"))
			}
		}()
		if err := next.ServeHTTP(w, r); err != nil {
			log.Warn("a request that was handed on later failed", zap.String("method", r.Method), zap.Error(err))
		}
	}
}

// dropped is the response to a request whose client has its answer.
type dropped http.Header

// Header implements [http.ResponseWriter].
func (d dropped) Header() http.Header { return http.Header(d) }

// WriteHeader implements [http.ResponseWriter].
func (dropped) WriteHeader(int) {}

// Write implements [http.ResponseWriter].
func (dropped) Write(p []byte) (int, error) { return len(p), nil }
