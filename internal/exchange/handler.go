// Package exchange takes one HTTP request through dedup, from its key to the last byte at its client:
// package identify finds the key, and the engine decides about it. A run's response is recorded, settled, and
// only then finished to the client.
package exchange

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// Config is the configuration of a handler, checked and with its defaults filled in.
type Config struct {
	Identify identify.Config
	Report   *report.Reporter
	Rules    upstream.Rules

	Timeout time.Duration // of one run
	Wait    time.Duration // maximum for a duplicate; with 0 it is refused at once

	PassUnavailable bool // pass requests unprotected when the store fails
	OnDuplicate     idempotency.OnDuplicate

	MaxResponseBody int64 // bytes
	KeepHeader      []string
	ClientIdle      time.Duration
	Docs            string // a URL, or ""

	Store  *storepool.Handle
	Budget *budget.Budget
}

// Handler handles requests. It is used concurrently.
type Handler struct {
	Config
	keys    *identify.Identifier
	mode    delivery.Mode
	headers httpfield.Rules
}

// New returns a handler.
func New(c Config) *Handler {
	return &Handler{Config: c, keys: identify.New(c.Identify), mode: c.Identify.Mode, headers: httpfield.NewRules(c.KeepHeader)}
}

// exchange is one request and its response, on their way through the handler.
type exchange struct {
	*Handler
	identify.Request
	w    http.ResponseWriter
	r    *http.Request
	info *report.Info
	next caddyhttp.Handler

	// within is the execution ID of the run that the request is part of, "" for none.
	within    string
	openStore *storepool.Store // until it is left
	first     *report.FirstRun // nil for none
}

// ServeHTTP finds the request's key, has the engine decide about it, and does what that says.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	info := report.InfoOf(r)
	within, forced := ownRun(r), h.keys.TakeForce(r)
	if !h.keys.Applies(r) {
		return next.ServeHTTP(w, r)
	}
	x := &exchange{Handler: h, w: w, r: r, info: info, next: next, within: within}
	x.Request.Init(h.keys, h.Report, h.Budget, w, r, info)
	info.SetFirst(nil)
	defer x.close()
	switch d := x.Identify().(type) {
	case *identify.Claim:
		defer x.Begin(true)()
		return x.claim(d, forced)
	case identify.Pass:
		defer x.Begin(false)()
		return x.pass(d)
	case identify.Refusal:
		x.refuse(d)
	case identify.Unread:
		x.Set(d.Outcome, "", 0)
		x.fail(d.Err)
	case identify.Resume:
		x.resume(d)
	case identify.Answered:
		x.Leave()
		x.Logger.Debug("a cancelled call goes on until it has ended", zap.Inline(x))
		if d.Later != nil {
			d.Later(x.detached())
		}
		w.WriteHeader(d.Status)
	}
	return nil
}

// close releases what the request holds.
func (x *exchange) close() {
	x.Count()
	if x.first != nil {
		x.first.End()
	}
	x.Request.Close()
	x.leaveStore()
}

// leaveStore allows the store to close: the request no longer needs it.
func (x *exchange) leaveStore() {
	if x.openStore != nil {
		x.openStore.Leave()
		x.openStore = nil
	}
}

// repl returns the placeholders of the request.
func (x *exchange) repl() *caddy.Replacer {
	return x.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}

// pass lets the request through without a claim.
func (x *exchange) pass(d identify.Pass) error {
	if d.Outcome == "" {
		x.Leave()
	} else {
		x.Set(d.Outcome, "", 0)
	}
	if d.Challenge {
		return x.next.ServeHTTP(x.w, x.r)
	}
	return x.passUnclaimed()
}

// passUnclaimed passes the request on without a claim.
func (x *exchange) passUnclaimed() error {
	upstream.Forget(x.repl())
	to := caddyhttp.NewResponseRecorder(x.w, nil, nil)
	r, cancel := upstream.Once(x.r, x.repl())
	defer cancel(nil)
	err := x.next.ServeHTTP(to, r)
	answered := to.Status() >= 200 || to.Status() == http.StatusSwitchingProtocols
	_, proxied := x.repl().Get(upstream.Address)
	switch {
	case err == nil && !answered && !proxied:
		x.refuseNoHandler("", 0)
	case err == nil:
	case x.Key() != (idempotency.Key{}): // under on_store_error pass
		x.fail(err)
	default:
		return x.returnError(err, answered)
	}
	return nil
}

// prepared is what a duplicate is answered with.
type prepared struct {
	answer idempotency.Answer
	reader *recording.Reader // of the stream that it follows
	// held is what the replay holds: a body that other requests may share, or the request's own room. release
	// releases a shared body.
	held    budget.Held
	release func()
}

func (p prepared) close() {
	if p.reader != nil {
		p.reader.Leave()
	}
	if p.release != nil {
		p.release()
	}
}

// claim claims the key, and does what the engine decides.
func (x *exchange) claim(c *identify.Claim, forced bool) error {
	request := engine.Request{
		Key:         c.Key,
		Origin:      x.Origin(),
		Label:       x.MetricLabel(),
		Fingerprint: c.Fingerprint,
		Policy:      c.Policy,
		Timeout:     x.Timeout + budget.RoomTimeout,
		Wait:        x.Wait,
		Within:      x.within,
		Inner:       runOf(x.r.Context()) != nil,
		Force:       forced,
		OnWait:      func() { x.Event(report.Wait) },
	}
	if !x.Body.Complete() {
		request.Wait = 0 // what is unread would stall its HTTP/2 connection, and the run on it
	}
	decision, ready, err := x.decide(&request)
	defer ready.close()
	if err != nil { // the request waited, and its client has left
		x.Set(report.InFlight, "", 0)
		status := upstream.StatusClientGone
		if errors.Is(err, context.DeadlineExceeded) { // the run in front, which the request is part of, has timed out
			status = http.StatusGatewayTimeout
		}
		x.answerError(caddyhttp.Error(status, err))
		return nil
	}
	if record := engine.DiffersFrom(decision); record != nil {
		x.Differs(record.ExecutionID)
	}
	if forced {
		x.auditForce(decision)
	}
	if record := report.RecordIn(decision); record != nil {
		x.first = &report.FirstRun{Key: c.Key, Record: record, Store: x.Store, Budget: x.Budget}
		x.info.SetFirst(x.first)
	}
	switch d := decision.(type) {
	case *engine.Run:
		return x.execute(d, &c.Policy)
	case engine.Replay:
		x.replay(d, ready)
	case engine.Follow:
		x.follow(d, ready.reader)
	case engine.Refusal:
		return x.refuseOrPass(d)
	}
	return nil
}

// decide asks the engine for a decision, and prepares the answer to a duplicate. The store stays open until
// the request leaves it, also over a reload of the configuration.
func (x *exchange) decide(request *engine.Request) (engine.Decision, prepared, error) {
	store, err := x.Store.Enter(x.r.Context())
	if err != nil {
		return engine.Refusal{Reason: engine.ReasonUnavailable, Err: err}, prepared{}, nil //nolint:nilerr // the refusal carries it
	}
	x.openStore = store
	for {
		decision, err := store.Claim(x.r.Context(), *request)
		switch d := decision.(type) {
		case engine.Follow:
			if reader := d.Live.(*liveResponse).record.NewReader(); reader != nil {
				return d, prepared{reader: reader}, err
			}
			continue // the stream has just ended, and its run is settled
		case engine.Replay:
			return x.prepareReplay(store, d)
		}
		return decision, prepared{}, err
	}
}

// ownRun returns the execution ID of the run that a request is part of: one of this process, or that which
// another dedup in front names, or a forged one. What a client sends under our prefix is removed.
func ownRun(r *http.Request) (within string) {
	if run := runOf(r.Context()); run != nil {
		return run.executionID
	}
	return httpfield.TakeDedup(r)
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

// toClient returns a writer to the request's client. A run of this process takes what it gets at the pace of
// its own client.
func (x *exchange) toClient() recording.Writer {
	limit := recording.WriteLimit{Idle: x.ClientIdle, Shared: x.r.ProtoMajor == 2, Within: x.within}
	if runOf(x.r.Context()) != nil {
		limit.Idle = 0
	}
	conn, _ := x.r.Context().Value(connKey{}).(net.Conn) // nil if it is unknown
	return recording.NewWriter(x.w, conn, limit)
}

// auditForce logs what became of a forced request that is not a forced run.
func (x *exchange) auditForce(decision engine.Decision) {
	switch d := decision.(type) {
	case *engine.Run:
		if d.ParentID() == "" {
			x.audit("force: no response is kept, and the request is an ordinary run", d.ExecutionID(), d.Attempt())
		}
	case engine.Replay:
		x.audit("force: the request got the response of the run that was in flight", d.Record.ExecutionID, d.Record.Attempt)
	case engine.Follow:
		x.audit("force: the request got the response of the run that was in flight", d.Record.ExecutionID, d.Record.Attempt)
	case engine.Refusal:
		id, attempt := d.Run()
		x.audit("force: the request was refused", id, attempt, zap.String("code", string(d.Reason)))
	}
}

// audit logs a forced request with its client.
func (x *exchange) audit(what, executionID string, attempt int, more ...zap.Field) {
	client, _ := caddyhttp.GetVar(x.r.Context(), caddyhttp.ClientIPVarKey).(string)
	x.Logger.Info(what, append(more,
		zap.Inline(x), zap.String("execution_id", executionID), zap.Int("attempt", attempt),
		zap.String("client_ip", client), userField(x.r))...)
}

// userField returns the user as a log field, if there is one.
func userField(r *http.Request) zap.Field {
	if user := report.User(r); user != "" {
		return zap.String("user", user)
	}
	return zap.Skip()
}
