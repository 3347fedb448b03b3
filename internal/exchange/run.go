package exchange

import (
	"context"
	"errors"
	"fmt"
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
	how     idempotency.How // it ended, once it is settled

	context runContext
	limit   runLimit
	trace   upstreamTrace
	answer  capture
	named   struct{ toClient, toUpstream, attempt oneValue }
}

// carryOut lets a run's request through and settles its claim by how the
// handlers behind ended. The run stays in the request's goroutine, but not under
// the client's context: a client that goes away ends nothing.
func (x *exchange) carryOut(run *engine.Run) error {
	e := &execution{exchange: x, run: run}
	e.announce()
	if run.Lapsed() != "" {
		x.traceEvent(spanTakeover)
	}
	forgetUpstream(x.repl())
	ctx := e.begin()
	defer e.limit.end()
	e.answer.begin(e, x.toClient(), x.MaxResponseBody, x.headers, x.allowance.Budget)
	defer e.answer.close()

	ended := false
	defer func() {
		if !ended { // a panic
			e.settle(errAborted)
			e.answer.cut()
		}
	}()
	e.trace.request = e.forUpstream(x.r.WithContext(ctx))
	err := x.next.ServeHTTP(&e.answer, e.trace.request)
	ended = true
	switch way := e.trace.seen(err); {
	case way.resent: // for which reverse_proxy has written 499
		err = caddyhttp.Error(http.StatusBadGateway, errors.New(errResent.Error()))
	case err == nil && !e.settled && e.answer.status == 0 && way.nothingSent():
		err, e.outcome = errNoHandler, OutcomeNoHandler
	}
	e.settle(err)
	return e.deliver(err)
}

// deliver gives the client of a run that has ended what it does not have yet.
func (e *execution) deliver(err error) error {
	switch {
	case e.answer.streaming && (err != nil || e.answer.broken()):
		e.answer.cut()
		panic(http.ErrAbortHandler) // a cut response must not look whole
	case errors.Is(err, errNoHandler):
		e.answer.giveUp()
		return e.refuseNoHandler(e.run.ExecutionID(), e.run.Attempt())
	case err != nil:
		e.answer.giveUp()
		return e.failed(err)
	case e.how == idempotency.Unknown && e.answer.status == 0 && !e.answer.upgraded:
		return e.failed(caddyhttp.Error(http.StatusBadGateway, errors.New("the upstream gave no response")))
	case e.answer.broken():
		return e.failed(caddyhttp.Error(http.StatusBadGateway, errors.New("the response was cut off")))
	}
	letGo(e.r.Body) // it has done its part
	e.answer.finish()
	return nil
}

// upgraded implements [capturedRun].
func (e *execution) upgraded() {
	e.limit.lift()
	e.settle(nil)
}

// streams implements [capturedRun].
func (e *execution) streams() { e.run.Stream(e.live()) }

// outgrown implements [capturedRun].
func (e *execution) outgrown() {
	e.answer.record.Abandoned = e.limit.end
	e.limit.lift()
	e.settle(nil)
	context.AfterFunc(e.r.Context(), e.answer.own.Leave) // it may be the last who needs the rest
}

// waits implements [capturedRun].
func (e *execution) waits() (goOn func()) { return e.limit.pause() }

// settle ends the run, if it has not ended yet. The room that its response takes is
// needed until that is stored, which may be after its request.
func (e *execution) settle(err error) {
	if e.settled {
		return
	}
	e.settled = true
	e.count()
	answer, way := &e.answer, e.trace.seen(err)
	end := conclude(err, answer, way)
	if end.How == idempotency.Unknown && answer.status == 0 && way.answered && e.request.Policy.ReleaseOn.Has(way.status) && !e.run.WasLast() {
		end.How = idempotency.Answered // with a failure, of which a handler behind has made an error
	}
	if end.Retention == nil {
		end.Retention = e.wishedRetention(answer)
	}
	e.how = end.How
	answer.record.Keep()
	e.run.OnStored(answer.record.Unkeep)
	if end.Response != nil {
		copied := len(end.Response.Body) // as it is stored
		answer.taken.Count(copied)
		defer answer.taken.Release(int64(copied))
	}
	cause := err
	if err == nil && way.unanswered() {
		cause = way.failed
	}
	facts, reason := e.runLogFields(cause, end)
	end.Reason = reason
	e.run.Explain(facts...)
	_, _ = e.run.End(end) // the engine logs what became of it
	e.leaveStore()        // what is left is the client's own affair
}

// errAborted stands for a panic: the run was aborted, or its upstream died in the
// middle of a body.
var errAborted = errors.New("aborted")

// errNoHandler is how a run ends that no handler behind has answered.
var errNoHandler = errors.New("no handler behind dedup answered the request")

// conclude says how a run ended: by the error that the handlers behind returned
// ([errAborted] if they panicked), by what they wrote, and by what was seen of the
// way to an upstream. With it comes what those get who wait for the run: its
// response, or, where there is none, the error that its client gets.
func conclude(err error, answer *capture, way upstreamWay) idempotency.End {
	end := idempotency.End{UpstreamStatus: way.status}
	switch {
	case answer.upgraded: // what goes on there is no response
		end.How = idempotency.Unknown
	case answer.omitted:
		// It is settled where it outgrows what is kept, whatever comes behind.
		end.How = idempotency.Answered
	case errors.Is(err, errAborted):
		end.How = idempotency.Unknown
	case err == nil && (answer.status == statusClientGone && way.gaveUp() || answer.whole() && way.unanswered()):
		end.How = idempotency.Unknown
		if !way.maybeSent {
			end.How = idempotency.NotSent
		}
	case err == nil && answer.whole():
		end.How = idempotency.Answered
	case err == nil && answer.status == 0 && way.status >= 200:
		// The upstream answered, and a response handler made nothing of it. Its client has the
		// server's empty 200, and so have duplicates: to run again what was executed would be worse.
		end.How = idempotency.Answered
		if !way.maybeSent {
			end.Retention = new(time.Duration)
		}
	case answer.status != 0 || way.maybeSent:
		end.How = idempotency.Unknown
	default:
		end.How = idempotency.NotSent
	}
	end.Response = responseOf(end.How, err, answer, way)
	return end
}

// responseOf returns what those get who wait for a run that ended so, nil where they run
// themselves.
func responseOf(how idempotency.How, err error, answer *capture, way upstreamWay) *idempotency.Response {
	switch {
	case answer.upgraded, errors.Is(err, errNoHandler):
		return nil // the connection is its own client's, or there is no answer: they run, too
	case err == nil && answer.whole() && !answer.omitted && way.unanswered():
		return answer.response() // the page, as the first client gets it
	case how == idempotency.Unknown, err == nil && answer.status == statusClientGone && way.gaveUp():
		return &idempotency.Response{Status: failedStatus(err), Failed: true}
	case err == nil && answer.status == 0:
		// As the server answers the first client.
		return &idempotency.Response{Status: http.StatusOK, Header: answer.rules.kept(answer.found, answer.header)}
	case how == idempotency.Answered, err == nil:
		return answer.response()
	default:
		return &idempotency.Response{
			Status: failedStatus(err), Failed: true,
			Header: answer.rules.kept(answer.found, answer.header),
		}
	}
}

// failedStatus returns the status with which Caddy answers an error, and 502 for a
// response that is not whole.
func failedStatus(err error) int {
	var handlerError caddyhttp.HandlerError
	switch {
	case errors.As(err, &handlerError) && handlerError.StatusCode != 0:
		return handlerError.StatusCode
	case err != nil && !errors.Is(err, errAborted):
		return http.StatusInternalServerError
	default:
		return http.StatusBadGateway
	}
}

// wishedRetention reads the upstream's Dedup-Retention, which is no longer than the longest
// that can be configured. One that is not a number of seconds is logged, and the configured
// retention stays.
func (x *exchange) wishedRetention(answer *capture) *time.Duration {
	if answer.retention == "" {
		return nil
	}
	const most = uint64(MaxRetention / time.Second)
	seconds, err := strconv.ParseUint(answer.retention, 10, 64)
	if seconds > most && (err == nil || errors.Is(err, strconv.ErrRange)) {
		x.Logger.Warn("the upstream's "+retentionHeader+" is longer than a response can be kept; it is kept for the most",
			zap.String("value", fmt.Sprintf("%.40q", answer.retention)), zap.Uint64("most_seconds", most))
		seconds, err = most, nil
	}
	if err != nil {
		x.Logger.Warn("the upstream's "+retentionHeader+" is not a number of seconds; the configured retention stays",
			zap.String("value", fmt.Sprintf("%.40q", answer.retention)))
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

// begin returns the context for the run: not the client's, and with a limit of its own,
// which can be lifted. A transport's connections are observed in it.
func (e *execution) begin() context.Context {
	e.context = runContext{client: e.r.Context(), executionID: e.run.ExecutionID()}
	ctx := e.limit.begin(e.trace.observe(&e.context, e.repl()), e.Timeout)
	e.trace.cancel = e.limit.cancel
	return ctx
}

// announce tells placeholders, the client and the upstream which run it is.
func (e *execution) announce() {
	x, o := e.exchange, OutcomeFresh
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
	e.named.attempt.set(x.r.Header, attemptHeader, strconv.Itoa(attempt))
}

// auditForce notes what became of a request that was forced and is no run of its own on purpose.
func (x *exchange) auditForce(decision engine.Decision) {
	switch d := decision.(type) {
	case *engine.Run:
		if d.ParentID() == "" {
			x.audit("force: nothing is complete, and the request is an ordinary run", d.ExecutionID(), d.Attempt())
		}
	case engine.Replay:
		x.audit("force: the request got the response of the run that was in flight", d.Record.ExecutionID, d.Record.Attempt)
	case engine.Follow:
		x.audit("force: the request got the response of the run that was in flight", d.Record.ExecutionID, d.Record.Attempt)
	case engine.Refusal:
		x.audit("force: the request was refused", d.ExecutionID, d.Attempt, zap.String("code", string(d.Reason)))
	}
}

// audit notes who has asked for a run on purpose.
func (x *exchange) audit(what, executionID string, attempt int, more ...zap.Field) {
	client, _ := caddyhttp.GetVar(x.r.Context(), caddyhttp.ClientIPVarKey).(string)
	x.Logger.Info(what, append(more,
		zap.String("key", x.keyText()), zap.String("execution_id", executionID), zap.Int("attempt", attempt),
		zap.String("provider", x.found.Provider), x.loggedID(),
		zap.Inline(x), zap.String("client_ip", client), userField(x.r))...)
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

// loggedID is the delivery ID as a log field. What is encrypted in the store does
// not stand in the log.
func (x *exchange) loggedID() zap.Field {
	if x.Encrypted || x.found.ID == "" {
		return zap.Skip()
	}
	return zap.String("delivery_id", x.found.ID)
}

// forUpstream makes the request, which is the caller's own, the one that the handlers
// behind get. Responses are kept unencoded, for clients of all kinds: without
// Accept-Encoding the upstream has no reason to encode, and Go's transport decodes what
// it asked for itself.
func (e *execution) forUpstream(r *http.Request) *http.Request {
	r.Header = r.Header.Clone()
	delete(r.Header, "Accept-Encoding")
	removeH2C(r.Header)
	return r
}
