// Package observe reports what dedup would do with requests, which pass as they are.
package observe

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// Config is the configuration of a handler, checked and with its defaults filled in.
type Config struct {
	Identify identify.Config
	Report   *report.Reporter
	Rules    upstream.Rules

	Timeout         time.Duration // of one run
	Wait            time.Duration // maximum for a duplicate; with 0 it would be refused at once
	OnDuplicate     idempotency.OnDuplicate
	MaxResponseBody int64 // bytes

	Store  *storepool.Handle
	Budget *budget.Budget
}

// Handler observes requests. It is used concurrently.
type Handler struct {
	Config
	keys *identify.Identifier

	placeholders  []string    // of which keys, scopes and retentions are made
	slowStore     atomic.Bool // the last claim took longer than reportTimeout
	settling      sync.Map    // runs being settled, by execution ID; a channel for each, closed when it is
	unobservedLog report.Sampler
}

// New returns a handler. It refuses nothing, and its keys and counts are its own.
func New(c Config) *Handler {
	c.Identify.Observe = true
	c.Identify.Namespace = idempotency.ObservedNamespace(c.Identify.Namespace)
	c.Identify.RejectMissing = false
	c.Report.Observed = true
	c.Report.Observer = requestsOnly{c.Report.Observer}
	return &Handler{Config: c, keys: identify.New(c.Identify), placeholders: c.Identify.Placeholders()}
}

// tap observes a request, which passes as without dedup. A goroutine beside the request finds the
// key in a copy of the request, claims it in a namespace of its own, and settles the claim by how
// the handlers behind ended.
type tap struct {
	*Handler
	// What follows is of the copy, and only the goroutine uses it until reported is closed.
	identify.Request
	r     *http.Request
	info  *report.Info
	first *report.FirstRun // of a duplicate, nil for any other
	store *storepool.Store // until it is left

	tee      *bodyTee // nil for a request without one
	response observedWriter
	proxies  steadyPlaceholders
	upstream upstream.Trace // of the request itself

	decided  atomic.Bool
	ended    chan upstream.Ended
	reported chan struct{} // closed when the outcome is known
}

// reportTimeout is how long a request whose handlers have ended waits for its outcome, for the
// access log. A working store, on a slow disk too, needs less for the claim, which started when the upstream had
// read the request. If the store was slower for the last request, none waits.
const reportTimeout = 250 * time.Millisecond

// errNotRead is why a request has no outcome whose body was not read to its end.
var errNotRead = errors.New("the handlers behind have not read the body to its end")

// requestsOnly is an observer that counts requests, but no overloads.
type requestsOnly struct{ report.Observer }

// Overloaded implements [report.Observer].
func (requestsOnly) Overloaded(engine.Limit) {}

// ServeHTTP passes a request and its response on as they are. Everything else happens beside them.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) (err error) {
	info := report.InfoOf(r)
	if !h.keys.Applies(r) {
		return next.ServeHTTP(w, r)
	}
	t := h.newTap(w, r)
	go t.run()
	ctx, body, known, started := r.Context(), r.Body, info.Key(), time.Now()
	// In place: placeholders read the request itself, and handlers change it.
	*r = *r.WithContext(t.upstream.Attach(ctx, &t.proxies))
	if t.tee != nil {
		r.Body = t.tee
	}
	returned := false
	defer func() {
		if !returned {
			reason := recover()
			if err = upstream.PanicError(reason); reason != nil {
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
		if t.isReported() && info.Key() == known { // else a dedup behind has found a key, and its outcome stays
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
	for _, name := range h.placeholders {
		if value, known := repl.Get(name); known {
			own.Set(name, caddy.ToString(value))
		}
	}
	ctx := trace.ContextWithSpan(context.WithoutCancel(r.Context()), nil) // show gives the span what is reported
	of := r.Clone(context.WithValue(ctx, caddy.ReplacerCtxKey, own))
	of.Body = http.NoBody
	delete(of.Header, "Expect") // the copy asks nothing of the client
	t := &tap{
		Handler:  h,
		r:        of,
		info:     report.InfoOf(of),
		response: observedWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}},
		proxies:  steadyPlaceholders{repl: repl, hidden: make(map[string][2]string)},
		upstream: upstream.Trace{Request: &http.Request{ContentLength: r.ContentLength}}, // without a body to take from the proxy
		ended:    make(chan upstream.Ended, 1),
		reported: make(chan struct{}),
	}
	t.info.Quiet() // show adds it to the access log
	if r.Body != nil && r.Body != http.NoBody && r.ContentLength != 0 {
		t.tee = newBodyTee(r.Body, r.ContentLength, h.Identify.MaxRequestBody, h.Budget)
		of.Body = t.tee.copied()
	}
	if len(h.Rules.ReleaseIf) > 0 {
		t.response.tee = newBodyTee(nil, -1, upstream.MaxReleaseBody, h.Budget)
	}
	if calls := h.Identify.Calls; calls != nil {
		t.response.answer = calls.NewAnswer(h.MaxResponseBody, budget.Allowance{Budget: h.Budget}, "")
	}
	t.Request.Init(h.keys, h.Report, h.Budget, nil, of, t.info)
	upstream.Forget(&t.proxies)
	return t
}

// run is the goroutine beside the request. It ends when the handlers behind have ended, and the
// store has answered or timed out.
func (t *tap) run() {
	defer func() {
		if failed := recover(); failed != nil { // as the server recovers in the request's goroutine
			t.Leave()
			t.Logger.Error("unobserved: a panic beside the request, which passes", zap.Inline(t), zap.Any("panic", failed), zap.Stack("stack"))
			t.dropBody()
		}
		if t.response.tee != nil {
			t.response.tee.discard()
		}
		t.Count()
		t.Request.Close()
		t.leaveStore()
	}()
	run, policy := t.observeKey()
	t.decided.Store(true)
	if run == nil {
		t.Count()
		close(t.reported)
		return
	}
	t.finish(run, policy, <-t.ended)
}

func (t *tap) leaveStore() {
	if t.store != nil {
		t.store.Leave()
		t.store = nil
	}
}

// observeKey looks for the request's key. It returns the run of a request that would have run, and
// nil for any other, whose outcome it reports.
func (t *tap) observeKey() (*engine.Run, *idempotency.Policy) {
	d := t.Request.Identify()
	t.dropBody()
	switch d := d.(type) {
	case *identify.Claim:
		return t.claim(d), &d.Policy
	case identify.Pass:
		if d.Outcome == "" {
			t.Leave()
		} else {
			t.Set(d.Outcome, "", 0)
		}
	case identify.Answered, identify.Resume:
		t.Leave()
	case identify.Refusal:
		if d.Reason == engine.ReasonOverloaded {
			t.unobserved(errors.New(d.Detail))
		} else {
			t.Set(d.Outcome, "", 0)
		}
	case identify.Unread:
		if errors.Is(d.Err, errNotRead) {
			t.unobserved(errNotRead) // the request itself gets no status for it
		} else {
			t.Set(d.Outcome, "", 0)
		}
	}
	return nil, nil
}

// claim claims a request's key, and reports the outcome that the request would have had. It returns the run
// of one that would have run.
func (t *tap) claim(c *identify.Claim) *engine.Run {
	request := &engine.Request{
		Key: c.Key, Origin: t.Origin(), Label: t.MetricLabel(), Fingerprint: c.Fingerprint, Policy: c.Policy,
		Timeout: t.Timeout + budget.RoomTimeout, Observed: true,
		Force: t.keys.TakeForce(t.r),
	}
	decision, err := t.decide(request)
	if err != nil {
		t.unobserved(err)
		return nil
	}
	if record := engine.DiffersFrom(decision); record != nil {
		t.Differs(record.ExecutionID)
	}
	if run, is := decision.(*engine.Run); is {
		o := report.Executed
		if run.ParentID() != "" {
			o = report.Forced
		}
		t.Set(o, run.ExecutionID(), run.Attempt())
		return run
	}
	if record := report.RecordIn(decision); record != nil {
		t.first = &report.FirstRun{Key: c.Key, Record: record, Store: t.Config.Store, Budget: t.Budget}
	}
	switch d := decision.(type) {
	case engine.Replay:
		t.replayed(d)
	case engine.Refusal:
		t.refused(d)
	}
	return nil
}

// decide asks the engine. If the engine refuses the request beside a run whose handlers have
// ended, it asks again when that run is settled: without observe, a response is stored before its
// client has it.
func (t *tap) decide(request *engine.Request) (engine.Decision, error) {
	for {
		asked := time.Now()
		store, err := t.Config.Store.Enter(t.r.Context())
		if err != nil {
			return nil, err
		}
		t.store = store
		decision, err := store.Claim(t.r.Context(), *request)
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

// replayed reports what the duplicate of a run that has ended would have got.
func (t *tap) replayed(d engine.Replay) {
	answer := t.OnDuplicate.Answer(d.Record, d.Response, d.Waited)
	if answer.Kind == idempotency.AnswerUnread {
		response, err := t.store.KeptResponse(t.r.Context(), t.Key(), d.Record) // it has no body
		switch _, unreadable := errors.AsType[*idempotency.UnreadableError](err); {
		case unreadable:
			t.Set(report.Unreadable, d.Record.ExecutionID, d.Record.Attempt)
			return
		case err != nil || response == nil:
			t.unobserved(cmp.Or(err, errors.New("the response is no longer kept")))
			return
		}
		answer = t.OnDuplicate.Answer(d.Record, response, d.Waited)
	}
	t.Set(report.Outcome(answer.Kind), d.Record.ExecutionID, d.Record.Attempt)
}

// dropBody drops what was read of the body.
func (t *tap) dropBody() {
	t.Body.Drop()
	t.r.Body = http.NoBody
	if t.tee != nil {
		t.tee.discard()
	}
}

// refused reports the outcome of a request that would have been refused, or would have waited. The request has no
// outcome if the store failed or there was no room.
func (t *tap) refused(d engine.Refusal) {
	id, attempt := d.Run()
	switch {
	case d.Reason == engine.ReasonUnavailable, d.Reason == engine.ReasonOverloaded:
		t.unobserved(d.Err)
	case d.Reason == engine.ReasonInFlight && t.Wait > 0:
		t.Set(report.Waited, id, attempt)
	default:
		t.Set(report.Refused[d.Reason], id, attempt)
	}
}

// unobserved logs, at most once a second, why a request has no outcome.
func (t *tap) unobserved(err error) {
	t.Leave()
	if leftOut, ok := t.unobservedLog.Allow(""); ok {
		t.Logger.Warn("unobserved: a request passes, and its outcome is unknown",
			zap.Inline(t), zap.Error(err), zap.Int64("left_out", leftOut))
	}
}

// finish settles a run as if the handlers behind had run for dedup. It stores no body.
func (t *tap) finish(run *engine.Run, policy *idempotency.Policy, o upstream.Ended) {
	o.Releases = policy.ReleaseOn.Has(o.Way.Status) && !run.WasLast()
	settled := make(chan struct{})
	t.settling.Store(run.ExecutionID(), settled)
	defer func() {
		t.settling.Delete(run.ExecutionID())
		close(settled)
	}()
	if _, _, err := o.End(); errors.Is(err, upstream.ErrNoHandler) {
		t.Becomes(report.NoHandler)
	}
	close(t.reported)
	concluded := t.Rules.Conclude(o, policy, &t.response, t.repl(), &t.Request.Report)
	_, _ = run.Settle(concluded.End, nil, concluded.Fields...) // the engine logs the result
	t.Count()
}

// repl returns the placeholders of the copy.
func (t *tap) repl() *caddy.Replacer {
	return t.r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
}

// end returns how the handlers behind ended. They returned err after the time took.
func (t *tap) end(err error, took time.Duration) upstream.Ended {
	w := &t.response
	w.omitted = w.written > t.MaxResponseBody
	early := w.omitted
	if w.answer != nil {
		early, w.omitted = w.answer.Early(), w.answer.Omitted()
		defer w.answer.Release() // no body is stored
	}
	if took > t.Timeout && !early {
		err = caddyhttp.Error(http.StatusGatewayTimeout, context.DeadlineExceeded)
	}
	for _, name := range []string{upstream.Address, upstream.HostPort} { // for the log
		if value, known := t.proxies.Get(name); known {
			t.repl().Set(name, value)
		}
	}
	w.decided = w.decisive()
	o := upstream.Ended{
		Err:       err,
		Status:    w.status,
		Broken:    httpfield.HasWrongLength(t.r.Method, w.status, httpfield.DeclaredLength(w.Header()), w.written),
		Early:     early,
		Upgraded:  w.status == http.StatusSwitchingProtocols,
		Way:       t.upstream.Way(),
		Retention: httpfield.First(w.Header(), httpfield.Retention),

		NotExecuted: len(w.Header()[httpfield.NotExecuted]) > 0,
	}
	if w.answer != nil {
		o.Verdict = w.answer.Verdict(err == nil && !o.Broken)
	}
	return o
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
func (t *tap) show(r *http.Request, info *report.Info) {
	if t.Outcome() == "" {
		return
	}
	var shown report.Report // the tap goes on with its own, in another goroutine
	shown.Init(t.Config.Report, r, info)
	t.info.Show(&shown, &t.Report)
	if t.first != nil {
		t.first.End() // what is asked for from here on is read each time
		info.SetFirst(t.first)
	}
}
