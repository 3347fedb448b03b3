package exchange

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// observe passes a request on as if dedup were not there, and reports the outcome that it would
// have had. The key is claimed in a namespace of its own, and the claim is settled by how the
// handlers behind ended.
func (h *Handler) observe(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler, info *requestInfo) error {
	if !h.applies(r) {
		return next.ServeHTTP(w, r)
	}
	read := r.WithContext(r.Context()) // reading a body changes its request
	read.Header = r.Header.Clone()
	x := &exchange{Handler: h, w: w, r: read, next: next, info: info, allowance: Allowance{Budget: h.Budget}}
	x.body = requestBody{w: w, r: read, limit: h.MaxRequestBody, taken: &x.allowance}
	defer x.done()
	run := x.claimObserved()
	if read.Body != http.NoBody {
		r.Body = read.Body
	}
	to := &observedWriter{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
	if err := x.passObserved(run, to, r); err != nil {
		return x.returnError(r, err, to.status != 0)
	}
	return nil
}

// claimObserved returns the run of a request that would have run. Of any other request it reports
// the outcome.
func (x *exchange) claimObserved() *engine.Run {
	request, refused, err := x.identify()
	switch {
	case err != nil:
		x.report(unreadOutcome(err), "", 0)
		return nil
	case refused != nil:
		x.reportRefused(engine.Refusal{Reason: refused.reason, Err: errors.New(refused.detail)})
		return nil
	case request == nil: // it has no key, which is reported
		return nil
	}
	request.Observed, request.Wait = true, 0
	request.Force = x.Force != "" && x.r.Header.Get(x.Force) == "true"
	decision, err := x.begin(request)
	if err != nil { // its client has left
		x.counted = true
		return nil
	}
	switch d := decision.(type) {
	case *engine.Run:
		return d
	case engine.Replay:
		x.report(x.outcomeOf(d), d.Record.ExecutionID, d.Record.Attempt)
	case engine.Refusal:
		x.reportRefused(d)
	}
	return nil
}

// reportRefused reports the outcome of a request that would have been refused, or have waited.
// Without a store, or room, there is none.
func (x *exchange) reportRefused(d engine.Refusal) {
	switch d.Reason {
	case engine.ReasonUnavailable, engine.ReasonOverloaded:
		x.counted = true
		if omitted, ok := x.unobserved.allow(time.Since(start)); ok {
			x.Logger.Warn("unobserved: a request passes, and what would have become of it is unknown", zap.Inline(x),
				zap.Error(d.Err), zap.Int64("left_out", omitted))
		}
		return
	case engine.ReasonInFlight:
		if x.Wait > 0 {
			x.report(OutcomeWaited, d.ExecutionID, d.Attempt)
			return
		}
	}
	x.report(refusalRules[d.Reason].outcome, d.ExecutionID, d.Attempt)
}

// passObserved passes a request on, and settles its claim, if it has one.
func (x *exchange) passObserved(run *engine.Run, w *observedWriter, r *http.Request) error {
	if run == nil {
		return x.next.ServeHTTP(w, r)
	}
	o := OutcomeExecuted
	if run.ParentID() != "" {
		o = OutcomeForced
	}
	x.report(o, run.ExecutionID(), run.Attempt())
	forgetUpstream(x.repl())
	// The trace must not touch the request itself.
	upstream := upstreamTrace{request: &http.Request{ContentLength: r.ContentLength}}
	began, err := time.Now(), errAborted // unless the handlers behind return
	defer func() {
		end := err
		if time.Since(began) > x.Timeout && w.written <= x.MaxResponseBody {
			end = caddyhttp.Error(http.StatusGatewayTimeout, context.DeadlineExceeded)
		}
		x.settleObserved(run, w, end, upstream.observed())
	}()
	err = x.next.ServeHTTP(w, r.WithContext(upstream.observe(r.Context(), x.repl())))
	return err
}

// settleObserved ends a run as if the handlers behind had run for dedup. It keeps no body.
func (x *exchange) settleObserved(run *engine.Run, w *observedWriter, err error, upstream upstreamObservation) {
	omitted := w.written > x.MaxResponseBody
	ended := observation{
		err:      err,
		status:   w.status,
		broken:   w.broken(),
		omitted:  omitted,
		upgraded: w.status == http.StatusSwitchingProtocols,
		upstream: upstream,
		releases: x.request.Policy.ReleaseOn.Has(upstream.status) && !run.WasLast(),
	}.ending()
	if errors.Is(ended.err, errNoHandler) {
		x.report(OutcomeNoHandler, run.ExecutionID(), run.Attempt())
	}
	var shared *idempotency.Response
	switch ended.waiting {
	case getResponse:
		shared = &idempotency.Response{Status: w.status, Header: w.decisive(), Omitted: omitted}
	case getEmpty:
		shared = &idempotency.Response{Status: http.StatusOK}
	case getError:
		shared = &idempotency.Response{Status: failedStatus(ended.err), Failed: true}
	}
	x.end(run, ended, firstIn(w.Header(), retentionHeader), shared, "")
}

// observedWriter is the client's writer. It notes status and length of the response.
type observedWriter struct {
	*caddyhttp.ResponseWriterWrapper
	status  int
	written int64
}

// WriteHeader implements [http.ResponseWriter].
func (w *observedWriter) WriteHeader(status int) {
	if w.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		w.status = status
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *observedWriter) Write(p []byte) (int, error) {
	w.noteBody()
	n, err := w.ResponseWriterWrapper.Write(p)
	w.written += int64(n)
	return n, err
}

// ReadFrom implements [io.ReaderFrom].
func (w *observedWriter) ReadFrom(r io.Reader) (int64, error) {
	w.noteBody()
	n, err := w.ResponseWriterWrapper.ReadFrom(r)
	w.written += n
	return n, err
}

func (w *observedWriter) noteBody() {
	if w.status == 0 {
		w.status = http.StatusOK
	}
}

// broken is [recorder.broken].
func (w *observedWriter) broken() bool {
	declared := declaredLength(w.Header())
	return declared >= 0 && declared != w.written && bodyAllowed(w.status)
}

// decisive returns the header fields that decide on what becomes of a key and its duplicates.
func (w *observedWriter) decisive() map[string][]string {
	fields := make(map[string][]string)
	for _, name := range []string{"Location", "Www-Authenticate", "Payment-Required"} {
		if values := w.Header()[name]; len(values) > 0 {
			fields[name] = slices.Clone(values)
		}
	}
	return fields
}
