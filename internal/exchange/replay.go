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

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// prepareReplay decides what a duplicate gets, and takes room in the budget for it. A request that
// has to wait for room holds nothing meanwhile: its body is drained, and the response is read from
// the store when there is room. If the response is gone by then, the request cannot run either, and
// is refused.
func (x *exchange) prepareReplay(store *storepool.Store, d engine.Replay) (engine.Decision, prepared, error) {
	answer := x.OnDuplicate.Answer(d.Record, d.Response, d.Waited)
	if !answer.Needs(d.Response) {
		return d, prepared{answer: answer, held: &x.Allowance}, nil
	}
	if d.Response != nil {
		if !d.Waited && len(d.Response.Body) <= budget.SmallReplay {
			x.Allowance.Count(len(d.Response.Body))
			return d, prepared{answer: answer, held: &x.Allowance}, nil
		}
		if held, release := x.Allowance.Share(d.Response.Body, d.Waited); release != nil {
			return d, prepared{answer: answer, held: held, release: release}, nil
		}
	}
	reqbody.Drain(x.w, x.r) // otherwise requests that wait would wait for each other's bodies
	x.Allowance.ReleaseAll()
	if err := x.Allowance.TakeReplay(x.r.Context(), d.Record.LargeBody); err != nil {
		return nil, prepared{}, err
	}
	response, err := store.KeptResponse(x.r.Context(), x.Key(), d.Record)
	if x.r.Context().Err() != nil {
		return nil, prepared{}, context.Cause(x.r.Context())
	}
	if err == nil && response == nil {
		err = errors.New("the response is no longer kept")
	}
	if err != nil {
		refused := engine.Refusal{Reason: engine.ReasonUnavailable, Record: d.Record, Differs: d.Differs, Err: err}
		if _, unreadable := errors.AsType[*idempotency.UnreadableError](err); unreadable {
			refused.Reason = engine.ReasonUnreadable
		}
		return refused, prepared{}, nil
	}
	d.Response = response
	held, release := x.Allowance.Share(response.Body, true) // another request may have read it too
	x.Allowance.ReleaseAll()
	return d, prepared{answer: x.OnDuplicate.Answer(d.Record, response, d.Waited), held: held, release: release}, nil
}

// replay answers a duplicate of a run that has ended.
func (x *exchange) replay(d engine.Replay, ready prepared) {
	if x.first != nil && d.Response != nil {
		x.first.Give(d.Response)
	}
	response, outcome := ready.answer.Response, report.Outcome(ready.answer.Kind)
	switch {
	case ready.answer.Kind == idempotency.AnswerConflict:
		x.answerProblem(x.conflict(d), nil)
		return
	case response.Omitted && x.mode == delivery.ModeAPI:
		x.answerProblem(x.notKept(d), nil)
		return
	}
	parts := [][]byte{response.Body}
	if x.Call() != nil {
		var refused *problem
		var err error
		if parts, refused, err = x.replayCall(d, ready.answer); refused != nil {
			x.answerProblem(*refused, err)
			return
		}
		response = &idempotency.Response{Status: http.StatusOK, Header: response.Header}
	}
	x.Set(outcome, d.Record.ExecutionID, d.Record.Attempt)
	x.Event(report.Replaying)
	if entry := x.Logger.Check(zap.DebugLevel, "answered a duplicate"); entry != nil {
		entry.Write(zap.Inline(x), zap.String("execution_id", d.Record.ExecutionID), zap.Int("status", response.Status))
	}
	x.leaveStore() // it isn't needed while the client reads
	reqbody.Drain(x.w, x.r)
	if n := httpfield.Size(response.Header); n > budget.SmallBody { // it is held already
		x.Allowance.Count(n)
	}
	setReplayHeader(x.w.Header(), d.Record, response, parts...)
	if response.Failed {
		// An error is answered by the error routes, as it was for the first client.
		x.answerError(caddyhttp.Error(response.Status, fmt.Errorf("the run %s of this request ended in an error", d.Record.ExecutionID)))
		return
	}
	x.w.WriteHeader(response.Status)
	to := x.toClient()
	to.Hold(x.Budget, ready.held)
	defer to.Close()
	if httpfield.Size(response.Header) > budget.SmallBody && to.Flush() != nil { // it is held until it is sent
		panic(http.ErrAbortHandler)
	}
	if !httpfield.BodyAllowed(response.Status) || response.Omitted {
		return
	}
	for _, part := range parts {
		if to.Send(part) != nil {
			panic(http.ErrAbortHandler) // a cut response must not look whole
		}
	}
}

// replayCall returns the answer to the duplicate of a call, in parts, or a refusal in place of one that it cannot
// get. cause is an error that is the reason.
func (x *exchange) replayCall(d engine.Replay, answer idempotency.Answer) (parts [][]byte, refused *problem, cause error) {
	if answer.Response.Failed {
		return nil, new(x.failedCall(d, report.Outcome(answer.Kind))), nil
	}
	if !answer.Response.Omitted {
		if parts, cause = x.Call().Replay(answer.Response.Body); cause == nil {
			return parts, nil, nil
		}
	}
	return nil, new(x.notKept(d)), cause
}

// liveResponse is a response that its run is still giving, for the duplicates that follow it.
type liveResponse struct {
	record *recording.Recording
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
	if idempotency.AboutCaller(c.status) || idempotency.AboutCaller(e.upstream.Way().Status) {
		return nil
	}
	return &liveResponse{record: &c.record, head: &idempotency.Response{Status: c.status, Header: c.keptHeader()}, headFirst: c.headFirst}
}

// follow answers a duplicate with the stream of its run, from the first byte on and then as it
// comes. If the stream ends with an error, so does the duplicate.
func (x *exchange) follow(d engine.Follow, reader *recording.Reader) {
	stream := d.Live.(*liveResponse)
	x.leaveStore() // it isn't needed while the client reads
	x.Set(report.Waited, d.Record.ExecutionID, d.Record.Attempt)
	x.Event(report.Replaying)
	reqbody.Drain(x.w, x.r)
	setReplayHeader(x.w.Header(), d.Record, stream.head)
	header := x.w.Header()
	delete(header, "Content-Length")
	if stream.record.Declared >= 0 {
		header.Set("Content-Length", strconv.FormatInt(stream.record.Declared, 10))
	}
	x.w.WriteHeader(stream.head.Status)
	to := x.toClient()
	to.Flushes = true
	to.Hold(x.Budget, stream.record)
	defer to.Close()
	if stream.headFirst && to.Flush() != nil || to.Follow(x.r.Context(), reader) != recording.Whole {
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
}

// setReplayHeader sets the header of a response that is replayed, with a body in parts.
func setReplayHeader(header http.Header, record *idempotency.Record, response *idempotency.Response, body ...[]byte) {
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
		case response.Omitted && httpfield.DescribesBody(name):
		case len(values) == 0:
			header.Del(name)
		default:
			set(name, values...)
		}
	}
	if record.ParentID != "" {
		header.Set(httpfield.ParentID, record.ParentID)
	}
	set(httpfield.ExecutionID, record.ExecutionID)
	set(httpfield.Replayed, "true")
	if response.Failed {
		return
	}
	if types, kept := response.Header["Content-Type"]; kept && len(types) == 0 {
		header["Content-Type"] = nil // otherwise the server guesses one, which it did not for the first client
	}
	if httpfield.BodyAllowed(response.Status) {
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
	return x.newProblem(reasonNotKept, detail, d.Record.ExecutionID, d.Record.Attempt)
}

// conflict refuses the duplicate of a complete request. It names the first response, so that a
// client can continue from there.
func (x *exchange) conflict(d engine.Replay) problem {
	p := x.newProblem(reasonConflict,
		fmt.Sprintf("the request was executed before, as %s, and answered with %d", d.Record.ExecutionID, d.Record.Status),
		d.Record.ExecutionID, d.Record.Attempt)
	p.OriginalStatus, p.OriginalLocation = d.Record.Status, d.Record.Location
	if d.Response != nil { // else it is too large
		p.OriginalLocation, p.OriginalResponse = httpfield.First(d.Response.Header, "Location"), d.Response.InlineJSON()
	}
	return p
}

// failedCall refuses a call that has waited for a run which ended in an error.
func (x *exchange) failedCall(d engine.Replay, outcome report.Outcome) problem {
	p := x.newProblem(reasonFailed, fmt.Sprintf("the run %s of this call ended in an error", d.Record.ExecutionID),
		d.Record.ExecutionID, d.Record.Attempt)
	p.outcome = outcome
	if d.Response.Status >= http.StatusBadRequest { // else it is that of an answer without a response
		p.Status = d.Response.Status
	}
	return p
}
