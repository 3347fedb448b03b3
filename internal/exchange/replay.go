package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// answer is what a duplicate gets.
type answer struct {
	outcome  Outcome
	response *idempotency.Response // nil for [OutcomeConflict]
}

// needs reports whether the answer has the body of a kept response.
func (a answer) needs(kept *idempotency.Response) bool {
	return a.outcome == "" || kept != nil && a.response == kept
}

// answerTo returns what a duplicate gets, by on_duplicate. That counts for complete requests only: one
// that waited gets the response of the run. The answer has no outcome if it needs the response, and
// that is not read yet.
func (x *exchange) answerTo(d engine.Replay) answer {
	failed, location := false, d.Record.Location
	if d.Response != nil {
		failed, location = d.Response.Failed, firstValue(d.Response.Header, "Location")
	}
	switch {
	case d.Waited:
	case d.Response == nil && location == idempotency.LongLocation && x.OnDuplicate != AcknowledgeDuplicate: // it is read
	case x.OnDuplicate == ConflictDuplicate && !failed:
		return answer{OutcomeConflict, nil}
	case x.OnDuplicate == AcknowledgeDuplicate && d.Record.Status < 400:
		// A kept failure is no success: a sender that took it for one would never deliver again.
		return answer{OutcomeAcknowledged, &idempotency.Response{Status: http.StatusOK}}
	case x.OnDuplicate == SeeOtherDuplicate && location != "":
		return answer{OutcomeSeeOther, &idempotency.Response{
			Status: http.StatusSeeOther, Header: map[string][]string{"Location": {location}},
		}}
	}
	switch {
	case d.Response == nil:
		return answer{}
	case d.Response.Omitted:
		return answer{OutcomeNotKept, d.Response}
	case d.Waited:
		return answer{OutcomeWaited, d.Response}
	default:
		return answer{OutcomeReplayed, d.Response}
	}
}

// replay answers a duplicate of a run that has ended.
func (x *exchange) replay(d engine.Replay) error {
	response := x.answer.response
	switch {
	case x.answer.outcome == OutcomeConflict:
		return x.answerProblem(x.conflict(d), nil)
	case response.Omitted && x.Mode != delivery.ModeWebhook:
		return x.answerProblem(x.notKept(d), nil)
	}
	parts := [][]byte{response.Body}
	if x.call != nil {
		if response.Failed {
			return x.answerProblem(x.failedCall(d), nil)
		}
		var err error
		if parts, err = x.callParts(response.Body); err != nil {
			return x.answerProblem(x.notKept(d), err)
		}
		response = &idempotency.Response{Status: http.StatusOK, Header: response.Header}
	}
	x.report(x.answer.outcome, d.Record.ExecutionID, d.Record.Attempt)
	x.traceEvent(spanReplay)
	if entry := x.Logger.Check(zap.DebugLevel, "answered a duplicate"); entry != nil {
		entry.Write(zap.Inline(x), zap.String("execution_id", d.Record.ExecutionID), zap.Int("status", response.Status))
	}
	x.leaveStore() // it isn't needed while the client reads
	drainBody(x.w, x.r)
	x.setReplayHeader(d.Record, response, parts...)
	if response.Failed {
		// An error is answered by the error routes, as it was for the first client.
		return x.answerError(caddyhttp.Error(response.Status, fmt.Errorf("the run %s of this request ended in an error", d.Record.ExecutionID)))
	}
	x.w.WriteHeader(response.Status)
	if !bodyAllowed(response.Status) || response.Omitted {
		return nil
	}
	to := x.toClient()
	for _, part := range parts {
		if to.Send(part) != nil {
			panic(http.ErrAbortHandler) // a cut response must not look whole
		}
	}
	return nil
}

// prepareReplay decides what a duplicate gets, and takes room in the budget for it. A request that
// has to wait for room holds nothing meanwhile: its body is drained, and the response is read from
// the store when there is room. If the response is gone by then, the request cannot run either, and
// is refused.
func (x *exchange) prepareReplay(store *storepool.Store, d engine.Replay) (engine.Decision, error) {
	if x.answer = x.answerTo(d); !x.answer.needs(d.Response) {
		return d, nil
	}
	if d.Response != nil {
		switch {
		case !d.Waited && len(d.Response.Body) <= smallReplay:
			x.allowance.Count(len(d.Response.Body))
			return d, nil
		}
		if x.releaseShared = x.allowance.Share(d.Response.Body, d.Waited); x.releaseShared != nil {
			return d, nil
		}
	}
	size := d.Record.LargeBody
	d.Response = nil
	drainBody(x.w, x.r) // otherwise requests that wait would wait for each other's bodies
	x.allowance.ReleaseAll()
	if err := x.allowance.TakeReplay(x.r.Context(), size); err != nil {
		return nil, err
	}
	response, err := store.KeptResponse(x.r.Context(), x.key, d.Record)
	if x.r.Context().Err() != nil {
		return nil, context.Cause(x.r.Context())
	}
	if err == nil && response == nil {
		err = errReplayGone
	}
	if err != nil {
		refused := engine.Refusal{Reason: engine.ReasonUnavailable, Record: d.Record, Differs: d.Differs, Err: err}
		if _, unreadable := errors.AsType[*idempotency.UnreadableError](err); unreadable {
			refused.Reason = engine.ReasonUnreadable
		}
		return refused, nil
	}
	d.Response = response
	x.answer = x.answerTo(d)
	x.releaseShared = x.allowance.Share(response.Body, true) // another request may have read it too
	x.allowance.ReleaseAll()
	return d, nil
}

var errReplayGone = errors.New("the response is no longer kept")

// liveResponse is a response that its run is still giving, for the duplicates that follow it.
type liveResponse struct {
	record *recording
	// head has the status and the header that are replayed.
	head *idempotency.Response
	// headFirst reports whether the header is sent before the body starts. Otherwise it is sent
	// with the first bytes, from which the server guesses a Content-Type if there is none.
	headFirst bool
}

// live returns the response for duplicates to follow. It is nil for an answer about the caller,
// also if a response handler has changed the upstream's status.
func (e *execution) live() any {
	c := &e.response
	if idempotency.AboutCaller(c.status) || idempotency.AboutCaller(e.upstream.observation().status) {
		return nil
	}
	return &liveResponse{record: &c.record, head: &idempotency.Response{Status: c.status, Header: c.keptHeader()}, headFirst: c.headFirst}
}

// follow answers a duplicate with the stream of its run, from the first byte on and then as it
// comes. If the stream ends with an error, so does the duplicate.
func (x *exchange) follow(d engine.Follow) error {
	stream := d.Live.(*liveResponse)
	x.leaveStore() // it isn't needed while the client reads
	x.report(OutcomeWaited, d.Record.ExecutionID, d.Record.Attempt)
	x.traceEvent(spanReplay)
	drainBody(x.w, x.r)
	x.setReplayHeader(d.Record, stream.head)
	header := x.w.Header()
	delete(header, "Content-Length")
	if stream.record.Declared >= 0 {
		header.Set("Content-Length", strconv.FormatInt(stream.record.Declared, 10))
	}
	x.w.WriteHeader(stream.head.Status)
	to := x.toClient()
	to.Flushes = true
	if stream.headFirst && to.Flush() != nil || to.Follow(x.r.Context(), x.streamReader) != stateWhole {
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
	return nil
}

// setReplayHeader sets the header of a response that is replayed, with a body in parts.
func (x *exchange) setReplayHeader(record *idempotency.Record, response *idempotency.Response, body ...[]byte) {
	header := x.w.Header()
	lines := 4 // for our own fields
	for _, values := range response.Header {
		lines += len(values)
	}
	own := make([]string, 0, lines) // a copy, which handlers in front may change
	set := func(name string, values ...string) {
		own = append(own, values...)
		header[name] = own[len(own)-len(values) : len(own) : len(own)]
	}
	for name, values := range response.Header {
		switch {
		case response.Omitted && describesBody(name):
		case len(values) == 0:
			header.Del(name)
		default:
			set(name, values...)
		}
	}
	if record.ParentID != "" {
		header.Set(parentIDHeader, record.ParentID)
	}
	set(executionIDHeader, record.ExecutionID)
	set(replayedHeader, "true")
	if response.Failed {
		return
	}
	if types, kept := response.Header["Content-Type"]; kept && len(types) == 0 {
		header["Content-Type"] = nil // otherwise the server guesses one, which it did not for the first client
	}
	if bodyAllowed(response.Status) {
		length := 0
		for _, part := range body {
			length += len(part)
		}
		set("Content-Length", strconv.Itoa(length))
	}
}

// notKept refuses a duplicate whose response was kept without its body.
func (x *exchange) notKept(d engine.Replay) problem {
	detail := fmt.Sprintf("the request was executed and answered with %d; %s",
		d.Response.Status, cmp.Or(d.Record.Reason, "the response was not kept"))
	if d.Record.State == idempotency.Released { // it waited for a run whose answer releases the key
		detail += "; this answer has released the key: repeat the request to have it run again"
	}
	p := newProblem(reasonNotKept, x.Mode, detail, d.Record.ExecutionID, x.Docs)
	p.attempt = d.Record.Attempt
	return p
}

// conflict refuses the duplicate of a complete request. It names the first response, so that a
// client can continue from there.
func (x *exchange) conflict(d engine.Replay) problem {
	p := newProblem(reasonConflict, x.Mode,
		fmt.Sprintf("the request was executed before, as %s, and answered with %d", d.Record.ExecutionID, d.Record.Status),
		d.Record.ExecutionID, x.Docs)
	p.attempt = d.Record.Attempt
	p.OriginalStatus, p.OriginalLocation = d.Record.Status, d.Record.Location
	if d.Response != nil { // else it is too large
		p.OriginalLocation, p.OriginalResponse = firstValue(d.Response.Header, "Location"), d.Response.InlineJSON()
	}
	return p
}
