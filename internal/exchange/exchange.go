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

// exchange is one request and its response, on their way through the handler.
type exchange struct {
	*Handler
	w    http.ResponseWriter
	r    *http.Request
	next caddyhttp.Handler
	info *requestInfo

	outcome       Outcome // the last one reported
	counted       bool
	hasParseSlot  bool
	identifying   bool // it looks for the key
	ended         bool
	memberErr     error   // of the member that [exchange.replace] has read
	sender        *Sender // of the request; all of them if it is not verified
	found         delivery.Found
	key           idempotency.Key
	allowance     Allowance // room in the budget for the request's body and for a replay
	body          requestBody
	request       engine.Request
	decision      engine.Decision  // nil until it is made
	answer        answer           // to a duplicate
	openStore     *storepool.Store // until it is left
	streamReader  *recordingReader // of the stream that the request follows
	releaseShared func()           // releases the room of a replayed body that other requests may share
	firstRun      *firstRun        // what {http.dedup.first.*} has read; nil for nothing
	call          *toolCall        // nil for all but tool calls
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

// KeepConns makes a server keep the connection of each request in the request's context.
func KeepConns(server *caddyhttp.Server) {
	server.RegisterConnContext(func(ctx context.Context, conn net.Conn) context.Context {
		if ctx.Value(connKey{}) != nil { // another handler has registered it already
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

// toClient returns a writer to the request's client. The server's own write timeout, if it has one,
// replaces client_idle.
func (x *exchange) toClient() clientWriter {
	limit := writeLimit{idle: x.ClientIdle, shared: x.r.ProtoMajor == 2}
	server, _ := x.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && server.WriteTimeout > 0 {
		limit.idle, limit.byServer = time.Duration(server.WriteTimeout), true
	}
	return newClientWriter(x.w, x.conn(), limit)
}

// decide asks the engine for a decision. The store stays open until the request leaves it, also over
// a reload of the configuration.
func (x *exchange) decide(request *engine.Request) (engine.Decision, error) {
	store, err := x.Store.Enter(x.r.Context())
	if err != nil {
		return engine.Refusal{Reason: engine.ReasonUnavailable, Err: err}, nil //nolint:nilerr // the refusal carries it
	}
	x.openStore = store
	for {
		decision, err := store.Claim(x.r.Context(), *request)
		switch d := decision.(type) {
		case engine.Follow:
			x.streamReader = d.Live.(*liveResponse).record.NewReader()
			if x.streamReader == nil {
				continue // the stream has just ended, and its run is settled
			}
		case engine.Replay:
			decision, err = x.prepareReplay(store, d)
		}
		x.decision = decision
		return decision, err
	}
}

// leaveStore allows the store to close: the request no longer needs it.
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
	x.ended = true
	x.dropFirst()
	x.allowance.ReleaseAll()
	if x.call != nil {
		x.call.room.ReleaseAll()
	}
	x.leaveStore()
}

// repl returns the placeholders of the request.
func (x *exchange) repl() *caddy.Replacer {
	return x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}

// keyText returns the key in hex, "" if it is not known yet.
func (x *exchange) keyText() string {
	if x.key == (idempotency.Key{}) {
		return ""
	}
	return x.key.String()
}

// disableTransportRetry returns a request that Go's transport sends only once. Go's transport resends
// only requests without a body ([upstreamTrace]).
func (x *exchange) disableTransportRetry() (*http.Request, context.CancelCauseFunc) {
	if x.r.ContentLength != 0 {
		return x.r, func(error) {}
	}
	ctx, cancel := context.WithCancelCause(x.r.Context())
	trace := &upstreamTrace{request: x.r, cancel: func(error) { cancel(errors.New(errResent.Error())) }} // not a context.Canceled: reverse_proxy answers it with 502, not 499
	trace.request = x.r.WithContext(trace.attach(ctx, x.repl()))
	return trace.request, cancel
}

// passUnclaimed passes the request on without a claim.
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
	case x.key != (idempotency.Key{}): // under on_store_error pass
		return x.failed(err)
	}
	return x.returnError(x.r, err, isAnswered(to))
}
