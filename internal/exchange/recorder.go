package exchange

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// recorder records the response of a run. The handlers behind write into a recording at their own
// pace, up to a limit, and the client reads the recording at its own. The last byte is held back
// until the run is settled: the client must not get a response that is not stored.
//
// A response is recorded whole before the client gets any of it, unless it is a stream: then the
// client gets it as it comes. A body that outgrows what is kept becomes a stream, and the run is
// settled there. Writing does not fail while the body is kept: the run goes on without its client.
type recorder struct {
	client    http.ResponseWriter
	toClient  recording.Writer
	allowance budget.Allowance
	record    recording.Recording
	own       recording.Reader // the client's
	maxBody   int64
	rules     httpfield.Rules
	// limit is the run's time limit. It is paused while the response waits for room.
	limit *runLimit
	// answer finds the part of the answer that is kept; nil if all of it is.
	answer upstream.Answer

	// header is the header that the handlers behind see and change. The client's own header stays
	// as the run found it until it is sent, so that what the run has set is known.
	header http.Header
	// found is the client's own header, until that is sent.
	found http.Header

	status   int
	answered http.Header // the header when the status was written
	declared int64       // Content-Length, -1 if there was none
	// kept is what is kept of answered; nil until [recorder.keptHeader] is called.
	kept map[string][]string
	// retention is the upstream's Dedup-Retention.
	retention string
	written   int64
	copyRoom  int // bytes taken for a copy of the body

	// delivered is closed when the client has got a stream, or has left.
	delivered chan struct{}
	// headFirst reports whether the client's header is sent before the first bytes, from which the
	// server would guess a Content-Type.
	headFirst   bool
	streaming   bool            // the client gets the response as it comes
	notExecuted bool            // the upstream sent Dedup-Not-Executed
	unstored    bool            // the body is large, kept and not stored yet: duplicates share it
	passing     bool            // the run is settled, and what follows passes to the client
	omitted     bool            // the body is not kept
	noRoom      bool            // the body is not kept because there was no room for it
	encrypted   bool            // the store makes a copy of the body
	upgraded    bool            // the connection has switched to another protocol
	clientState recording.State // how far the client came
	panicked    any             // what the client's writer panicked with
}

// init initializes a recorder, which takes its room from an allowance.
func (c *recorder) init(to recording.Writer, limit *runLimit, maxBody int64, rules httpfield.Rules, room budget.Allowance) {
	c.client, c.toClient, c.limit, c.maxBody, c.rules = to.Client, to, limit, maxBody, rules
	c.allowance = room
	c.toClient.Lead(room.Budget, &c.record)
	c.record.Init(&c.allowance)
	c.record.AttachOwn(&c.own)
	c.found = to.Client.Header()
	c.header, c.declared = c.found.Clone(), -1
}

// setStatus records the final status and the header.
func (c *recorder) setStatus(status int) {
	c.status = status
	c.retention = httpfield.First(c.header, httpfield.Retention)
	c.notExecuted = len(c.header[httpfield.NotExecuted]) > 0
	httpfield.RemoveDedup(c.header, c.found)
	c.declared = httpfield.DeclaredLength(c.header)
	c.record.Declared = c.declared
	c.answered = maps.Clone(c.header)
	if n := httpfield.Size(c.answered); n > budget.SmallBody { // it is held already
		c.allowance.Count(n)
	}
	if status == http.StatusNoContent {
		// It must not have one (RFC 9110, section 8.6): an HTTP/2 client takes the response for a broken one. Over
		// HTTP/1.1 the server removes it.
		delete(c.answered, "Content-Length")
	}
	if c.answer != nil && c.answer.Begin(status, c.answered, c.takeAnswerRoom) {
		c.record.Declared = -1 // its client gets the end when the run is settled, not when the last byte has come
		delete(c.answered, "Content-Length")
	}
}

// isEventStream reports whether a response is a stream by its type.
func isEventStream(c *recorder) bool {
	return strings.HasPrefix(strings.ToLower(httpfield.First(c.header, "Content-Type")), "text/event-stream") && c.declared != 0 && httpfield.BodyAllowed(c.status)
}

// inform sends an informational response (RFC 9110, section 15.2) to the client at once, and
// restores the header that the run found.
func (c *recorder) inform(status int) {
	found, early := c.found.Clone(), c.header.Clone()
	httpfield.RemoveDedup(early, found)
	replaceHeader(c.client, early)
	c.toClient.Inform(status)
	replaceHeader(c.client, found)
}

// add records bytes of the body. It returns those that pass to the client, and reports whether the body has
// just outgrown what is kept: the run is then to be settled before they pass.
func (c *recorder) add(p []byte) (rest []byte, outgrown bool) {
	c.written += int64(len(p))
	switch {
	case c.passing && c.answer != nil:
		return c.answer.Rewrite(p), false
	case c.passing:
		return p, false
	case c.answer != nil && c.streaming:
		return c.passAnswer(p)
	case c.written <= c.maxBody && c.takeRoom(c.record.Needs(len(p), c.written, c.maxBody)):
		c.record.Add(p)
		return nil, false
	}
	c.omitted, c.noRoom = true, c.written <= c.maxBody
	c.outgrowAnswer()
	c.passing = true
	return p, true
}

// passAnswer passes bytes of a stream of which a part is kept to the client. It ends before the byte with which
// the client has the whole part.
func (c *recorder) passAnswer(p []byte) (rest []byte, ended bool) {
	before, ended := c.answer.Feed(p)
	passes := c.answer.Rewrite(p[:before])
	if c.allowance.TryTake(len(passes)) || c.record.IsBehind(0) && c.takeRoom(len(passes)) {
		c.record.PassAhead(passes)
		if !ended {
			c.awaitClient(c.answer.Pending())
		}
	} else {
		_ = c.record.Pass(passes) // its error means that the client has left: the run goes on
	}
	if ended {
		c.omitted, c.passing = c.answer.Omitted(), true
	}
	return c.answer.Rewrite(p[before:]), ended
}

// awaitClient lets the client hold the upstream back by what comes before the response, of which the last bytes
// may be a part. Meanwhile the run has no time limit, if a client that reads nothing is disconnected.
func (c *recorder) awaitClient(ahead int) {
	if !c.record.IsBehind(ahead) {
		return
	}
	if c.record.Patience > 0 {
		defer c.limit.pause()()
	}
	c.record.AwaitClient(ahead)
}

// outgrowAnswer ends an answer that is no stream, and is not kept.
func (c *recorder) outgrowAnswer() {
	if c.answer != nil {
		c.answer.Outgrow()
		c.omitted = c.answer.Omitted()
	}
}

// readAnswer reads an answer that is no stream, when all of it has come.
func (c *recorder) readAnswer() {
	if c.streaming || c.passing || c.upgraded || c.status == 0 {
		return
	}
	if c.takeCopyRoom(); c.omitted {
		c.outgrowAnswer()
	} else {
		c.answer.Whole(c.record.Bytes())
	}
}

// takeRoom takes room for n more bytes, and waits for it. It reports false if there is none: the
// body is then not kept.
func (c *recorder) takeRoom(n int) bool { return c.takeRoomOf(&c.allowance, n) }

func (c *recorder) takeRoomOf(allowance *budget.Allowance, n int) bool {
	if allowance.TryTake(n) {
		return true
	}
	defer c.limit.pause()()
	return allowance.Take(n)
}

// takeAnswerRoom takes room for the part that is kept.
func (c *recorder) takeAnswerRoom(room *budget.Allowance, n int) bool {
	ok := c.takeRoomOf(room, n)
	c.noRoom = c.noRoom || !ok
	return ok
}

// takeCopyRoom takes room for the copy of the body that is made to join its chunks or to encrypt
// it. If there is no room, the body is not stored, but the client gets it.
func (c *recorder) takeCopyRoom() {
	n, joined := c.record.Held()
	if c.answer != nil && c.streaming {
		n, joined = c.answer.Held(), true
	}
	switch {
	case c.omitted, c.copyRoom > 0, joined && !c.encrypted:
		return
	case n <= budget.SmallBody:
		c.allowance.Count(n)
	case !c.takeRoom(n):
		c.omitted, c.noRoom = true, true
		return
	}
	c.copyRoom = n
}

// notKept returns why the body is not kept, "" if it is kept.
func (c *recorder) notKept() string {
	switch {
	case !c.omitted:
		return ""
	case c.noRoom:
		return fmt.Sprintf("the response was not kept: there was no room for it within `buffered` for %v", budget.RoomTimeout)
	default:
		return fmt.Sprintf("the response was not kept: it is larger than max_response_body, %d bytes", c.maxBody)
	}
}

// Shared implements [upstream.Response].
func (c *recorder) Shared(share upstream.Share, err error) *idempotency.Response {
	switch share {
	case upstream.ShareResponse:
		c.takeCopyRoom()
		return c.toStore()
	case upstream.ShareEmpty:
		return &idempotency.Response{Status: http.StatusOK, Header: c.rules.Kept(c.found, c.header)}
	case upstream.ShareError:
		r := &idempotency.Response{Status: upstream.FailedStatus(err), Failed: true}
		if c.status == 0 { // else the header is that of a response that is dropped
			r.Header = c.rules.Kept(c.found, c.header)
		}
		return r
	default:
		return nil
	}
}

// Body implements [upstream.Response].
func (c *recorder) Body(of *idempotency.Response) ([]byte, error) { return of.Body, nil }

// Take implements [upstream.Response].
func (c *recorder) Take(n int) bool { return c.takeRoom(n) }

// Room implements [upstream.Response].
func (c *recorder) Room() *budget.Allowance { return &c.allowance }

// toStore returns what is stored of the response.
func (c *recorder) toStore() *idempotency.Response {
	r := &idempotency.Response{
		Status:  c.status,
		Header:  c.keptHeader(),
		Omitted: c.omitted,
	}
	if c.answer != nil {
		c.answer.Keep(r)
		return r
	}
	if !c.omitted {
		r.Body = c.record.Bytes() // the upstream has ended
	}
	return r
}

// keep holds the response until it is stored, and shares its body with duplicates.
func (c *recorder) keep(r *idempotency.Response) {
	c.record.Keep()
	if r != nil && len(r.Body) > budget.SmallReplay && c.answer == nil { // duplicates of smaller ones wait for no room
		c.unstored = true
		c.allowance.Budget.AddUnstored(r.Body, &c.record)
	}
}

// stored releases what was held of the response until it was stored.
func (c *recorder) stored() {
	if c.unstored {
		c.allowance.Budget.RemoveUnstored(c.record.Bytes())
	}
	c.record.Unkeep()
	if c.answer != nil {
		c.answer.Release()
	}
}

// keptHeader returns what is stored of the response's header. It must first be called before the
// client's header is sent, which overwrites the header that the run found.
func (c *recorder) keptHeader() map[string][]string {
	if c.kept == nil {
		c.kept = c.rules.Kept(c.found, c.answered)
		if types, named := c.answered["Content-Type"]; len(types) == 0 && (named || c.headFirst) {
			c.kept["Content-Type"] = nil // the client gets none
		}
	}
	return c.kept
}

// deliver sends the client what it does not have yet, and returns when the client has got it or has
// left. It is called after the run is settled.
func (c *recorder) deliver() {
	if c.upgraded || c.status == 0 {
		c.yieldHeader() // the status comes from the server
		c.panicAsNoted()
		return
	}
	c.record.Close(recording.Whole) // now, for duplicates that follow it: the client may be slow
	if c.streaming {
		<-c.delivered
	} else {
		if c.declared < 0 && httpfield.BodyAllowed(c.status) && !httpfield.HasTrailers(c.header) {
			c.answered.Set("Content-Length", strconv.FormatInt(c.written, 10))
		}
		c.sendHeader()
		if httpfield.Size(c.answered) > budget.SmallBody && c.toClient.Flush() != nil { // it is held until it is sent
			c.own.Leave()
		} else {
			c.sendBody()
		}
	}
	if c.clientState != recording.Whole && c.panicked == nil {
		// A cut response must not look whole. Over HTTP/3 it would: a stream can still be ended
		// after its deadline has passed.
		c.panicked = http.ErrAbortHandler
	}
	c.panicAsNoted()
}

// notePanic recovers a panic of the client's writer, for the request's own goroutine to repeat.
func (c *recorder) notePanic() {
	if failed := recover(); failed != nil {
		c.panicked = failed
	}
}

func (c *recorder) panicAsNoted() {
	if c.panicked != nil {
		panic(c.panicked)
	}
}

// cut ends a stream that is not whole. It returns when the client has got what there is, or has left.
func (c *recorder) cut() {
	c.record.Close(recording.Cut)
	if c.streaming {
		<-c.delivered
	}
}

// close releases the recording, however the run has ended.
func (c *recorder) close() {
	c.toClient.Close()
	c.record.Close(recording.Cut)
	c.own.Leave()
}

// yieldHeader gives the client the header that the run has set, for what answers in place of the
// run: error routes then send the WWW-Authenticate of a handler behind. If the run has written a
// status, its response is dropped, and the header with it.
func (c *recorder) yieldHeader() {
	if c.status == 0 && !c.upgraded {
		httpfield.RemoveDedup(c.header, c.found)
		replaceHeader(c.client, c.header)
	}
}

// stream starts to send the client what is recorded so far, and what follows as it comes. It sends
// the header itself, in the handler's goroutine, because handlers in front may read what the
// handlers behind change. It reports whether duplicates can follow from now on: not a body that is not kept.
func (c *recorder) stream() (followed bool) {
	if c.streaming {
		return false
	}
	c.streaming, c.headFirst, c.delivered = true, c.written == 0, make(chan struct{})
	c.toClient.Flushes = true
	c.sendHeader()
	go func() {
		defer close(c.delivered)
		defer c.notePanic()
		c.sendBody()
	}()
	return !c.omitted
}

// sendBody sends body and trailers to the client.
func (c *recorder) sendBody() {
	defer c.own.Leave()
	defer c.toClient.Close()
	if c.headFirst && c.toClient.Flush() != nil {
		return
	}
	if c.clientState = c.toClient.Follow(context.Background(), &c.own); c.clientState == recording.Whole {
		c.sendTrailers()
	}
}

// sendHeader sends status and header. From then on, the client's own header is the one that was sent.
func (c *recorder) sendHeader() {
	if c.answered == nil { // the connection has switched to another protocol
		c.answered = c.header.Clone()
	}
	c.keptHeader()
	replaceHeader(c.client, c.answered)
	c.client.WriteHeader(c.status)
}

// replaceHeader replaces the fields of a writer's header.
func replaceHeader(w http.ResponseWriter, header http.Header) {
	own := w.Header()
	clear(own)
	maps.Copy(own, header)
}

// sendTrailers sends the trailers that were added to the header after the status.
func (c *recorder) sendTrailers() {
	announced := httpfield.Listed(c.header["Trailer"])
	for name, values := range c.header {
		bare, marked := strings.CutPrefix(name, http.TrailerPrefix)
		if (marked || slices.Contains(announced, name)) && !httpfield.IsDedup(bare) {
			c.client.Header()[name] = values
		}
	}
}
