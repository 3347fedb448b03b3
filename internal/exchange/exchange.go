package exchange

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// exchange is one request on its way through the handler, and its response.
type exchange struct {
	*Handler
	w    http.ResponseWriter
	r    *http.Request
	next caddyhttp.Handler
	info *requestInfo

	outcome       Outcome // the last that was reported
	counted       bool
	hasParseSlot  bool
	found         delivery.Found
	key           idempotency.Key
	allowance     Allowance // of the budget, for the request's body and its response
	body          requestBody
	request       engine.Request
	decision      engine.Decision       // nil until it is made
	answer        answer                // to a duplicate
	openStore     *storepool.Store      // until it is left
	streamReader  *recordingReader      // of the stream that the request is answered with
	releaseShared func()                // releases the room of a body that others are answered with, too
	replaced      *idempotency.Response // what a forced run is to replace; nil until it is asked for
	path, query   string                // as the client sent them; set with the key
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// KeepConns has a server tell the handlers of its requests which connection they came on.
func KeepConns(server *caddyhttp.Server) {
	server.RegisterConnContext(func(ctx context.Context, conn net.Conn) context.Context {
		if ctx.Value(connKey{}) != nil { // by another handler
			return ctx
		}
		return context.WithValue(ctx, connKey{}, conn)
	})
}

// conn returns the connection on which the request came, nil if it is unknown.
func (x *exchange) conn() net.Conn {
	conn, _ := x.r.Context().Value(connKey{}).(net.Conn)
	return conn
}

// toClient returns a writer to the request's client. Where the server has a limit of its
// own for writing, that one counts.
func (x *exchange) toClient() clientWriter {
	limit := writeLimit{idle: x.ClientIdle, shared: x.r.ProtoMajor == 2}
	server, _ := x.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && server.WriteTimeout > 0 {
		limit.idle, limit.byServer = time.Duration(server.WriteTimeout), true
	}
	return newClientWriter(x.w, x.conn(), limit)
}

// decide asks the engine. The store stays open for this request until it is left: a
// configuration reload does not wait for requests.
func (x *exchange) decide(request *engine.Request) (engine.Decision, error) {
	store, err := x.Store.Enter(x.r.Context())
	if err != nil {
		return engine.Refusal{Reason: engine.ReasonUnavailable, Err: err}, nil //nolint:nilerr // it is in the refusal
	}
	x.openStore = store
	for {
		decision, err := store.Claim(x.r.Context(), *request)
		switch d := decision.(type) {
		case engine.Follow:
			x.streamReader = d.Live.(*liveResponse).record.NewReader()
			if x.streamReader == nil {
				continue // the stream has ended in this moment: its run is settled
			}
		case engine.Replay:
			decision, err = x.prepareReplay(store, d)
		}
		x.decision = decision
		return decision, err
	}
}

// leaveStore lets the store close: the request no longer needs it.
func (x *exchange) leaveStore() {
	if x.openStore != nil {
		x.openStore.Leave()
		x.openStore = nil
	}
}

// close releases what the request holds.
func (x *exchange) close() {
	x.count()
	if x.streamReader != nil {
		x.streamReader.Leave()
	}
	if x.releaseShared != nil {
		x.releaseShared()
	}
	x.allowance.ReleaseAll()
	x.leaveStore()
}

// repl returns the placeholders of the request.
func (x *exchange) repl() *caddy.Replacer {
	return x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}

// keyText is the key as people see it, "" where there is none yet.
func (x *exchange) keyText() string {
	if x.key == (idempotency.Key{}) {
		return ""
	}
	return x.key.String()
}

// disableTransportRetry returns the request in a form that Go's transport sends once. Only one
// without a body would be resent ([upstreamTrace]).
func (x *exchange) disableTransportRetry() (*http.Request, context.CancelCauseFunc) {
	if x.r.ContentLength != 0 {
		return x.r, func(error) {}
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	trace := &upstreamTrace{request: x.r, cancel: func(error) { cancel(errors.New(errResent.Error())) }} // 502, and not 499
	trace.request = x.r.WithContext(trace.attach(ctx, x.repl()))
	return trace.request, cancel
}

// passUnclaimed lets the request through without a claim.
func (x *exchange) passUnclaimed() error {
	forgetUpstream(x.repl())
	to := caddyhttp.NewResponseRecorder(x.w, nil, nil)
	r, cancel := x.disableTransportRetry()
	defer cancel(nil)
	err := x.next.ServeHTTP(to, r)
	_, proxied := x.repl().Get(upstreamAddress)
	switch {
	case err == nil && !isAnswered(to) && !proxied:
		return x.refuseNoHandler("", 0)
	case err == nil:
		return nil
	case x.key != (idempotency.Key{}): // with on_store_error pass
		return x.failed(err)
	}
	return x.returnError(x.r, err, isAnswered(to))
}
