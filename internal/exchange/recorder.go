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

// recorder is the response writer of a run. What the handlers behind write goes into a
// recording, at their pace, up to a limit; the client reads it at its own. The end of it
// is held back until the run is settled: the client must not know of a response that is
// not stored.
//
// A response is recorded whole before the client gets any of it, unless it is a stream:
// then the client gets it as it comes. A body that is larger than is kept becomes a
// stream, and is settled there. To the handlers behind, writing does not fail: the run
// goes on without its client, but for a body that is not kept.
type recorder struct {
	client   http.ResponseWriter
	toClient clientWriter
	taken    Allowance
	record   recording
	own      recordingReader // the client's
	maxBody  int64
	rules    headerRules
	// limit is the run's time limit. It stops while the response waits for room.
	limit *runLimit
	// settle is called where the run is to be settled before the handlers behind return: the
	// connection is another protocol's, or the body is larger than is kept.
	settle func()
	// share is called when the client gets the response as it comes, and duplicates may.
	share func()

	// header is the run's own view, so that what the handlers in front have set can be
	// told from what the run has set: until the client's header is sent, that one is as
	// the run found it.
	header http.Header
	// found is the client's own header, as the run found it.
	found http.Header

	status   int
	answered http.Header // as it was when the status was written
	declared int64       // Content-Length, -1 if there was none
	// kept is what is kept of answered; nil until it is needed.
	kept map[string][]string
	// retention is the upstream's own wish, as it wrote it.
	retention string
	written   int64

	// streaming says that the client gets the response as it comes; delivered is closed
	// when it has all that it gets.
	delivered chan struct{}
	streaming bool
	// headFirst says that the client's header goes out before the first bytes are there, from
	// which the server could guess a type.
	headFirst   bool
	omitted     bool           // the body is not kept
	noRoom      bool           // because there was no room for it, and not because it is too large
	upgraded    bool           // 101, or the connection was taken over
	clientState recordingState // how far the client came
	panicked    any            // what the client's writer panicked with
}

// init makes a recorder of a zero one, which takes its room from a budget. Its limit and functions
// are set by the caller.
func (c *recorder) init(to clientWriter, maxBody int64, rules headerRules, budget *Budget) {
	c.client, c.toClient, c.maxBody, c.rules = to.Client, to, maxBody, rules
	c.taken.Budget = budget
	c.record.Init(&c.taken)
	c.own.attach(&c.record)
	c.record.own = &c.own
	c.found = to.Client.Header()
	c.header, c.declared = c.found.Clone(), -1
}

// Header returns the run's view of the header.
func (c *recorder) Header() http.Header { return c.header }

// Unwrap lets http.ResponseController reach the read deadline and full duplex.
func (c *recorder) Unwrap() http.ResponseWriter { return c.client }

// SetWriteDeadline keeps handlers behind from the client's deadline: they write to the
// recording, at a pace of their own.
func (c *recorder) SetWriteDeadline(time.Time) error { return http.ErrNotSupported }

// WriteHeader passes 1xx on and notes the final status. It may be called from a
// transport's goroutine for 1xx, while the handler waits for that transport.
func (c *recorder) WriteHeader(status int) {
	switch {
	case c.status != 0:
		return
	case status == http.StatusSwitchingProtocols:
		c.status = status
		c.upgrade()
		c.sendHeader()
	case status < 100, status > 999:
		panic(fmt.Sprintf("the status %d is none of HTTP", status)) // as the server does, and before it is kept
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
		if strings.HasPrefix(strings.ToLower(firstValue(c.header, "Content-Type")), "text/event-stream") && c.declared != 0 && bodyAllowed(status) {
			c.stream()
		}
	}
}

// inform passes an informational response (RFC 9110, section 15.2) on to the client at once,
// and restores the header that the run found.
func (c *recorder) inform(status int) {
	found, early := c.found.Clone(), c.header.Clone()
	removeDedupHeaders(early, found)
	c.replaceHeader(early)
	c.toClient.Inform(status)
	c.replaceHeader(found)
}

// Write records the bytes. It waits where there is no room for them, and, of a body that
// is not kept, for the client. What comes behind a status without a body, as from a page of PHP,
// is dropped: a proxy whose byte is refused would abort a response that is whole.
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
	if !c.omitted && (c.written > c.maxBody || !c.takeRoom(c.record.Needs(len(p), c.written, c.maxBody))) {
		c.omitted, c.noRoom = true, c.written <= c.maxBody
		c.stream()
		c.settle()
	}
	if c.omitted {
		if err := c.record.Pass(p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	c.record.Add(p)
	return len(p), nil
}

// takeRoom takes room for n bytes more, and waits for it. It reports false if there is none: then
// the body is not kept.
func (c *recorder) takeRoom(n int) bool {
	if c.taken.TryTake(n) {
		return true
	}
	defer c.limit.pause()()
	return c.taken.Take(n)
}

// takeCopyRoom takes room for the copy of the body that its way into the store needs, to be in one
// piece or encrypted. Without room the body is not kept, and its client gets it all the same.
func (c *recorder) takeCopyRoom(encrypted bool) (n int) {
	n, joined := c.record.held()
	switch {
	case c.omitted, joined && !encrypted:
		return 0
	case n <= smallBody:
		c.taken.Count(n)
	case !c.takeRoom(n):
		c.omitted, c.noRoom = true, true
		return 0
	}
	return n
}

// notKept returns why the body is not kept, "" if it is.
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

// ReadFrom keeps io.Copy from reaching past this writer.
func (c *recorder) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writerOnly{c}, r)
}

type writerOnly struct{ io.Writer }

// FlushError makes the response a stream: its upstream wants the client to see what
// there is. A response without a body is none: its client sees it when it is stored.
func (c *recorder) FlushError() error {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if c.declared != 0 && bodyAllowed(c.status) {
		c.stream()
	}
	return nil
}

// Flush implements http.Flusher.
func (c *recorder) Flush() { _ = c.FlushError() }

// Hijack hands the connection over: what happens on it is no response. Without the
// connection the run goes on, and may still answer.
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
	return c.declared >= 0 && c.declared != c.written && bodyAllowed(c.status)
}

// response returns what is kept of the answer.
func (c *recorder) response() *idempotency.Response {
	r := &idempotency.Response{
		Status:  c.status,
		Header:  c.keptHeader(),
		Omitted: c.omitted,
	}
	if !c.omitted {
		r.Body = c.record.Bytes() // the upstream has ended
	}
	return r
}

// keptHeader returns what is kept of the answer's header. It is asked for before the
// client's header is sent, at the latest: after that what the run found is unknown.
func (c *recorder) keptHeader() map[string][]string {
	if c.kept == nil {
		c.kept = c.rules.kept(c.found, c.answered)
		if types, named := c.answered["Content-Type"]; len(types) == 0 && (named || c.headFirst) {
			c.kept["Content-Type"] = nil // the client gets none
		}
	}
	return c.kept
}

// finish gives the client what it does not have yet, and returns when it has it, or is
// gone. It is called after the run is settled.
func (c *recorder) deliver() {
	if c.upgraded || c.status == 0 {
		c.yieldHeader() // the status comes from the server
		c.panicAsNoted()
		return
	}
	c.record.Close(stateWhole) // for duplicates that follow it: the client may take long
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
		// A cut response must not look whole, which over HTTP/3 it would: a stream whose
		// deadline has passed can still be ended.
		c.panicked = http.ErrAbortHandler
	}
	c.panicAsNoted()
}

// notePanic keeps a panic of the client's writer for the request's own goroutine.
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

// cut ends a stream whose end is missing. It returns when the client has what there is,
// or was disconnected.
func (c *recorder) cut() {
	c.record.Close(stateCut)
	if c.streaming {
		<-c.delivered
	}
}

// close lets the recording go, however the run has ended.
func (c *recorder) close() {
	c.record.Close(stateCut)
	c.own.Leave()
}

// yieldHeader leaves the header as the run set it to what answers instead: an
// error route shows WWW-Authenticate of an inner handler. That of an answer which is dropped
// says nothing of another one. On a connection that is taken over nothing answers.
func (c *recorder) yieldHeader() {
	if c.streaming || c.upgraded {
		return
	}
	if c.status == 0 {
		removeDedupHeaders(c.header, c.found)
		c.replaceHeader(c.header)
	}
}

// stream gives the client what was recorded so far and all that follows, as it comes and
// at its own pace. The header is written here, which waits for no client: handlers in
// front may look at what handlers behind are changing meanwhile.
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
	if !c.omitted { // duplicates do not follow what is not kept
		c.share()
	}
}

// deliver writes body and trailers to the client.
func (c *recorder) sendBody() {
	defer c.own.Leave()
	if c.headFirst && c.toClient.Flush() != nil {
		return
	}
	if c.clientState = c.toClient.Follow(context.Background(), &c.own); c.clientState == stateWhole {
		c.sendTrailers()
	}
}

// sendHeader sends status and header. From here on the header is the client's.
func (c *recorder) sendHeader() {
	if c.answered == nil { // the connection is taken over
		c.answered = c.header.Clone()
	}
	c.keptHeader()
	c.replaceHeader(c.answered)
	c.client.WriteHeader(c.status)
}

// replaceHeader gives the client a header whose values are its own: handlers in front
// change theirs.
func (c *recorder) replaceHeader(header http.Header) {
	own := c.client.Header()
	clear(own)
	maps.Copy(own, header)
}

// sendTrailers passes on what was added to the header after the status.
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
