package exchange

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// execution is a run on its way through the handlers behind: its context, its time limit, the trace
// of its way to an upstream, and its response. It is one object, because every first delivery needs
// all of it.
type execution struct {
	*exchange
	run *engine.Run

	context  runContext
	limit    runLimit
	upstream upstreamTrace
	response recorder
}

// execute passes a run's request on, and settles its claim by how the handlers behind ended. The
// run stays in the request's goroutine, but not in the client's context: it goes on if the client
// leaves.
func (x *exchange) execute(run *engine.Run) error {
	e := &execution{exchange: x, run: run}
	e.announce()
	if run.Lapsed() != "" {
		x.traceEvent(spanTakeover)
	}
	forgetUpstream(x.repl())
	e.startRun()
	defer e.limit.stop()
	e.response.init(x.toClient(), x.MaxResponseBody, x.headers, x.allowance.Budget)
	e.response.head = e.r.Method == http.MethodHead
	e.response.limit, e.response.settle, e.response.share = &e.limit, e.settleEarly, e.shareStream
	if e.call != nil {
		e.response.tool = newToolAnswer(e.Handler, &e.response.allowance)
	}
	defer e.response.close()

	returned := false
	defer func() {
		if returned {
			return
		}
		reason := recover()
		_ = e.finish(e.observation(panicError(reason)))
		e.response.cut()
		if reason != nil { // else the goroutine exits
			panic(reason)
		}
	}()
	err := x.next.ServeHTTP(&e.response, e.upstream.request)
	returned = true
	return e.deliver(e.finish(e.observation(err)))
}

// panicError returns the error that stands for a panic.
func panicError(reason any) error {
	if reason == http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
		return errAborted
	}
	return errPanicked
}

// deliver gives the client of a settled run what it does not have yet: the response or, in place of
// it, an error.
func (e *execution) deliver(err error) error {
	switch {
	case err == nil:
		releaseBody(e.r.Body) // the upstream has read it
		e.response.deliver()
		return nil
	case e.response.streaming:
		e.response.cut()
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
	e.response.yieldHeader()
	if errors.Is(err, errNoHandler) {
		return e.refuseNoHandler(e.run.ExecutionID(), e.run.Attempt())
	}
	return e.failed(err)
}

// settleEarly settles a run before the handlers behind have returned: its connection has switched
// to another protocol, its body has outgrown what is kept, or has the response to a tool call. From
// then on the run has no time limit.
func (e *execution) settleEarly() {
	e.limit.lift()
	o := e.observation(nil)
	o.broken = false // the rest is to come
	_ = e.finish(o)
	if o.early {
		e.response.record.WhenAbandoned(e.limit.stop)
		context.AfterFunc(e.r.Context(), e.response.own.Leave) // it may be the last reader of the rest
	}
}

// shareStream lets duplicates follow the response, but for tool calls: each has an id of its own.
func (e *execution) shareStream() {
	if e.call == nil {
		e.run.Stream(e.live())
	}
}

// observation returns what was observed of the run so far. err is what the handlers behind have
// returned.
func (e *execution) observation(err error) observation {
	response, upstream := &e.response, e.upstream.observation()
	broken := response.broken()
	return observation{
		err:      err,
		status:   response.status,
		broken:   broken,
		early:    response.passing,
		upgraded: response.upgraded,
		tool:     response.tool.end(err == nil && !broken),
		upstream: upstream,
		releases: e.request.Policy.ReleaseOn.Has(upstream.status) && !e.run.WasLast(),
	}
}

// finish settles the claim of the run by what was observed of it, unless it is settled already. It
// returns the error that the client gets in place of the response, nil for the response.
func (e *execution) finish(o observation) error {
	end, share, err := o.end()
	if e.response.settled {
		return err
	}
	e.response.settled = true
	if errors.Is(err, errNoHandler) {
		e.outcome = OutcomeNoHandler
	}
	e.count()
	response := &e.response
	if share == shareResponse {
		defer response.allowance.Release(int64(response.takeCopyRoom(e.Encrypted)))
	}
	end.Response = response.shared(share, err)
	failure := e.saidFailure(end)
	end.SaysFailed = end.SaysFailed || failure != nil
	fields := e.explain(&end, cmp.Or(failure, o.cause(err)), response.retention)
	end.Reason = cmp.Or(response.notKept(), end.Reason)
	response.keep(end.Response)                          // until it is stored, which may be after its request
	_, _ = e.run.Settle(end, response.stored, fields...) // the engine logs the result
	e.leaveStore()                                       // it isn't needed while the client reads
	return err
}

// explain adds to the end of a run the upstream's Dedup-Retention and, for operators, the cause. It
// returns the fields of the run's log line.
func (x *exchange) explain(end *idempotency.End, cause error, retention string) []zap.Field {
	if wished := x.upstreamRetention(retention); end.Retention == nil {
		end.Retention = wished
	}
	fields, reason := x.runLogFields(cause, *end)
	end.Reason = reason
	return fields
}

// startRun makes the request that the handlers behind get. Its context is not cancelled with the
// client's: it has a time limit of its own, and traces the connections of transports.
func (e *execution) startRun() {
	e.context = runContext{client: e.r.Context(), executionID: e.run.ExecutionID()}
	e.upstream.request = e.r
	ctx := e.limit.startTimer(e.upstream.attach(&e.context, e.repl()), e.Timeout)
	e.upstream.cancel = e.limit.cancel
	e.upstream.request = e.upstreamRequest(e.r.WithContext(ctx))
}

// announce names the run to placeholders, the client and the upstream.
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
	x.w.Header().Set(executionIDHeader, id)
	x.r.Header.Set(executionIDHeader, id)
	if attempt > 1 {
		x.r.Header.Set(attemptHeader, strconv.Itoa(attempt))
	} else {
		delete(x.r.Header, attemptHeader) // of a run in front
	}
}

// upstreamRequest removes from a request what the handlers behind must not get. Responses are
// stored unencoded, for all kinds of clients: without Accept-Encoding the upstream does not encode,
// and Go's transport decodes the encoding that it asks for itself.
func (e *execution) upstreamRequest(r *http.Request) *http.Request {
	r.Header = maps.Clone(r.Header)
	delete(r.Header, "Accept-Encoding")
	removeUpgrade(r.Header)
	if connection := r.Header["Connection"]; len(connection) > 0 {
		removeConnectionOptions(r.Header, e.isKeyField)
	}
	return r
}

// isKeyField reports whether the key or its scope is made of a header field. What Connection names
// does not reach the upstream (RFC 9110, section 7.6.1), which is to get the key that was claimed.
func (h *Handler) isKeyField(name string) bool {
	return slices.ContainsFunc(h.keyFields, func(field string) bool { return strings.EqualFold(field, name) })
}

// runContext is the parent of a run's context. Like that of [context.WithoutCancel], it has the
// values of the client's context, and is not cancelled with it. It also names the run.
type runContext struct {
	client      context.Context
	executionID string
}

type runKey struct{}

// runOf returns the run of this process that a context belongs to, nil for none.
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

// noIdleTimeouts finds the context key of Caddy's idle timeouts. A `timeouts` handler behind would
// otherwise change the write timeout while the client is being written to.
var noIdleTimeouts = caddyhttp.ContextWithIdleTimeouts(context.Background(), nil, nil)

// runLimit is the time limit of a run, and the context that is cancelled by it. It is cancelled with
// DeadlineExceeded, for which reverse_proxy answers with 504, and not with 499.
type runLimit struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	ends   time.Time
}

// startTimer starts the limit, and returns a context that is cancelled by it.
func (l *runLimit) startTimer(ctx context.Context, timeout time.Duration) context.Context {
	l.Context, l.cancel = context.WithCancelCause(ctx)
	l.ends = time.Now().Add(timeout)
	l.timer = time.AfterFunc(timeout, l.exceed)
	return l
}

// Err implements [context.Context]. It returns the cause, because Go's HTTP/2 transport does not
// ask for that.
func (l *runLimit) Err() error { return context.Cause(l.Context) }

func (l *runLimit) exceed() { l.cancel(context.DeadlineExceeded) }

// stop cancels the run's context.
func (l *runLimit) stop() {
	l.timer.Stop()
	l.cancel(nil)
}

// lift removes the limit.
func (l *runLimit) lift() { l.timer.Stop() }

// pause stops the limit until resume is called.
func (l *runLimit) pause() (resume func()) {
	if !l.timer.Stop() { // it is lifted or exceeded
		return func() {}
	}
	paused := time.Now()
	return func() {
		l.ends = l.ends.Add(time.Since(paused))
		l.timer.Reset(time.Until(l.ends))
	}
}
