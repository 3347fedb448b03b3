package caddymodule

import (
	"bufio"
	"io"
	"maps"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// capture is the response writer of a run. It keeps what the run answers, up to
// a limit, and holds back the end of it from the client until the run is
// settled: the client must not know of a response that is not stored.
//
// A response is buffered whole, unless it is a stream: then it goes to the
// client as it comes, but for its last byte where its length was declared. To
// the handlers behind, writing never fails: the run goes on without its client.
type capture struct {
	client  http.ResponseWriter
	maxBody int64
	taken   *allowance
	rules   headerRules

	// header is the run's own view, so that what the handlers in front have set
	// can be told from what the run has set.
	header http.Header
	onset  http.Header

	status   int
	answered http.Header // as it was when the status was written
	declared int64       // Content-Length, -1 if there was none
	// retention is the upstream's own wish, as it wrote it.
	retention string
	body      []byte
	written   int64
	omitted   bool // the body is too large to be kept

	streaming  bool // the header went to the client already
	heldBack   []byte
	clientGone bool
	upgraded   bool // 101, or the connection was taken over
	onUpgrade  func()
}

func newCapture(client http.ResponseWriter, maxBody int64, rules headerRules, taken *allowance) *capture {
	return &capture{
		taken:     taken,
		rules:     rules,
		client:    client,
		maxBody:   maxBody,
		header:    client.Header().Clone(),
		onset:     client.Header().Clone(),
		declared:  -1,
		onUpgrade: func() {},
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
		c.answered = c.header.Clone()
		if strings.HasPrefix(strings.ToLower(c.header.Get("Content-Type")), "text/event-stream") {
			c.stream()
		}
	}
}

// Write keeps the bytes, or passes them on where the response is a stream.
func (c *capture) Write(p []byte) (int, error) {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(c.status) {
		return 0, http.ErrBodyNotAllowed
	}
	c.sniff(p)
	if !c.omitted && (int64(len(c.body)+len(p)) > c.maxBody || c.taken.take(len(p)) != nil) {
		c.stream()
		c.omitted = true
		c.body = nil
	}
	c.written += int64(len(p))
	if !c.omitted {
		c.body = append(c.body, p...)
	}
	if c.streaming {
		c.send(p)
	}
	return len(p), nil
}

// ReadFrom keeps io.Copy from reaching past this writer.
func (c *capture) ReadFrom(r io.Reader) (int64, error) {
	return io.Copy(writerOnly{c}, r)
}

type writerOnly struct{ io.Writer }

// FlushError makes the response a stream: its upstream wants the client to see
// what there is.
func (c *capture) FlushError() error {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	c.stream()
	if c.clientGone {
		return nil
	}
	return http.NewResponseController(c.client).Flush()
}

// Flush implements http.Flusher.
func (c *capture) Flush() { _ = c.FlushError() }

// Hijack hands the connection over: what happens on it is no response.
func (c *capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c.upgrade()
	return http.NewResponseController(c.client).Hijack()
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

// response returns what is kept of the answer.
func (c *capture) response() *idempotency.Response {
	return &idempotency.Response{
		Status:  c.status,
		Header:  c.rules.kept(c.onset, c.answered),
		Omitted: c.omitted,
		Body:    c.body,
	}
}

// finish sends the client what was held back. It is called after the run is
// settled.
func (c *capture) finish() {
	if c.upgraded || c.status == 0 {
		return
	}
	if !c.streaming {
		if c.declared < 0 && bodyAllowed(c.status) && !hasTrailers(c.header) {
			c.answered.Set("Content-Length", strconv.FormatInt(c.written, 10))
		}
		c.sendHeader()
		c.sendNow(c.body)
	}
	c.sendNow(c.heldBack)
	c.sendTrailers()
}

// giveUp leaves the header as the run set it to whoever answers instead: an
// error route shows WWW-Authenticate of an inner handler.
func (c *capture) giveUp() {
	if !c.streaming && !c.upgraded {
		c.replaceHeader(c.header)
	}
}

// stream sends the header and what was kept so far, and makes all that follows
// go to the client as it comes.
func (c *capture) stream() {
	if c.streaming {
		return
	}
	c.streaming = true
	c.sendHeader()
	c.send(c.body)
}

func (c *capture) sendHeader() {
	header := c.answered
	if header == nil {
		header = c.header
	}
	c.replaceHeader(header)
	c.client.WriteHeader(c.status)
}

// send passes body bytes on, but for the last one of a declared length.
func (c *capture) send(p []byte) {
	if c.declared >= 0 && c.written >= c.declared && len(p) > 0 && c.heldBack == nil {
		last := len(p) - 1
		c.heldBack = []byte{p[last]}
		p = p[:last]
	}
	c.sendNow(p)
}

func (c *capture) sendNow(p []byte) {
	if len(p) == 0 || c.clientGone {
		return
	}
	if _, err := c.client.Write(p); err != nil {
		c.clientGone = true
	}
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
	maps.Copy(c.client.Header(), header)
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
