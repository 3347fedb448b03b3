// Package exchange takes one HTTP request through dedup, from its key to the last byte at its
// client: it asks package delivery for the key and the engine for a decision. A run's response is
// recorded, settled, and only then finished to the client.
package exchange

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
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// Config is what a handler does with requests: what its user has configured, with the defaults
// filled in and checked.
type Config struct {
	Observe bool // requests pass whatever is decided
	Mode    delivery.Mode
	Methods []string

	// Sources are tried in this order.
	Sources      []delivery.Source
	Providers    []delivery.Provider // whose handshakes pass
	Label        string              // under which requests of no provider count
	Exclude      []string            // JSON pointers
	MaxKeyLength int                 // bytes
	Namespace    string
	Scope        []string                    // texts with placeholders; nil for the default of the mode
	Fingerprint  idempotency.FingerprintKind // "" for the default of the mode
	Force        string                      // a request header field; "" for none

	// Policies are by provider; that of "" is for all others.
	Policies      map[string]idempotency.Policy
	RetentionFrom *RetentionSource // nil for none
	Timeout       time.Duration    // of one run
	Wait          time.Duration    // of a duplicate; 0 for not at all

	RejectMissing   bool // requests without a key
	PassUnavailable bool // requests whose store fails
	OnDuplicate     OnDuplicate

	MaxRequestBody, MaxResponseBody int64 // bytes
	KeepHeader                      []string
	ClientIdle                      time.Duration
	Docs                            string // a URL, or ""

	Store     *storepool.Handle
	Encrypted bool
	Budget    *Budget
	Observer  Observer
	Logger    *zap.Logger
}

// OnDuplicate is what the duplicate of a complete request gets.
type OnDuplicate string

// What a duplicate gets: the kept response, a 409 that names the first run, an empty 200, or a
// 303 to the first response's Location.
const (
	ReplayDuplicate      OnDuplicate = "replay"
	ConflictDuplicate    OnDuplicate = "conflict"
	AcknowledgeDuplicate OnDuplicate = "acknowledge"
	SeeOtherDuplicate    OnDuplicate = "see_other"
)

// Observer counts requests. Its methods are called concurrently.
type Observer interface {
	// Request counts a request by the provider of its key, or [Config.Label], and its outcome.
	// observed is [Config.Observe].
	Request(provider string, o Outcome, observed bool)
	// Overloaded counts a request that was refused because of a limit.
	Overloaded(engine.Limit)
}

// Handler handles requests. It is used concurrently.
type Handler struct {
	Config

	readsJSON  bool     // whether the body of every request is parsed
	members    []string // of the body that the scope and the keys name, as JSON pointers
	headers    headerRules
	unknown    unknownPlaceholders
	missing    logSampler // lines about requests without a key
	retention  logSampler // lines about requests whose own retention does not count
	unobserved logSampler // lines about requests that could not be observed
	cookies    sync.Once  // the warning of callers that only a cookie tells apart
}

// New returns a handler.
func New(c Config) *Handler {
	if c.Observe {
		c.Namespace = idempotency.ObservedNamespace(c.Namespace)
	}
	keyMembers := membersIn(c.keyTexts())
	return &Handler{
		Config:  c,
		members: append(membersIn(c.Scope), keyMembers...),
		readsJSON: len(keyMembers) > 0 || c.Fingerprint == idempotency.FingerprintJSON ||
			slices.ContainsFunc(c.Sources, delivery.Source.NeedsBody) ||
			slices.ContainsFunc(c.Providers, delivery.Provider.PassesByBody),
		headers: newHeaderRules(c.KeepHeader),
	}
}

// ServeHTTP finds the request's key and does what the engine decides.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	info := infoOf(r)
	if h.Observe {
		return h.observe(w, r, next, info)
	}
	within, forced := takeDedupHeaders(r), h.takeForce(r)
	if !h.applies(r) {
		return next.ServeHTTP(w, r)
	}
	x := &exchange{Handler: h, w: w, r: r, next: next, info: info, allowance: Allowance{Budget: h.Budget}}
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
		x.report(OutcomeInFlight, "", 0)
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
	info *requestInfo

	outcome   Outcome // the last that was reported
	counted   bool
	found     delivery.Found
	key       idempotency.Key
	allowance Allowance // of the budget, for the request's body and its response
	body      requestBody
	request   engine.Request
	parsing   bool             // it has a parse slot
	decision  engine.Decision  // nil until it is made
	entered   *storepool.Store // until it is left
	following *Reader          // of the stream that the request is answered with
	unshare   func()           // releases the room of a body that others are answered with, too

	// What is asked for more than once of the request's context, which is a long chain.
	placeholders *caddy.Replacer
	path, query  string     // as the client sent them; set with the key
	recording    trace.Span // nil if there is none
	spanSought   bool
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
func (x *exchange) toClient() ClientWriter {
	idle := x.ClientIdle
	deadline := idle
	server, _ := x.r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if server != nil && server.WriteTimeout > 0 {
		idle, deadline = time.Duration(server.WriteTimeout), 0
	}
	to := NewClientWriter(x.w, x.conn(), deadline)
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
	store, err := x.Store.Enter()
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
		x.decision = decision
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
