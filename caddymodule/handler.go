package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

func init() {
	caddy.RegisterModule(new(Handler))
}

// Handler makes the handlers behind it idempotent. It takes the delivery ID or
// idempotency key from a request, claims it in a store, lets exactly one request
// through, keeps the response and replays it to duplicates. Where the upstream
// failed, the key is free for a retry.
//
// Without providers and keys it serves the `Idempotency-Key` header of an API.
// With providers it serves their webhooks.
//
// Set by the handler are the placeholders `{http.dedup.outcome}`,
// `{http.dedup.key}`, `{http.dedup.provider}`, `{http.dedup.delivery_id}` (not
// under `encrypt`), `{http.dedup.execution_id}` and `{http.dedup.attempt}`, and the
// same as fields of the access log, with `dedup_` before the name. A placeholder is
// empty where there is nothing to say. The key is the same in every attempt and on
// every replica, and can be handed on to a service behind.
type Handler struct {
	Settings

	logger  *zap.Logger
	sources []delivery.Source
	passing []delivery.Provider // whose handshakes pass
	// readsJSON says that requests are parsed.
	readsJSON bool
	releaseOn idempotency.StatusSet
	headers   headerRules
	policies  map[string]idempotency.Policy // by provider, "" for none
	store     *storepool.Handle
	encrypted bool
	space     string
	// clientIdle is how long a client may accept nothing of its response.
	clientIdle time.Duration
	unknown    unknownPlaceholders
	counts     requestCounts
	missing    oneASecond // lines about requests without a key
	cookies    sync.Once  // the warning of callers that only a cookie tells apart
}

// CaddyModule returns the Caddy module information.
func (*Handler) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.dedup",
		New: func() caddy.Module { return new(Handler) },
	}
}

// Provision fills in the defaults and finds the store. It opens nothing.
func (h *Handler) Provision(ctx caddy.Context) error {
	h.logger = ctx.Logger()
	h.setDefaults()
	if err := h.check(); err != nil {
		return err
	}
	h.sources = h.deliverySources()
	h.passing = h.providers()
	h.readsJSON = h.Fingerprint == string(idempotency.FingerprintJSON) ||
		slices.ContainsFunc(h.sources, delivery.Source.NeedsBody) ||
		slices.ContainsFunc(h.passing, delivery.Provider.PassesByBody)
	h.releaseOn, _ = idempotency.ParseStatuses(h.releasing()...) // checked above
	h.headers = newHeaderRules(h.KeepHeader)
	h.policies = map[string]idempotency.Policy{"": h.policyFor("")}
	for _, provider := range h.passing {
		h.policies[provider.Name] = h.policyFor(provider.Name)
	}

	module, err := ctx.App("dedup")
	if err != nil {
		return fmt.Errorf("loading the dedup app: %w", err)
	}
	app := module.(*App)
	h.space, h.store, h.encrypted = app.Namespace, app.store, app.sealer != nil
	h.clientIdle = duration(app.Limits.ClientIdle)
	if h.StoreRaw != nil {
		if h.store, err = app.loadStore(ctx, h, h.StoreRaw); err != nil {
			return err
		}
	}
	if h.store, err = app.use(h.store, duration(h.Timeout)); err != nil {
		return err
	}
	if h.OnStoreError == storeErrorPass {
		h.logger.Warn("on_store_error pass: while the store fails, requests pass unprotected and duplicates run")
	}
	h.counts = processMetrics.requestsOf(h)
	if server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		keepConns(server)
		server.RegisterOnShutdown(app.serversStop)
	}
	return checkLease(h.store.Config, duration(h.Lease))
}

// ServeHTTP finds the request's key and does what the engine decides.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	said := saying(r)
	within, forced := takeDedupHeaders(r), h.takeForce(r)
	if !h.applies(r) {
		return next.ServeHTTP(w, r)
	}
	x := &exchange{Handler: h, w: w, r: r, next: next, said: said, allowance: recording.Allowance{Budget: buffered}}
	x.body = requestBody{w: w, r: r, limit: h.MaxRequestBody, taken: &x.allowance}
	defer x.done()
	request, refused, err := x.identify()
	switch {
	case err != nil:
		x.report(unreadOutcome(err), "", 0)
		return x.failed(err)
	case refused != nil:
		return x.refuse(*refused)
	case request == nil:
		return x.passUnclaimed()
	}
	request.Within, request.Force, request.OnWait = within, forced, x.tracedWait()
	decision, err := x.begin(request)
	if err != nil { // it waited, and its client has left
		x.report(outcomeInFlight, "", 0)
		if errors.Is(err, context.DeadlineExceeded) { // of the run that the request is part of
			return x.answerError(caddyhttp.Error(http.StatusGatewayTimeout, err))
		}
		return x.answerError(caddyhttp.Error(statusClientGone, err))
	}
	if forced {
		x.auditForce(decision)
	}
	return x.do(decision)
}

// do does what the engine has decided.
func (x *exchange) do(decision engine.Decision) error {
	switch d := decision.(type) {
	case *engine.Run:
		return x.carryOut(d)
	case engine.Replay:
		return x.replay(d)
	case engine.Follow:
		return x.follow(d)
	case engine.Refusal:
		return x.refuseOrPass(d)
	default:
		return fmt.Errorf("the engine decided on %T", d)
	}
}

// exchange is one request on its way through the handler, and its response.
type exchange struct {
	*Handler
	w    http.ResponseWriter
	r    *http.Request
	next caddyhttp.Handler
	said *said

	outcome   outcome // the last that was reported
	counted   bool
	found     delivery.Found
	key       idempotency.Key
	allowance recording.Allowance // of the budget, for the request's body and its response
	body      requestBody
	request   engine.Request
	entered   *storepool.Store  // until it is left
	following *recording.Reader // of the stream that the request is answered with
	unshare   func()            // releases the room of a body that others are answered with, too

	// What is asked for more than once of the request's context, which is a long chain.
	placeholders *caddy.Replacer
	path, query  string     // as the client sent them; set with the key
	recording    trace.Span // nil if there is none
	spanSought   bool
}

// connKey is where the context of a request has its connection.
type connKey struct{}

// keepConns has a server tell the handlers of its requests which connection they came on.
func keepConns(server *caddyhttp.Server) {
	server.RegisterConnContext(func(ctx context.Context, conn net.Conn) context.Context {
		if ctx.Value(connKey{}) != nil { // by another handler
			return ctx
		}
		return context.WithValue(ctx, connKey{}, conn)
	})
}

// conn is the connection on which the request came, nil where nobody says.
func (x *exchange) conn() net.Conn {
	conn, _ := x.r.Context().Value(connKey{}).(net.Conn)
	return conn
}

// toClient returns a writer to the request's client. Where the server has a limit of its
// own for writing, that one counts.
func (x *exchange) toClient() recording.ClientWriter {
	idle := x.clientIdle
	deadline := idle
	server, _ := x.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && server.WriteTimeout > 0 {
		idle, deadline = time.Duration(server.WriteTimeout), 0
	}
	to := recording.NewClientWriter(x.w, x.conn(), deadline)
	if x.r.ProtoMajor == 2 {
		to.Shared(idle)
	}
	return to
}

// refusal is a refusal of the handler's own.
type refusal struct {
	reason engine.Reason
	detail string
}

// begin asks the engine. The store stays open for this request until it is left: a
// configuration reload does not wait for requests.
func (x *exchange) begin(request *engine.Request) (engine.Decision, error) {
	store, err := x.store.Enter()
	if err != nil {
		return engine.Refusal{Reason: engine.ReasonUnavailable, Err: err}, nil //nolint:nilerr // it is in the refusal
	}
	x.entered = store
	for {
		decision, err := store.Begin(x.r.Context(), *request)
		switch d := decision.(type) {
		case engine.Follow:
			x.following = d.Live.(*live).record.NewReader()
			if x.following == nil {
				continue // the stream has ended in this moment: its run is settled
			}
		case engine.Replay:
			decision, err = x.makeRoom(store, d)
		}
		return decision, err
	}
}

// leaveStore says that the request needs the store no more.
func (x *exchange) leaveStore() {
	if x.entered != nil {
		x.entered.Leave()
		x.entered = nil
	}
}

// done gives back what the request held.
func (x *exchange) done() {
	x.count()
	if x.following != nil {
		x.following.Leave()
	}
	if x.unshare != nil {
		x.unshare()
	}
	x.allowance.ReleaseAll()
	x.leaveStore()
}

// repl returns the placeholders of the request.
func (x *exchange) repl() *caddy.Replacer {
	if x.placeholders == nil {
		x.placeholders = x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	}
	return x.placeholders
}

// keyText is the key as people see it, "" where there is none yet.
func (x *exchange) keyText() string {
	if x.key == (idempotency.Key{}) {
		return ""
	}
	return x.key.String()
}

// applies reports whether requests like this one are deduplicated at all.
func (h *Handler) applies(r *http.Request) bool {
	if !slices.Contains(h.Methods, r.Method) || asksForUpgrade(r.Header) {
		return false
	}
	return !strings.HasPrefix(strings.ToLower(firstIn(r.Header, "Content-Type")), "application/grpc")
}

func (h *Handler) mode() delivery.Mode { return delivery.Mode(h.Mode) }

// policyFor returns what the user chose for a delivery from the given provider, "" for
// none.
func (h *Handler) policyFor(provider string) idempotency.Policy {
	return idempotency.Policy{
		Terms: idempotency.Terms{
			Lease:       duration(h.Lease),
			Retention:   h.retentionOf(provider),
			Hold:        h.OnUnknown == unknownHold,
			MaxAttempts: h.MaxAttempts,
		},
		ReleaseOn: h.releaseOn,
	}
}

// wait is how long a duplicate waits, 0 for not at all.
func (h *Handler) wait() time.Duration { return duration(*h.Wait) }

var (
	_ caddy.Provisioner           = (*Handler)(nil)
	_ caddyhttp.MiddlewareHandler = (*Handler)(nil)
)
