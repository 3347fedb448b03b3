package exchange

import (
	"bytes"
	"errors"
	"net/http"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/identify"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
	"github.com/caddy-dedup/caddy-dedup/internal/storepool"
)

// resume answers a client that has lost the stream of a call and asks for the rest of it. It gets one event with
// the answer when the run has ended, whatever `wait` is. The request itself never runs.
func (x *exchange) resume(d identify.Resume) {
	store, err := x.Store.Enter(x.r.Context())
	if err != nil {
		x.cannotResume(http.StatusServiceUnavailable, err)
		return
	}
	x.openStore = store
	record, now, err := store.Lookup(x.r.Context(), d.Key)
	switch {
	case err != nil:
		x.cannotResume(http.StatusServiceUnavailable, err)
		return
	case record == nil || !x.Resumes(d.Key, record.Origin):
		x.cannotResume(http.StatusNotFound, engine.ErrNoRecord)
		return
	}
	header := x.w.Header()
	header.Set("Content-Type", "text/event-stream")
	header.Set("Cache-Control", "no-store")
	x.w.WriteHeader(http.StatusOK)
	to := x.toClient()
	if record.State == idempotency.InFlight && !record.Lapsed(now) {
		// With its id and no data, the client asks again if it loses this stream too.
		if to.Send([]byte("id: "+d.EventID+"\ndata:\n\n")) != nil || to.Flush() != nil {
			return
		}
	}
	parts, ready := x.await(store, d.Key)
	defer ready.close()
	if parts == nil {
		return // the client has left
	}
	x.leaveStore() // it isn't needed while the client reads
	to.Hold(x.Budget, ready.held)
	defer to.Close()
	sent := to.Send([]byte("data: "))
	for _, part := range parts {
		if sent == nil {
			sent = to.Send(inOneLine(part))
		}
	}
	if sent != nil || to.Send([]byte("\n\n")) != nil {
		panic(http.ErrAbortHandler) // a cut response must not look whole
	}
}

// cannotResume answers with a status alone.
func (x *exchange) cannotResume(status int, err error) {
	x.Leave()
	logFailure(&x.Report, err)
	x.w.WriteHeader(status)
}

// await waits for a run, and returns what a duplicate that waited for it gets, in parts. They are nil if the
// client has left.
func (x *exchange) await(store *storepool.Store, key idempotency.Key) (parts [][]byte, ready prepared) {
	decision, err := store.Await(x.r.Context(), key)
	if replay, is := decision.(engine.Replay); is && err == nil {
		replay.Waited = true // whatever on_duplicate says
		decision, ready, err = x.prepareReplay(store, replay)
	}
	var p problem
	switch d := decision.(type) {
	case engine.Replay:
		parts, refused, _ := x.replayCall(d, ready.answer)
		if refused == nil {
			x.Set(report.Outcome(ready.answer.Kind), d.Record.ExecutionID, d.Record.Attempt)
			x.Event(report.Replaying)
			return parts, ready
		}
		p = *refused
	case engine.Refusal:
		p = x.problemOf(d)
	default:
		if !errors.Is(err, engine.ErrNoRecord) {
			x.Leave()
			return nil, ready
		}
		p = x.newProblem(reasonNotKept, "the request was executed, and its record is no longer kept", "", 0)
	}
	x.Set(p.outcome, p.ExecutionID, p.attempt)
	_, body := x.Call().Refuse(p.ofCall())
	return [][]byte{body}, ready
}

// inOneLine returns JSON as a part of one line: in a text, its line ends are only white space.
func inOneLine(part []byte) []byte {
	if !bytes.ContainsAny(part, "\r\n") {
		return part
	}
	part = bytes.Clone(part)
	for i, c := range part {
		if c == '\r' || c == '\n' {
			part[i] = ' '
		}
	}
	return part
}
