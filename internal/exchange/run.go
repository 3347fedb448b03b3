package exchange

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// execution is a run on its way through the handlers behind, with all that only a run
// needs: its context, its time limit, what is seen of its way to an upstream, and its
// response. It is one object, because every first delivery needs all of it.
type execution struct {
	*exchange
	run     *engine.Run
	settled bool

	context  runContext
	limit    runLimit
	upstream upstreamTrace
	response recorder
	named    struct{ toClient, toUpstream, attempt headerValue }
}

// carryOut lets a run's request through and settles its claim by how the
// handlers behind ended. The run stays in the request's goroutine, but not under
// the client's context: a client that leaves ends nothing.
func (x *exchange) carryOut(run *engine.Run) error {
	e := &execution{exchange: x, run: run}
	e.announce()
	if run.Lapsed() != "" {
		x.traceEvent(spanTakeover)
	}
	forgetUpstream(x.repl())
	e.begin()
	defer e.limit.end()
	e.response.begin(e, x.toClient(), x.MaxResponseBody, x.headers, x.allowance.Budget)
	defer e.response.close()

	ended := false
	defer func() {
		if !ended { // a panic
			e.settle(e.conclude(errAborted))
			e.response.cut()
		}
	}()
	err := x.next.ServeHTTP(&e.response, e.upstream.request)
	ended = true
	end := e.conclude(err)
	e.settle(end)
	return e.deliver(end.err)
}

// deliver gives the client of a settled run what it does not have yet: the response, or an error
// in its place.
func (e *execution) deliver(err error) error {
	switch {
	case err == nil:
		releaseBody(e.r.Body) // the upstream has read it
		e.response.finish()
		return nil
	case e.response.streaming:
		e.response.cut()
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
	e.response.giveUp()
	if errors.Is(err, errNoHandler) {
		return e.refuseNoHandler(e.run.ExecutionID(), e.run.Attempt())
	}
	return e.failed(err)
}

// upgraded implements [recordedRun].
func (e *execution) upgraded() {
	e.limit.lift()
	e.settle(e.conclude(nil))
}

// streams implements [recordedRun].
func (e *execution) streams() { e.run.Stream(e.live()) }

// outgrown implements [recordedRun].
func (e *execution) outgrown() {
	e.response.record.Abandoned = e.limit.end
	e.limit.lift()
	end := e.conclude(nil)
	end.err = nil // the rest is to come
	e.settle(end)
	context.AfterFunc(e.r.Context(), e.response.own.Leave) // it may be the last reader of the rest
}

// waits implements [recordedRun].
func (e *execution) waits() (goOn func()) { return e.limit.pause() }

// conclude returns how the run ended, by what was observed of it until the handlers behind
// returned an error or nil.
func (e *execution) conclude(err error) ending {
	response, upstream := &e.response, e.upstream.observed(err)
	return observation{
		err:      err,
		status:   response.status,
		broken:   response.broken(),
		omitted:  response.omitted,
		upgraded: response.upgraded,
		upstream: upstream,
		releases: e.request.Policy.ReleaseOn.Has(upstream.status) && !e.run.WasLast(),
	}.ending()
}

// settle ends the run, if it is not settled yet. The room that its response takes is
// needed until that is stored, which may be after its request.
func (e *execution) settle(ended ending) {
	if e.settled {
		return
	}
	e.settled = true
	if errors.Is(ended.err, errNoHandler) {
		e.outcome = OutcomeNoHandler
	}
	e.count()
	end := idempotency.End{
		How: ended.how, UpstreamStatus: ended.upstream.status, Retention: e.wishedRetention(e.response.retention), Response: e.response.shared(ended),
	}
	if ended.frees {
		end.Retention = new(time.Duration)
	}
	e.response.record.Keep()
	e.run.OnStored(e.response.record.Unkeep)
	if end.Response != nil {
		copied := len(end.Response.Body) // as it is stored
		e.response.taken.Count(copied)
		defer e.response.taken.Release(int64(copied))
	}
	fields, reason := e.runLogFields(ended.cause(), end)
	end.Reason = reason
	e.run.Explain(fields...)
	_, _ = e.run.End(end) // the engine logs what became of it
	e.leaveStore()        // which is not needed while the client reads
}

// wishedRetention reads the upstream's Dedup-Retention, which is no longer than the longest
// that can be configured. One that is not a number of seconds is logged, and the configured
// retention stays.
func (x *exchange) wishedRetention(text string) *time.Duration {
	if text == "" {
		return nil
	}
	const most = uint64(MaxRetention / time.Second)
	seconds, err := strconv.ParseUint(text, 10, 64)
	if seconds > most && (err == nil || errors.Is(err, strconv.ErrRange)) {
		x.Logger.Warn("the upstream's "+retentionHeader+" is longer than the maximum, which applies",
			zap.String("value", fmt.Sprintf("%.40q", text)), zap.Uint64("max_seconds", most))
		seconds, err = most, nil
	}
	if err != nil {
		x.Logger.Warn("the upstream's "+retentionHeader+" is not a number of seconds; the configured retention stays",
			zap.String("value", fmt.Sprintf("%.40q", text)))
		return nil
	}
	wished := time.Duration(seconds) * time.Second
	return &wished
}

// runContext is what the context of a run is made from. It has the values of the client's
// context, and does not end with it, like that of [context.WithoutCancel]. It also says
// which run it is.
type runContext struct {
	client      context.Context
	executionID string
}

type runKey struct{}

// runOf returns the run in this process that a context belongs to, nil for none.
func runOf(ctx context.Context) *runContext {
	run, _ := ctx.Value(runKey{}).(*runContext)
	return run
}

// Deadline implements [context.Context].
func (*runContext) Deadline() (time.Time, bool) { return time.Time{}, false }

// Done implements [context.Context].
func (*runContext) Done() <-chan struct{} { return nil }

// Err implements [context.Context].
func (*runContext) Err() error { return nil }

// Value implements [context.Context].
func (c *runContext) Value(key any) any {
	switch {
	case key == (runKey{}):
		return c
	case noIdleTimeouts.Value(key) != nil:
		reader, _ := caddyhttp.IdleTimeoutsFromContext(c.client)
		return caddyhttp.ContextWithIdleTimeouts(context.Background(), reader, nil).Value(key)
	}
	return c.client.Value(key)
}

// noIdleTimeouts tells the key under which Caddy has the client's writer with its time limit.
// A `timeouts` handler behind would change that while the client is being written to.
var noIdleTimeouts = caddyhttp.ContextWithIdleTimeouts(context.Background(), nil, nil)

// begin makes the request that the handlers behind get. Its context is not the client's, and has
// a limit of its own, which can be lifted. A transport's connections are observed in it.
func (e *execution) begin() {
	e.context = runContext{client: e.r.Context(), executionID: e.run.ExecutionID()}
	e.upstream.request = e.r
	ctx := e.limit.begin(e.upstream.observe(&e.context, e.repl()), e.Timeout)
	e.upstream.cancel = e.limit.cancel
	e.upstream.request = e.forUpstream(e.r.WithContext(ctx))
}

// announce tells placeholders, the client and the upstream which run it is.
func (e *execution) announce() {
	x, o := e.exchange, OutcomeExecuted
	id, attempt := e.run.ExecutionID(), e.run.Attempt()
	if parent := e.run.ParentID(); parent != "" {
		o = OutcomeForced
		x.w.Header().Set(parentIDHeader, parent)
		x.r.Header.Set(parentIDHeader, parent)
		x.audit("forced: a request that was complete runs again on purpose", id, attempt, zap.String("parent_id", parent))
	} else {
		delete(x.r.Header, parentIDHeader) // of a forced run in front
	}
	x.report(o, id, attempt)
	e.named.toClient.set(x.w.Header(), executionIDHeader, id)
	e.named.toUpstream.set(x.r.Header, executionIDHeader, id)
	if attempt > 1 {
		e.named.attempt.set(x.r.Header, attemptHeader, strconv.Itoa(attempt))
	} else {
		delete(x.r.Header, attemptHeader) // of a run in front
	}
}

// auditForce notes what became of a request that was forced and is no run of its own on purpose.
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
		x.audit("force: the request was refused", d.ExecutionID, d.Attempt, zap.String("code", string(d.Reason)))
	}
}

// audit logs a forced request with its client.
func (x *exchange) audit(what, executionID string, attempt int, more ...zap.Field) {
	client, _ := caddyhttp.GetVar(x.r.Context(), caddyhttp.ClientIPVarKey).(string)
	x.Logger.Info(what, append(more,
		zap.Inline(x), zap.String("execution_id", executionID), zap.Int("attempt", attempt),
		zap.String("client_ip", client), userField(x.r))...)
}

// User returns the user whom a handler in front has authenticated, "" for none.
func User(r *http.Request) string {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		return "" // the admin API has none
	}
	user, _ := repl.GetString("http.auth.user.id")
	return user
}

// userField is the user as a log field, if there is one.
func userField(r *http.Request) zap.Field {
	if user := User(r); user != "" {
		return zap.String("user", user)
	}
	return zap.Skip()
}

// forUpstream makes the request, which is the caller's own, the one that the handlers
// behind get. Responses are kept unencoded, for clients of all kinds: without
// Accept-Encoding the upstream has no reason to encode, and Go's transport decodes what
// it asked for itself.
func (e *execution) forUpstream(r *http.Request) *http.Request {
	r.Header = maps.Clone(r.Header)
	delete(r.Header, "Accept-Encoding")
	removeH2C(r.Header)
	return r
}
