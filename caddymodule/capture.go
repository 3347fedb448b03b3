package caddymodule

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

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// capture is the response writer of a run. What the handlers behind write goes into a
// recording, at their pace, up to a limit; the client reads it at its own. The end of it
// is held back until the run is settled: the client must not know of a response that is
// not stored.
//
// A response is recorded whole before the client gets any of it, unless it is a stream:
// then the client gets it as it comes. A body that is larger than is kept becomes a
// stream, and is settled there. To the handlers behind, writing does not fail: the run
// goes on without its client, but for a body that is not kept.
type capture struct {
	client   http.ResponseWriter
	toClient *clientWriter
	record   *recording
	maxBody  int64
	rules    headerRules
	// ctx is the run's: it limits how long the run waits for room in the budget.
	ctx context.Context

	// header is the run's own view, so that what the handlers in front have set
	// can be told from what the run has set.
	header http.Header
	onset  http.Header

	status   int
	answered http.Header // as it was when the status was written
	declared int64       // Content-Length, -1 if there was none
	// retention is the upstream's own wish, as it wrote it.
	retention string
	written   int64
	omitted   bool // the body is too large to be kept

	// streaming says that the client gets the response as it comes; delivered is closed
	// when it has all that it gets.
	streaming bool
	delivered chan struct{}
	panicked  any  // what the client's writer panicked with
	upgraded  bool // 101, or the connection was taken over

	onUpgrade, onStream, onOmitted func()
}

// newCapture returns the writer for a run's response, which takes its room from the
// allowance.
func newCapture(ctx context.Context, to *clientWriter, maxBody int64, rules headerRules, taken *allowance) *capture {
	return &capture{
		ctx:       ctx,
		rules:     rules,
		client:    to.client,
		toClient:  to,
		record:    newRecording(taken),
		maxBody:   maxBody,
		header:    to.client.Header().Clone(),
		onset:     to.client.Header().Clone(),
		declared:  -1,
		onUpgrade: func() {},
		onStream:  func() {},
		onOmitted: func() {},
	}
}

// Header returns the run's view of the header.
func (c *capture) Header() http.Header { return c.header }

// Unwrap lets http.ResponseController reach deadlines and full duplex.
func (c *capture) Unwrap() http.ResponseWriter { return c.client }

// WriteHeader passes 1xx on and notes the final status. It may be called from a
// transport's goroutine for 1xx, while the handler waits for that transport.
func (c *capture) WriteHeader(status int) {
	switch {
	case c.status != 0:
		return
	case status == http.StatusSwitchingProtocols:
		c.status = status
		c.upgrade()
		c.sendHeader()
	case status < 200:
		before := c.client.Header().Clone()
		c.replaceHeader(c.header)
		c.client.WriteHeader(status)
		c.replaceHeader(before)
	default:
		c.status = status
		c.retention = c.header.Get(retentionHeader)
		removeDedupHeaders(c.header, c.onset)
		c.declared = declaredLength(c.header)
		c.record.declared = c.declared
		c.answered = c.header.Clone()
		if strings.HasPrefix(strings.ToLower(c.header.Get("Content-Type")), "text/event-stream") {
			c.stream()
		}
	}
}

// Write records the bytes. It waits where there is no room for them, and, of a body that
// is not kept, for the client.
func (c *capture) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	c.sniff(p)
	c.written += int64(len(p))
	if !c.omitted && c.written > c.maxBody {
		c.omitted = true
		c.stream()
		c.onOmitted()
	}
	if c.omitted {
		if err := c.record.pass(p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	if err := c.record.taken.take(c.ctx, len(p)); err != nil {
		return 0, fmt.Errorf("waiting for room for the response: %w", err)
	}
	c.record.add(p, c.maxBody)
	return len(p), nil
}

// ReadFrom keeps io.Copy from reaching past this writer.
func (c *capture) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writerOnly{c}, r)
}

type writerOnly struct{ io.Writer }

// FlushError makes the response a stream: its upstream wants the client to see what
// there is. A response without a body is none: its client sees it when it is stored.
func (c *capture) FlushError() error {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if c.declared != 0 && bodyAllowed(c.status) {
		c.stream()
	}
	return nil
}

// Flush implements http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// Hijack hands the connection over: what happens on it is no response. Without the
// connection the run goes on, and may still answer.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := http.NewResponseController(c.client).Hijack()
	if err == nil {
		c.upgrade()
	}
	return conn, buffer, err
}

func (c *capture) upgrade() {
	if !c.upgraded {
		c.upgraded = true
		c.onUpgrade()
	}
}

// whole reports whether a final status came, with as many bytes as it declared.
func (c *capture) whole() bool { return c.status != 0 && !c.broken() }

// broken reports whether fewer or more bytes were written than declared.
func (c *capture) broken() bool {
	return c.declared >= 0 && c.declared != c.written && bodyAllowed(c.status)
}

// endsWithConnection reports whether the body's only end is that of the upstream's
// connection, as far as a proxy tells: an answer of HTTP/1.0 without a length. One that
// is cut off looks like a whole one.
func (c *capture) endsWithConnection() bool {
	via := c.answered["Via"]
	return c.declared < 0 && bodyAllowed(c.status) && len(via) > len(c.onset["Via"]) && strings.HasPrefix(via[len(via)-1], "1.0 ")
}

// response returns what is kept of the answer.
func (c *capture) response() *idempotency.Response {
	r := &idempotency.Response{
		Status:  c.status,
		Header:  c.rules.kept(c.onset, c.answered),
		Omitted: c.omitted,
	}
	if !c.omitted {
		r.Body = c.record.body // nobody writes any more
	}
	return r
}

// finish gives the client what it does not have yet, and returns when it has it, or is
// gone. It is called after the run is settled.
func (c *capture) finish() {
	if c.upgraded || c.status == 0 {
		return
	}
	c.record.end(whole)
	if c.streaming {
		<-c.delivered
	} else {
		if c.declared < 0 && bodyAllowed(c.status) && !hasTrailers(c.header) {
			c.answered.Set("Content-Length", strconv.FormatInt(c.written, 10))
		}
		c.deliver()
	}
	c.toClient.done()
	if c.panicked != nil {
		panic(c.panicked)
	}
}

// cut ends a stream whose end is missing. It returns when the client has what there is,
// or was let go.
func (c *capture) cut() {
	c.record.end(cut)
	if c.streaming {
		<-c.delivered
	}
}

// giveUp leaves the header as the run set it to whoever answers instead: an
// error route shows WWW-Authenticate of an inner handler.
func (c *capture) giveUp() {
	if !c.streaming && !c.upgraded {
		c.replaceHeader(c.header)
	}
}

// stream gives the client what was recorded so far and all that follows, as it comes and
// at its own pace.
func (c *capture) stream() {
	if c.streaming {
		return
	}
	c.streaming, c.toClient.flushes = true, true
	c.delivered = make(chan struct{})
	go func() {
		defer close(c.delivered)
		defer func() { c.panicked = recover() }() // for the request's own goroutine
		c.deliver()
	}()
	if !c.omitted { // nobody follows what is not kept
		c.onStream()
	}
}

// deliver writes header, body and trailers to the client.
func (c *capture) deliver() {
	defer c.record.leave()
	c.sendHeader()
	if c.toClient.flushes && c.toClient.flush() != nil {
		return
	}
	if c.toClient.follow(context.Background(), c.record, c.record.took) == whole {
		c.sendTrailers()
	}
}

func (c *capture) sendHeader() {
	header := c.answered
	if header == nil {
		header = c.header
	}
	c.replaceHeader(header)
	c.client.WriteHeader(c.status)
}

// sendTrailers passes on what was added to the header after the status.
func (c *capture) sendTrailers() {
	announced := make(map[string]bool)
	for _, line := range c.header["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			announced[http.CanonicalHeaderKey(strings.TrimSpace(name))] = true
		}
	}
	for name, values := range c.header {
		if isDedupHeader(strings.TrimPrefix(name, http.TrailerPrefix)) {
			continue
		}
		if announced[name] || strings.HasPrefix(name, http.TrailerPrefix) {
			c.client.Header()[name] = values
		}
	}
}

func (c *capture) replaceHeader(header http.Header) {
	clear(c.client.Header())
	maps.Copy(c.client.Header(), header.Clone()) // handlers in front change theirs
}

// sniff does what Go's server would do with a response that names no type, so
// that the replay names the same one.
func (c *capture) sniff(p []byte) {
	if c.written > 0 || len(p) == 0 {
		return
	}
	_, typed := c.answered["Content-Type"]
	if !typed && c.answered.Get("Content-Encoding") == "" && !c.streaming {
		c.answered.Set("Content-Type", http.DetectContentType(p))
	}
}

func hasTrailers(header http.Header) bool {
	if len(header["Trailer"]) > 0 {
		return true
	}
	for name := range header {
		if strings.HasPrefix(name, http.TrailerPrefix) {
			return true
		}
	}
	return false
}

func declaredLength(header http.Header) int64 {
	n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// bodyAllowed reports whether a response with this status has a body (RFC 9110,
// section 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}

var (
	_ http.ResponseWriter = (*capture)(nil)
	_ http.Flusher        = (*capture)(nil)
	_ http.Hijacker       = (*capture)(nil)
	_ io.ReaderFrom       = (*capture)(nil)
)

// passUnclaimed lets a request through that has no claim, and so no run.
func (h *Handler) passUnclaimed(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	return next.ServeHTTP(&unclaimed{ResponseWriterWrapper: &caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}, sentOnce(r))
}

// unclaimed keeps the upstream's word to us, Dedup-Retention, from the client.
type unclaimed struct {
	*caddyhttp.ResponseWriterWrapper
	wrote bool
}

// WriteHeader implements http.ResponseWriter.
func (u *unclaimed) WriteHeader(status int) {
	u.Header().Del(retentionHeader)
	u.wrote = u.wrote || status >= 200
	u.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (u *unclaimed) Write(p []byte) (int, error) {
	if !u.wrote {
		u.WriteHeader(http.StatusOK)
	}
	return u.ResponseWriterWrapper.Write(p)
}

// ReadFrom implements io.ReaderFrom.
func (u *unclaimed) ReadFrom(r io.Reader) (int64, error) {
	if !u.wrote {
		u.WriteHeader(http.StatusOK)
	}
	return u.ResponseWriterWrapper.ReadFrom(r)
}
