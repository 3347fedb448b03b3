package exchange

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// tap observes a request, which passes as without dedup. A goroutine beside the request finds the
// key in a copy of the request, claims it in a namespace of its own, and settles the claim by how
// the handlers behind ended.
type tap struct {
	*exchange // of the copy; only the goroutine uses it until reported is closed

	tee      *bodyTee // nil for a request without one
	response observedWriter
	proxies  steadyPlaceholders
	upstream upstreamTrace // of the request itself

	decided  atomic.Bool
	ended    chan tapEnd
	reported chan struct{} // closed when the outcome is known
}

// tapEnd is how the handlers behind ended.
type tapEnd struct {
	observation
	omitted   bool                // whether the body would not have been kept
	retention string              // the upstream's Dedup-Retention
	header    map[string][]string // [observedWriter.decisive]
}

// reportTimeout is how long a request whose handlers have ended waits for its outcome, for the
// access log. A working store needs less time for the claim, which started when the upstream had
// read the request. If the store was slower for the last request, none waits.
const reportTimeout = 50 * time.Millisecond

// errNotRead is why a request has no outcome whose body was not read to its end.
var errNotRead = errors.New("the handlers behind have not read the body to its end")

// observing returns the configuration of a handler under observe: it refuses nothing, and its keys and
// counts are its own.
func (c Config) observing() Config {
	c.Namespace = idempotency.ObservedNamespace(c.Namespace)
	c.RejectMissing = false
	c.Observer = requestsOnly{c.Observer}
	return c
}

// placeholders returns the names of the placeholders that keys, scopes and retentions are made from,
// without those of members of the body, which are read with the key.
func (c *Config) placeholders() (names []string) {
	texts := slices.Concat(c.keyTexts(), c.Scope, c.Caller)
	if c.RetentionFrom != nil {
		texts = append(texts, c.RetentionFrom.Source.Text)
	}
	for _, text := range texts {
		in, _ := PlaceholdersIn(text)
		names = append(names, in...)
	}
	names = slices.DeleteFunc(names, func(name string) bool {
		_, is := MemberPointer(name)
		return is
	})
	return append(names, CallerPlaceholders...)
}

// requestsOnly is an observer that counts requests, but no overloads.
type requestsOnly struct{ Observer }

// Overloaded implements [Observer].
func (requestsOnly) Overloaded(engine.Limit) {}

// observe passes a request and its response on as they are. Everything else happens beside them.
func (h *Handler) observe(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, info *requestInfo) (err error) {
	if h.Verify == nil && !h.applies(r) {
		return next.ServeHTTP(w, r)
	}
	t := h.newTap(w, r)
	go t.run()
	ctx, body, known, started := r.Context(), r.Body, info.key, time.Now()
	// In place: placeholders read the request itself, and handlers change it.
	*r = *r.WithContext(t.upstream.attach(ctx, &t.proxies))
	if t.tee != nil {
		r.Body = t.tee
	}
	returned := false
	defer func() {
		if !returned {
			reason := recover()
			if err = panicError(reason); reason != nil {
				defer panic(reason)
			}
		}
		*r = *r.WithContext(ctx)
		if t.tee != nil {
			t.tee.end(errNotRead)
			if r.Body == t.tee {
				r.Body = body
			}
		}
		t.ended <- t.end(err, time.Since(started))
		if t.isReported() && info.key == known { // else a dedup behind has found a key, and its outcome stays
			t.show(r, info)
		}
	}()
	err = next.ServeHTTP(&t.response, r)
	returned = true
	return err
}

// newTap returns the tap of a request, with a copy that the handlers behind do not change.
func (h *Handler) newTap(w http.ResponseWriter, r *http.Request) *tap {
	repl := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	own := caddy.NewEmptyReplacer()
	for _, name := range h.keyPlaceholders {
		if value, known := repl.Get(name); known {
			own.Set(name, caddy.ToString(value))
		}
	}
	ctx := trace.ContextWithSpan(context.WithoutCancel(r.Context()), nil) // show gives the span what is reported
	of := r.Clone(context.WithValue(ctx, caddy.ReplacerCtxKey, own))
	of.Body = http.NoBody
	delete(of.Header, "Expect") // the copy asks nothing of the client
	t := &tap{
		exchange: &exchange{
			Handler: h, r: of, info: infoOf(of), sender: &h.everySender, allowance: Allowance{Budget: h.Budget},
		},
		response: observedWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}},
		proxies:  steadyPlaceholders{repl: repl, hidden: make(map[string][2]string)},
		upstream: upstreamTrace{request: &http.Request{ContentLength: r.ContentLength}}, // without a body to take from the proxy
		ended:    make(chan tapEnd, 1),
		reported: make(chan struct{}),
	}
	t.info.logged = true // show adds it to the access log
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		t.tee = newBodyTee(r.Body, r.ContentLength, h.MaxRequestBody, h.Budget)
		of.Body = t.tee.copied()
	}
	if len(h.ReleaseIf) > 0 {
		t.response.tee = newBodyTee(nil, -1, maxFailureBody, h.Budget)
	}
	if h.Mode == delivery.ModeMCP {
		t.response.tool = newToolAnswer(h, nil)
	}
	t.exchange.body = requestBody{r: of, limit: h.MaxRequestBody, held: heldBody{allowance: &t.allowance}}
	forgetUpstream(&t.proxies)
	return t
}

// run is the goroutine beside the request. It ends when the handlers behind have ended, and the
// store has answered or timed out.
func (t *tap) run() {
	defer func() {
		if failed := recover(); failed != nil { // as the server recovers in the request's goroutine
			t.counted = true
			t.Logger.Error("unobserved: a panic beside the request, which passes", zap.Inline(t.exchange), zap.Any("panic", failed), zap.Stack("stack"))
			t.dropBody()
		}
		if t.response.tee != nil {
			t.response.tee.discard()
		}
		t.close()
	}()
	run := t.observeKey()
	t.decided.Store(true)
	if run == nil {
		t.count()
		close(t.reported)
		return
	}
	t.finish(run, <-t.ended)
}

// observeKey looks for the request's key. It returns the run of a request that would have run, and
// nil for any other, whose outcome it reports.
func (t *tap) observeKey() *engine.Run {
	d := t.verifyAndIdentify()
	t.dropBody()
	switch d := d.(type) {
	case claim:
		return t.claimObserved(d.Request)
	case pass:
		t.reportPass(d)
	case cancellation:
		t.counted = true
	case refusal:
		t.reportRefused(engine.Refusal{Reason: d.reason, Err: errors.New(d.detail)})
	case unreadBody:
		if errors.Is(d.err, errNotRead) {
			t.unobserved(errNotRead) // the request itself gets no status for it
		} else {
			t.report(unreadOutcome(d.err), "", 0)
		}
	}
	return nil
}

// claimObserved claims a request's key, and reports the outcome that the request would have had. It
// returns the run of one that would have run.
func (t *tap) claimObserved(request *engine.Request) *engine.Run {
	request.Observed, request.Wait = true, 0
	request.Force = t.Force != "" && t.r.Header.Get(t.Force) == "true"
	decision, err := t.decideSettled(request)
	if err != nil {
		t.unobserved(err)
		return nil
	}
	t.noteDiffering(decision)
	switch d := decision.(type) {
	case *engine.Run:
		o := OutcomeExecuted
		if d.ParentID() != "" {
			o = OutcomeForced
		}
		t.report(o, d.ExecutionID(), d.Attempt())
		return d
	case engine.Replay:
		t.report(t.answer.outcome, d.Record.ExecutionID, d.Record.Attempt)
	case engine.Refusal:
		t.reportRefused(d)
	}
	return nil
}

// decideSettled asks the engine. If the engine refuses the request beside a run whose handlers have
// ended, it asks again when that run is settled: without observe, a response is stored before its
// client has it.
func (t *tap) decideSettled(request *engine.Request) (engine.Decision, error) {
	for {
		asked := time.Now()
		decision, err := t.decide(request)
		t.slowStore.Store(time.Since(asked) > reportTimeout)
		beside, _ := decision.(engine.Refusal)
		besideRun, _ := beside.Run()
		settled, is := t.settling.Load(besideRun)
		if beside.Reason != engine.ReasonInFlight || !is {
			return decision, err
		}
		t.leaveStore()
		<-settled.(chan struct{})
	}
}

// dropBody drops what was read of the body.
func (t *tap) dropBody() {
	t.exchange.body, t.r.Body = requestBody{}, http.NoBody
	t.allowance.ReleaseAll()
	if t.tee != nil {
		t.tee.discard()
	}
}

// reportRefused reports the outcome of a request that would have been refused, or would have
// waited. There is none if the store failed or there was no room.
func (t *tap) reportRefused(d engine.Refusal) {
	id, attempt := d.Run()
	switch {
	case d.Reason == engine.ReasonUnavailable, d.Reason == engine.ReasonOverloaded:
		t.unobserved(d.Err)
	case d.Reason == engine.ReasonInFlight && t.Wait > 0:
		t.report(OutcomeWaited, id, attempt)
	default:
		t.report(refusalRules[d.Reason].outcome, id, attempt)
	}
}

// unobserved logs, at most once a second, why a request has no outcome.
func (t *tap) unobserved(err error) {
	t.counted = true
	if leftOut, ok := t.unobservedLog.allow(time.Since(start), ""); ok {
		t.Logger.Warn("unobserved: a request passes, and what would have become of it is unknown",
			zap.Inline(t.exchange), zap.Error(err), zap.Int64("left_out", leftOut))
	}
}

// finish settles a run as if the handlers behind had run for dedup. It stores no body.
func (t *tap) finish(run *engine.Run, o tapEnd) {
	o.releases = t.request.Policy.ReleaseOn.Has(o.upstream.status) && !run.WasLast()
	end, share, err := o.end()
	if errors.Is(err, errNoHandler) {
		t.outcome = OutcomeNoHandler
	}
	settled := make(chan struct{})
	t.settling.Store(run.ExecutionID(), settled)
	defer func() {
		t.settling.Delete(run.ExecutionID())
		close(settled)
	}()
	close(t.reported)
	switch share {
	case shareResponse:
		end.Response = &idempotency.Response{Status: o.status, Header: o.header, Omitted: o.omitted}
	case shareEmpty:
		end.Response = &idempotency.Response{Status: http.StatusOK}
	case shareError:
		end.Response = &idempotency.Response{Status: failedStatus(err), Failed: true}
	}
	failure := t.saidFailure(end)
	end.SaysFailed = end.SaysFailed || failure != nil
	fields := t.explain(&end, cmp.Or(failure, o.cause(err)), o.retention)
	_, _ = run.Settle(end, nil, fields...) // the engine logs the result
	t.count()
}

// end returns how the handlers behind ended. They returned err after the time took.
func (t *tap) end(err error, took time.Duration) tapEnd {
	w := &t.response
	omitted := w.written > t.MaxResponseBody
	early := omitted
	if w.tool != nil {
		early = w.tool.found
		omitted = w.tool.omitted()
	}
	if took > t.Timeout && !early {
		err = caddyhttp.Error(http.StatusGatewayTimeout, context.DeadlineExceeded)
	}
	for _, name := range []string{upstreamAddress, upstreamHostPort} { // for the log
		if value, known := t.proxies.Get(name); known {
			t.repl().Set(name, value)
		}
	}
	broken := w.broken()
	defer w.tool.release() // no body is stored
	return tapEnd{
		observation: observation{
			err:      err,
			status:   w.status,
			broken:   broken,
			early:    early,
			upgraded: w.status == http.StatusSwitchingProtocols,
			tool:     w.tool.end(err == nil && !broken),
			upstream: t.upstream.observation(),
		},
		omitted:   omitted,
		retention: firstValue(w.Header(), retentionHeader),
		header:    w.decisive(),
	}
}

// isReported reports whether the outcome is known. It waits for it, for up to reportTimeout.
func (t *tap) isReported() bool {
	if t.slowStore.Load() && !t.decided.Load() {
		return false
	}
	timer := time.NewTimer(reportTimeout)
	defer timer.Stop()
	select {
	case <-t.reported:
		return true
	case <-timer.C:
		t.slowStore.Store(true)
		return false
	}
}

// show reports the outcome in placeholders, access log and traces of the request itself. It runs in
// the request's goroutine.
func (t *tap) show(r *http.Request, info *requestInfo) {
	if t.outcome == "" {
		return
	}
	// The tap goes on in its own goroutine: what is asked for from here on is read anew.
	shown := &exchange{Handler: t.Handler, r: r, info: info, found: t.found, key: t.key, counted: true, decision: t.decision, ended: true}
	info.differs = t.info.differs
	shown.report(t.outcome, t.info.executionID, t.info.attempt)
	switch t.decision.(type) {
	case engine.Replay, engine.Refusal: // what is known of the first run
		info.exchange = shown
	}
}
