package exchange

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// execution is a run on its way through the handlers behind: its context, its time limit, the trace
// of its way to an upstream, and its response. It is one object, because every first delivery needs
// all of it.
//
// It is the response writer of the handlers behind.
type execution struct {
	*exchange
	run    *engine.Run
	policy *idempotency.Policy

	context  runContext
	limit    runLimit
	upstream upstream.Trace
	response recorder
	settled  bool
}

// execute passes a run's request on, and settles its claim by how the handlers behind ended. The
// run stays in the request's goroutine, but not in the client's context: it goes on if the client
// leaves.
func (x *exchange) execute(run *engine.Run, policy *idempotency.Policy) error {
	e := &execution{exchange: x, run: run, policy: policy}
	e.announce()
	if run.Lapsed() != "" {
		x.Event(report.Takeover)
	}
	upstream.Forget(x.repl())
	e.startRun()
	defer e.limit.stop()
	e.response.init(x.toClient(), &e.limit, x.MaxResponseBody, x.headers, e.room())
	e.response.allowance.SetRun(run.ExecutionID())
	e.response.encrypted = x.Encrypted
	if x.Call() != nil {
		e.response.answer = x.keys.Calls.NewAnswer(x.MaxResponseBody, e.response.allowance.Part(), x.EventID())
	}
	defer e.response.close()

	returned := false
	defer func() {
		if returned {
			return
		}
		reason := recover()
		_ = e.finish(e.ended(upstream.PanicError(reason)))
		e.response.cut()
		if reason != nil { // else the goroutine exits
			panic(reason)
		}
	}()
	err := x.next.ServeHTTP(e, e.upstream.Request)
	returned = true
	e.deliver(e.finish(e.ended(err)))
	return nil
}

// room returns the room for the response: that of the run which the request is part of, or room of its own.
// The two wait, and exceed the limit, as one.
func (e *execution) room() budget.Allowance {
	if front := runOf(e.r.Context()); front != nil {
		return front.room.Part()
	}
	return budget.Allowance{Budget: e.Budget}
}

// announce names the run to placeholders, the client and the upstream.
func (e *execution) announce() {
	x, o, key := e.exchange, report.Executed, e.Key()
	id, attempt := e.run.ExecutionID(), e.run.Attempt()
	if parent := e.run.ParentID(); parent != "" {
		o, key = report.Forced, key.Forced(parent)
		x.w.Header().Set(httpfield.ParentID, parent)
		x.r.Header.Set(httpfield.ParentID, parent)
		x.audit("forced: a request that was complete runs again on purpose", id, attempt, zap.String("parent_id", parent))
	} else {
		delete(x.r.Header, httpfield.ParentID) // of a forced run in front
	}
	x.Set(o, id, attempt)
	x.w.Header().Set(httpfield.ExecutionID, id)
	names := []string{id, key.String()} // one allocation
	x.r.Header[httpfield.ExecutionID], x.r.Header[httpfield.Key] = names[:1:1], names[1:]
	if attempt > 1 {
		x.r.Header.Set(httpfield.Attempt, strconv.Itoa(attempt))
	} else {
		delete(x.r.Header, httpfield.Attempt) // of a run in front
	}
}

// startRun makes the request that the handlers behind get. Its context is not cancelled with the
// client's: it has a time limit of its own, and traces the connections of transports.
func (e *execution) startRun() {
	e.context = runContext{client: e.r.Context(), executionID: e.run.ExecutionID(), room: &e.response.allowance}
	e.upstream.Request = e.r
	ctx := e.limit.startTimer(e.upstream.Attach(&e.context, e.repl()), e.Timeout)
	e.upstream.Cancel = e.limit.cancel
	e.upstream.Request = e.upstreamRequest(e.r.WithContext(ctx))
}

// upstreamRequest removes from a request what the handlers behind must not get. Responses are
// stored unencoded, for all kinds of clients: without Accept-Encoding the upstream does not encode,
// and Go's transport decodes the encoding that it asks for itself.
func (e *execution) upstreamRequest(r *http.Request) *http.Request {
	r.Header = maps.Clone(r.Header)
	delete(r.Header, "Accept-Encoding")
	httpfield.RemoveUpgrade(r.Header)
	if connection := r.Header["Connection"]; len(connection) > 0 {
		httpfield.RemoveConnectionOptions(r.Header, e.keys.IsKeyField)
	}
	return r
}

// Header implements [http.ResponseWriter]. The client's own header is not changed.
func (e *execution) Header() http.Header { return e.response.header }

// Unwrap lets [http.ResponseController] set the read deadline and full duplex.
func (e *execution) Unwrap() http.ResponseWriter { return e.response.client }

// SetWriteDeadline keeps the handlers behind from changing the client's deadline: they write to the
// recording.
func (e *execution) SetWriteDeadline(time.Time) error { return http.ErrNotSupported }

// WriteHeader sends 1xx to the client, and records the final status. A transport may call it for
// 1xx from a goroutine of its own, while the handler waits for that transport.
func (e *execution) WriteHeader(status int) {
	switch c := &e.response; {
	case c.status != 0:
	case status == http.StatusSwitchingProtocols:
		c.status = status
		e.upgrade()
		c.sendHeader()
	case status < 100, status > 999:
		panic(fmt.Sprintf("the status %d is not between 100 and 999", status)) // as the server would, but before the status is stored
	case status < 200:
		c.inform(status)
	default:
		code := httpfield.First(c.header, httpfield.NotExecuted)
		c.setStatus(status)
		if code != "" && e.within != "" && !e.upstream.Way().SentBefore { // nor has the run in front executed anything
			c.answered.Set(httpfield.NotExecuted, code)
		}
		if isEventStream(c) {
			e.stream()
		}
	}
}

// Write records the bytes. It waits for room or, if the body is not kept, for the client. A body
// behind a status that has none, such as a PHP page may send, is dropped: with an error, a proxy
// would abort a response that is whole.
func (e *execution) Write(p []byte) (int, error) {
	c := &e.response
	if c.status == 0 {
		e.WriteHeader(http.StatusOK)
	}
	switch {
	case c.upgraded:
		return 0, http.ErrBodyNotAllowed
	case !httpfield.BodyAllowed(c.status):
		return len(p), nil
	}
	rest, outgrown := c.add(p)
	if outgrown {
		e.stream()
		e.settleEarly()
	}
	if c.passing {
		if err := c.record.Pass(rest); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// FlushError makes the response a stream, because the upstream wants the client to get what there
// is. A response without a body stays as it is, and is sent when it is stored.
func (e *execution) FlushError() error {
	c := &e.response
	if c.status == 0 {
		e.WriteHeader(http.StatusOK)
	}
	if c.declared != 0 && httpfield.BodyAllowed(c.status) && c.answer == nil { // that of a call is a stream by its type only
		e.stream()
	}
	return nil
}

// Flush implements [http.Flusher].
func (e *execution) Flush() { _ = e.FlushError() }

// Hijack hands the connection over, and settles the run: what follows on the connection is no
// response. If that fails, the run goes on and may still answer.
func (e *execution) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(e.response.client).Hijack()
	if err == nil {
		e.upgrade()
	}
	return conn, buffer, err
}

var (
	_ http.ResponseWriter = (*execution)(nil)
	_ http.Flusher        = (*execution)(nil)
	_ http.Hijacker       = (*execution)(nil)
)

// upgrade settles the run of a connection that has switched to another protocol.
func (e *execution) upgrade() {
	if !e.response.upgraded {
		e.response.upgraded = true
		e.settleEarly()
	}
}

// stream makes the response a stream, which duplicates follow, but those of calls: each has an id of its own.
func (e *execution) stream() {
	if e.Call() != nil { // a client that reads nothing holds the run back no longer than its time limit
		context.AfterFunc(e.limit.Context, e.response.own.Leave)
	}
	if e.response.stream() && e.Call() == nil {
		e.run.Stream(e.live())
	}
}

// settleEarly settles a run before the handlers behind have returned: its connection has switched
// to another protocol, its body has outgrown what is kept, or has the response to a call. From
// then on the run has no time limit.
func (e *execution) settleEarly() {
	e.limit.lift()
	o := e.ended(nil)
	o.Broken = false // the rest is to come
	_ = e.finish(o)
	if o.Early {
		e.response.record.WhenAbandoned(e.limit.stop)
		context.AfterFunc(e.r.Context(), e.response.own.Leave) // it may be the last reader of the rest
	}
}

// ended returns what was observed of the run so far. err is what the handlers behind have returned.
func (e *execution) ended(err error) upstream.Ended {
	c, way := &e.response, e.upstream.Way()
	broken := httpfield.HasWrongLength(e.r.Method, c.status, c.declared, c.written)
	var verdict upstream.Verdict
	if c.answer != nil {
		whole := err == nil && !broken
		if whole {
			c.readAnswer()
		}
		verdict = c.answer.Verdict(whole)
	}
	return upstream.Ended{
		Err:       err,
		Status:    c.status,
		Broken:    broken,
		Early:     c.passing,
		Upgraded:  c.upgraded,
		Verdict:   verdict,
		Way:       way,
		Releases:  e.policy.ReleaseOn.Has(way.Status) && !e.run.WasLast(),
		Retention: c.retention,

		NotExecuted: c.notExecuted,
	}
}

// finish settles the claim of the run by what was observed of it, unless it is settled already. It
// returns the error that the client gets in place of the response, nil for the response.
func (e *execution) finish(o upstream.Ended) error {
	if e.settled {
		_, _, err := o.End()
		return err
	}
	e.settled = true
	c := &e.response
	concluded := e.Rules.Conclude(o, e.policy, c, e.repl(), &e.Report)
	if errors.Is(concluded.Err, upstream.ErrNoHandler) {
		e.Becomes(report.NoHandler)
	}
	e.Count()
	end := concluded.End
	end.Reason = cmp.Or(c.notKept(), end.Reason)
	c.keep(end.Response)                                    // until it is stored, which may be after its request
	_, _ = e.run.Settle(end, c.stored, concluded.Fields...) // the engine logs the result
	c.allowance.Release(int64(c.copyRoom))
	e.leaveStore() // it isn't needed while the client reads
	return concluded.Err
}

// deliver gives the client of a settled run what it does not have yet: the response or, in place of
// it, an error.
func (e *execution) deliver(err error) {
	switch {
	case err == nil:
		reqbody.Release(e.r.Body) // the upstream has read it
		e.response.deliver()
		return
	case e.response.streaming:
		e.response.cut()
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
	e.response.yieldHeader()
	if errors.Is(err, upstream.ErrNoHandler) {
		e.refuseNoHandler(e.run.ExecutionID(), e.run.Attempt())
		return
	}
	e.fail(err)
}

// runContext is the parent of a run's context. Like that of [context.WithoutCancel], it has the
// values of the client's context, and is not cancelled with it. It also names the run.
type runContext struct {
	client      context.Context
	executionID string
	room        *budget.Allowance // for its response
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
