package exchange

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// recorder is the response writer of a run. The handlers behind write into a recording at their own
// pace, up to a limit, and the client reads the recording at its own. The last byte is held back
// until the run is settled: the client must not get a response that is not stored.
//
// A response is recorded whole before the client gets any of it, unless it is a stream: then the
// client gets it as it comes. A body that outgrows what is kept becomes a stream, and the run is
// settled there. Writing does not fail while the body is kept: the run goes on without its client.
type recorder struct {
	client    http.ResponseWriter
	toClient  clientWriter
	allowance Allowance
	record    recording
	own       recordingReader // the client's
	maxBody   int64
	rules     headerRules
	// limit is the run's time limit. It is paused while the response waits for room.
	limit *runLimit
	// settle is called to settle the run before the handlers behind return: the connection has
	// switched to another protocol, or the body has outgrown what is kept.
	settle func()
	// share is called when the response becomes a stream that duplicates can follow.
	share func()

	// header is the header that the handlers behind see and change. The client's own header stays
	// as the run found it until it is sent, so that what the run has set is known.
	header http.Header
	// found is the client's own header, until that is sent.
	found http.Header

	status   int
	answered http.Header // the header when the status was written
	declared int64       // Content-Length, -1 if there was none
	head     bool        // the response to a HEAD, which has no body
	unstored bool        // the body is large, kept and not stored yet: duplicates share it
	// kept is what is kept of answered; nil until [recorder.keptHeader] is called.
	kept map[string][]string
	// retention is the upstream's Dedup-Retention.
	retention string
	written   int64

	// streaming reports whether the client gets the response as it comes. delivered is closed when the
	// client has got it, or has left.
	delivered chan struct{}
	streaming bool
	// headFirst reports whether the client's header is sent before the first bytes, from which the
	// server would guess a Content-Type.
	headFirst   bool
	settled     bool           // the run is settled
	passing     bool           // the run is settled, and what follows passes to the client
	omitted     bool           // the body is not kept
	noRoom      bool           // the body is not kept because there was no room for it
	upgraded    bool           // the connection has switched to another protocol
	clientState recordingState // how far the client came
	panicked    any            // what the client's writer panicked with
	tool        *toolAnswer    // nil but for tool calls
}

// init initializes a recorder, which takes its room from a budget. The caller sets limit, settle
// and share.
func (c *recorder) init(to clientWriter, maxBody int64, rules headerRules, budget *Budget) {
	c.client, c.toClient, c.maxBody, c.rules = to.Client, to, maxBody, rules
	c.allowance.Budget = budget
	c.record.Init(&c.allowance)
	c.own.attach(&c.record)
	c.record.own = &c.own
	c.found = to.Client.Header()
	c.header, c.declared = c.found.Clone(), -1
}

// Header implements [http.ResponseWriter]. The client's own header is not changed.
func (c *recorder) Header() http.Header { return c.header }

// Unwrap lets [http.ResponseController] set the read deadline and full duplex.
func (c *recorder) Unwrap() http.ResponseWriter { return c.client }

// SetWriteDeadline keeps the handlers behind from changing the client's deadline: they write to the
// recording.
func (c *recorder) SetWriteDeadline(time.Time) error { return http.ErrNotSupported }

// WriteHeader sends 1xx to the client, and records the final status. A transport may call it for
// 1xx from a goroutine of its own, while the handler waits for that transport.
func (c *recorder) WriteHeader(status int) {
	switch {
	case c.status != 0:
		return
	case status == http.StatusSwitchingProtocols:
		c.status = status
		c.upgrade()
		c.sendHeader()
	case status < 100, status > 999:
		panic(fmt.Sprintf("the status %d is not between 100 and 999", status)) // as the server would, but before the status is stored
	case status < 200:
		c.inform(status)
	default:
		c.status = status
		c.retention = firstValue(c.header, retentionHeader)
		removeDedupHeaders(c.header, c.found)
		c.declared = declaredLength(c.header)
		c.record.Declared = c.declared
		c.answered = maps.Clone(c.header)
		removeForbiddenLength(status, c.answered)
		if c.tool != nil {
			c.tool.begin(status, c.answered, c.takeToolRoom)
			if c.tool.reader.IsStream() { // its client gets the end when the run is settled, not when the last byte has come
				c.record.Declared = -1
				delete(c.answered, "Content-Length")
			}
		}
		if strings.HasPrefix(strings.ToLower(firstValue(c.header, "Content-Type")), "text/event-stream") && c.declared != 0 && bodyAllowed(status) {
			c.stream()
		}
	}
}

// inform sends an informational response (RFC 9110, section 15.2) to the client at once, and
// restores the header that the run found.
func (c *recorder) inform(status int) {
	found, early := c.found.Clone(), c.header.Clone()
	removeDedupHeaders(early, found)
	c.replaceHeader(early)
	c.toClient.Inform(status)
	c.replaceHeader(found)
}

// Write records the bytes. It waits for room or, if the body is not kept, for the client. A body
// behind a status that has none, such as a PHP page may send, is dropped: with an error, a proxy
// would abort a response that is whole.
func (c *recorder) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	switch {
	case c.upgraded:
		return 0, http.ErrBodyNotAllowed
	case !bodyAllowed(c.status):
		return len(p), nil
	}
	c.written += int64(len(p))
	rest := p
	switch {
	case c.passing:
	case c.tool != nil:
		rest = c.recordTool(p)
	case c.written <= c.maxBody && c.takeRoom(c.record.Needs(len(p), c.written, c.maxBody)):
		c.record.Add(p)
	default:
		c.omitted, c.noRoom = true, c.written <= c.maxBody
		c.settlePassing()
	}
	if c.passing {
		if err := c.record.Pass(rest); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// settlePassing settles the run. What follows passes to the client.
func (c *recorder) settlePassing() {
	c.passing = true
	c.stream()
	c.settle()
}

// takeRoom takes room for n more bytes, and waits for it. It reports false if there is none: the
// body is then not kept.
func (c *recorder) takeRoom(n int) bool { return c.takeRoomOf(&c.allowance, n) }

func (c *recorder) takeRoomOf(allowance *Allowance, n int) bool {
	if allowance.TryTake(n) {
		return true
	}
	defer c.limit.pause()()
	return allowance.Take(n)
}

// takeCopyRoom takes room for the copy of the body that is made to join its chunks or to encrypt
// it, and returns the copy's size. If there is no room, the body is not stored, but the client gets
// it.
func (c *recorder) takeCopyRoom(encrypted bool) (n int) {
	n, joined := c.record.held()
	if c.tool != nil {
		n, joined = len(c.tool.message()), true
	}
	switch {
	case c.omitted, joined && !encrypted:
		return 0
	case n <= smallBody:
		c.allowance.Count(n)
	case !c.takeRoom(n):
		c.omitted, c.noRoom = true, true
		return 0
	}
	return n
}

// notKept returns why the body is not kept, "" if it is kept.
func (c *recorder) notKept() string {
	switch {
	case !c.omitted:
		return ""
	case c.noRoom:
		return fmt.Sprintf("the response was not kept: there was no room for it within `buffered` for %v", roomTimeout)
	default:
		return fmt.Sprintf("the response was not kept: it is larger than max_response_body, %d bytes", c.maxBody)
	}
}

// ReadFrom keeps [io.Copy] from using that of a writer within.
func (c *recorder) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writerOnly{c}, r)
}

type writerOnly struct{ io.Writer }

// FlushError makes the response a stream, because the upstream wants the client to get what there
// is. A response without a body stays as it is, and is sent when it is stored.
func (c *recorder) FlushError() error {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if c.declared != 0 && bodyAllowed(c.status) && c.tool == nil { // that of a tool call is a stream by its type only
		c.stream()
	}
	return nil
}

// Flush implements http.Flusher.
func (c *recorder) Flush() { _ = c.FlushError() }

// Hijack hands the connection over, and settles the run: what follows on the connection is no
// response. If that fails, the run goes on and may still answer.
func (c *recorder) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(c.client).Hijack()
	if err == nil {
		c.upgrade()
	}
	return conn, buffer, err
}

func (c *recorder) upgrade() {
	if !c.upgraded {
		c.upgraded = true
		c.settle()
	}
}

// broken reports whether fewer or more bytes were written than declared.
func (c *recorder) broken() bool {
	return c.declared >= 0 && c.declared != c.written && bodyAllowed(c.status) && !c.head
}

// response returns what is stored of the response.
func (c *recorder) response() *idempotency.Response {
	r := &idempotency.Response{
		Status:  c.status,
		Header:  c.keptHeader(),
		Omitted: c.omitted,
	}
	if c.tool != nil {
		c.tool.keepIn(r)
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
	if r != nil && len(r.Body) > smallReplay && c.tool == nil { // duplicates of smaller ones wait for no room
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
	c.tool.release()
}

// keptHeader returns what is stored of the response's header. It must first be called before the
// client's header is sent, which overwrites the header that the run found.
func (c *recorder) keptHeader() map[string][]string {
	if c.kept == nil {
		c.kept = c.rules.kept(c.found, c.answered)
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
	c.record.Close(stateWhole) // now, for duplicates that follow it: the client may be slow
	if c.streaming {
		<-c.delivered
	} else {
		if c.declared < 0 && bodyAllowed(c.status) && !hasTrailers(c.header) {
			c.answered.Set("Content-Length", strconv.FormatInt(c.written, 10))
		}
		c.sendHeader()
		c.sendBody()
	}
	if c.clientState != stateWhole && c.panicked == nil {
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
	c.record.Close(stateCut)
	if c.streaming {
		<-c.delivered
	}
}

// close releases the recording, however the run has ended.
func (c *recorder) close() {
	c.record.Close(stateCut)
	c.own.Leave()
}

// yieldHeader gives the client the header that the run has set, for what answers in place of the
// run: error routes then send the WWW-Authenticate of a handler behind. If the run has written a
// status, its response is dropped, and the header with it.
func (c *recorder) yieldHeader() {
	if c.streaming || c.upgraded {
		return
	}
	if c.status == 0 {
		removeDedupHeaders(c.header, c.found)
		c.replaceHeader(c.header)
	}
}

// stream starts to send the client what is recorded so far, and what follows as it comes. It sends
// the header itself, in the handler's goroutine, because handlers in front may read what the
// handlers behind change.
func (c *recorder) stream() {
	if c.streaming {
		return
	}
	c.streaming, c.headFirst, c.delivered = true, c.written == 0, make(chan struct{})
	c.toClient.Flushes = true
	c.sendHeader()
	go func() {
		defer close(c.delivered)
		defer c.notePanic()
		c.sendBody()
	}()
	if !c.omitted { // duplicates do not follow a body that is not kept
		c.share()
	}
}

// sendBody sends body and trailers to the client.
func (c *recorder) sendBody() {
	defer c.own.Leave()
	if c.headFirst && c.toClient.Flush() != nil {
		return
	}
	if c.clientState = c.toClient.Follow(context.Background(), &c.own); c.clientState == stateWhole {
		c.sendTrailers()
	}
}

// sendHeader sends status and header. From then on, the client's own header is the one that was sent.
func (c *recorder) sendHeader() {
	if c.answered == nil { // the connection has switched to another protocol
		c.answered = c.header.Clone()
	}
	c.keptHeader()
	c.replaceHeader(c.answered)
	c.client.WriteHeader(c.status)
}

// replaceHeader replaces the fields of the client's own header.
func (c *recorder) replaceHeader(header http.Header) {
	own := c.client.Header()
	clear(own)
	maps.Copy(own, header)
}

// sendTrailers sends the trailers that were added to the header after the status.
func (c *recorder) sendTrailers() {
	if !hasTrailers(c.header) {
		return
	}
	announced := make(map[string]bool)
	for _, line := range c.header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			announced[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range c.header {
		if IsDedupHeader(strings.TrimPrefix(name, http.TrailerPrefix)) {
			continue
		}
		if announced[name] || strings.HasPrefix(name, http.TrailerPrefix) {
			c.client.Header()[name] = values
		}
	}
}

var (
	_ http.ResponseWriter = (*recorder)(nil)
	_ http.Flusher        = (*recorder)(nil)
	_ http.Hijacker       = (*recorder)(nil)
	_ io.ReaderFrom       = (*recorder)(nil)
)
