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

// replay answers a duplicate with the response of the run that was.
func (x *exchange) replay(d engine.Replay) error {
	o := x.outcomeOf(d)
	switch o {
	case OutcomeConflict:
		return x.answerProblem(x.conflict(d), nil)
	case OutcomeAcknowledged, OutcomeSeeOther:
		d.Response = x.otherAnswer(d)
	}
	if d.Response.Omitted && x.Mode == delivery.ModeAPI {
		detail := fmt.Sprintf("the request was executed and answered with %d; %s",
			d.Response.Status, cmp.Or(d.Record.Reason, "the response was not kept"))
		if d.Record.State == idempotency.Released { // it waited for a run whose answer releases the key
			detail += "; this answer has released the key: repeat the request to have it run again"
		}
		p := newProblem(reasonNotKept, x.Mode, detail, d.Record.ExecutionID, x.Docs)
		p.attempt = d.Record.Attempt
		return x.answerProblem(p, nil)
	}
	x.report(o, d.Record.ExecutionID, d.Record.Attempt)
	x.traceEvent(spanReplay)
	if entry := x.Logger.Check(zap.DebugLevel, "answered a duplicate"); entry != nil {
		entry.Write(zap.Inline(x), zap.String("execution_id", d.Record.ExecutionID), zap.Int("status", d.Response.Status))
	}
	x.leaveStore() // the client's pace is its own affair
	drainBody(x.w, x.r)
	x.setReplayHeader(d)
	if d.Response.Failed {
		// An error is answered by the error routes, as it was for the first client.
		return x.answerError(caddyhttp.Error(d.Response.Status, fmt.Errorf("the run %s of this request ended in an error", d.Record.ExecutionID)))
	}
	x.w.WriteHeader(d.Response.Status)
	if !bodyAllowed(d.Response.Status) || d.Response.Omitted {
		return nil
	}
	to := x.toClient()
	if to.Send(d.Response.Body) != nil {
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
	return nil
}

// outcomeOf returns the outcome of a replay.
func (x *exchange) outcomeOf(d engine.Replay) Outcome {
	other := !d.Waited && x.otherAnswer(d) != nil
	switch {
	case !d.Waited && x.OnDuplicate == ConflictDuplicate && !d.Response.Failed:
		return OutcomeConflict
	case other && x.OnDuplicate == AcknowledgeDuplicate:
		return OutcomeAcknowledged
	case other:
		return OutcomeSeeOther
	case d.Response.Omitted:
		return OutcomeNotKept
	case d.Waited:
		return OutcomeWaited
	default:
		return OutcomeReplayed
	}
}

// makeRoom takes room in the budget for a response that is to be replayed. A request that has to
// wait for room holds nothing: its body is dropped, and the response is read from the store when
// there is room. If the response is gone by then, the request has no body to run with either.
func (x *exchange) makeRoom(store *storepool.Store, d engine.Replay) (engine.Decision, error) {
	switch {
	case d.Response == nil: // it is read when there is room
	case !d.Waited && (x.OnDuplicate == ConflictDuplicate || x.otherAnswer(d) != nil): // the body is not sent
		return d, nil
	case !d.Waited && len(d.Response.Body) <= SmallReplay:
		x.allowance.Count(len(d.Response.Body))
		return d, nil
	default:
		if x.unshare = x.allowance.Share(d.Response.Body, d.Waited); x.unshare != nil {
			return d, nil
		}
	}
	size := d.Record.LargeBody
	d.Response = nil
	drainBody(x.w, x.r) // otherwise those that wait would wait for each other's bodies
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
		refused := engine.Refusal{Reason: engine.ReasonUnavailable, ExecutionID: d.Record.ExecutionID, Attempt: d.Record.Attempt, Err: err}
		if d.Record.State == idempotency.Complete {
			refused.Status = d.Record.Status
		}
		if _, unreadable := errors.AsType[*idempotency.UnreadableError](err); unreadable {
			refused.Reason = engine.ReasonUnreadable
		}
		return refused, nil
	}
	d.Response = response
	x.unshare = x.allowance.Share(response.Body, true) // another request may have it, too
	x.allowance.ReleaseAll()
	return d, nil
}

var errReplayGone = errors.New("the response is no longer kept")

// liveResponse is a response that is still coming, for the duplicates that follow it.
type liveResponse struct {
	record *Recording
	// head is status and header, as they are replayed.
	head *idempotency.Response
	// headFirst says that the header goes out before the body begins. Otherwise it goes with
	// the first bytes: the server guesses the type from them if none is named.
	headFirst bool
}

// live returns what duplicates follow: nil for an answer about the caller, also if a response
// handler shows another status than the upstream's.
func (e *execution) live() any {
	c := &e.response
	if idempotency.AboutCaller(c.status) || idempotency.AboutCaller(e.upstream.observed().status) {
		return nil
	}
	return &liveResponse{record: &c.record, head: &idempotency.Response{Status: c.status, Header: c.keptHeader()}, headFirst: c.headFirst}
}

// follow answers a duplicate with the stream that its run is answering, from the first
// byte and then as it comes. An end by error is its end too.
func (x *exchange) follow(d engine.Follow) error {
	stream := d.Live.(*liveResponse)
	x.leaveStore() // the client's pace is its own affair
	x.report(OutcomeWaited, d.Record.ExecutionID, d.Record.Attempt)
	x.traceEvent(spanReplay)
	drainBody(x.w, x.r)
	x.setReplayHeader(engine.Replay{Record: d.Record, Response: stream.head})
	header := x.w.Header()
	delete(header, "Content-Length")
	if stream.record.Declared >= 0 {
		header.Set("Content-Length", strconv.FormatInt(stream.record.Declared, 10))
	}
	x.w.WriteHeader(stream.head.Status)
	to := x.toClient()
	to.Flushes = true
	if stream.headFirst && to.Flush() != nil || to.Follow(x.r.Context(), x.following) != Whole {
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
	return nil
}

func (x *exchange) setReplayHeader(d engine.Replay) {
	header := x.w.Header()
	lines := 4 // of our own
	for _, values := range d.Response.Header {
		lines += len(values)
	}
	own := make([]string, 0, lines) // handlers in front change theirs
	set := func(name string, values ...string) {
		own = append(own, values...)
		header[name] = own[len(own)-len(values) : len(own) : len(own)]
	}
	for name, values := range d.Response.Header {
		switch {
		case d.Response.Omitted && describesBody(name):
		case len(values) == 0:
			header.Del(name)
		default:
			set(name, values...)
		}
	}
	if d.Record.ParentID != "" {
		header.Set(parentIDHeader, d.Record.ParentID)
	}
	set(executionIDHeader, d.Record.ExecutionID)
	set(replayedHeader, "true")
	if d.Response.Failed {
		return
	}
	if types, kept := d.Response.Header["Content-Type"]; kept && len(types) == 0 {
		header["Content-Type"] = nil // else the server guesses one, which it has not done before
	}
	if bodyAllowed(d.Response.Status) {
		set("Content-Length", strconv.Itoa(len(d.Response.Body)))
	}
}

// otherAnswer returns what the duplicate of a complete request gets in place of
// the kept response, nil where that is what it gets.
func (x *exchange) otherAnswer(d engine.Replay) *idempotency.Response {
	switch x.OnDuplicate {
	case AcknowledgeDuplicate:
		// A kept failure is no success: a sender that took it for one would never
		// deliver again.
		if d.Response.Status < 400 {
			return &idempotency.Response{Status: http.StatusOK}
		}
	case SeeOtherDuplicate:
		if location := firstIn(d.Response.Header, "Location"); location != "" {
			return &idempotency.Response{
				Status: http.StatusSeeOther,
				Header: map[string][]string{"Location": {location}},
			}
		}
	}
	return nil
}

// conflict refuses the duplicate of a complete request, and tells what the first
// one was answered, so that a client can go on from there.
func (x *exchange) conflict(d engine.Replay) problem {
	p := newProblem(reasonConflict, x.Mode,
		fmt.Sprintf("the request was executed before, as %s, and answered with %d", d.Record.ExecutionID, d.Response.Status),
		d.Record.ExecutionID, x.Docs)
	p.attempt = d.Record.Attempt
	p.OriginalStatus = d.Response.Status
	p.OriginalLocation = firstIn(d.Response.Header, "Location")
	p.OriginalResponse = d.Response.InlineJSON()
	return p
}
