package exchange

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"strconv"
	"time"

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
	response, upstream := &e.response, e.upstream.observed()
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
	if ended.waiting == getResponse {
		defer e.response.taken.Release(int64(e.response.takeCopyRoom(e.Encrypted)))
	}
	shared := e.response.shared(ended)
	e.response.record.Keep()
	e.run.OnStored(e.response.record.Unkeep)
	e.end(e.run, ended, e.response.retention, shared, e.response.notKept())
	e.leaveStore() // which is not needed while the client reads
}

// end ends a run with the upstream's Dedup-Retention and with what requests get that wait for it.
// notKept says why that has no body, although the response has one.
func (x *exchange) end(run *engine.Run, ended ending, retention string, shared *idempotency.Response, notKept string) {
	end := idempotency.End{
		How: ended.how, UpstreamStatus: ended.upstream.status, Retention: x.wishedRetention(retention), Response: shared,
	}
	if ended.frees {
		end.Retention = new(time.Duration)
	}
	fields, reason := x.runLogFields(ended.cause(), end)
	end.Reason = cmp.Or(notKept, reason)
	run.Explain(fields...)
	_, _ = run.Settle(end) // the engine logs what became of it
}

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

// forUpstream makes the request, which is the caller's own, the one that the handlers
// behind get. Responses are kept unencoded, for clients of all kinds: without
// Accept-Encoding the upstream has no reason to encode, and Go's transport decodes what
// it asked for itself.
func (e *execution) forUpstream(r *http.Request) *http.Request {
	r.Header = maps.Clone(r.Header)
	delete(r.Header, "Accept-Encoding")
	removeUpgrade(r.Header)
	return r
}
