package caddymodule

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
)

// Before we answer a request ourselves, what is left of its body is read off:
// a client that is still sending would see a broken connection instead of the
// answer. Both limits are generous for a client and cheap for us.
const (
	readOffAtMost = 32 << 20
	readOffFor    = 10 * time.Second
)

// requestBody reads a request's body to its end, or up to a limit, at most once,
// and puts it back for those behind. Reading before a claim means that a slow or
// vanishing client holds no claim.
type requestBody struct {
	r     *http.Request
	limit int64
	taken *recording.Allowance

	read bool
	body []byte
	all  bool
	err  error
	held heldBody // what the request has in place of its body
}

// needed is whole for somebody who cannot do without it: a body that is declared
// to be too large is not read at all, and its client not told to send it.
func (b *requestBody) needed() ([]byte, error) {
	if !b.read && b.r.ContentLength > b.limit {
		return nil, delivery.ErrBodyTooLarge
	}
	return b.whole()
}

// whole returns the body, or [delivery.ErrBodyTooLarge]; then it streams on
// behind what was read.
func (b *requestBody) whole() ([]byte, error) {
	if !b.read {
		b.read = true
		b.body, b.all, b.err = b.readBody()
	}
	switch {
	case b.err != nil:
		return nil, b.err
	case !b.all:
		return nil, delivery.ErrBodyTooLarge
	default:
		return b.body, nil
	}
}

// failed returns why the body could not be read, nil if it could or was not.
func (b *requestBody) failed() error { return b.err }

// readBody reads a body and puts it back. It reports whether that is all of it.
func (b *requestBody) readBody() (body []byte, whole bool, err error) {
	r, limit, taken := b.r, b.limit, b.taken
	if r.Body == nil || r.Body == http.NoBody {
		return nil, true, nil
	}
	if front, ok := r.Body.(*heldBody); ok && front.rest == http.NoBody && front.read == 0 && int64(len(front.held)) <= limit {
		return front.held, true, nil // another handler of ours in front holds it, and counts it
	}
	rest := r.Body
	if n := r.ContentLength; 0 < n && n <= min(limit, recording.SmallBody) && len(r.Trailer) == 0 {
		return b.readSmall(int(n))
	}
	var buffer bytes.Buffer // it grows as the body comes: a declared length costs its sender nothing
	most := limit + 1
	if r.ContentLength > 0 {
		most = min(most, r.ContentLength+1) // so that a small body takes a small buffer
	}
	n, err := io.Copy(&counted{&buffer, taken, most}, io.LimitReader(rest, most))
	if full, ok := errors.AsType[recording.SpentError](err); ok {
		b.putBack(buffer.Bytes(), rest)
		return nil, false, full
	}
	if err != nil {
		return nil, false, bodyError(r.Context(), err)
	}
	// The client was told to continue already: the upstream must not be asked to.
	r.Header.Del("Expect")
	body = buffer.Bytes()
	if n > limit {
		b.putBack(body, rest)
		return body, false, nil
	}
	b.putBack(body, http.NoBody)
	if n == 0 {
		r.Body = http.NoBody
	}
	if len(r.Trailer) == 0 {
		r.ContentLength = n
		r.TransferEncoding = nil
	}
	return body, true, nil
}

// readSmall is readBody for a body that is declared and small: it gets a buffer at once.
func (b *requestBody) readSmall(n int) (body []byte, whole bool, err error) {
	if err := b.taken.Admit(n); err != nil {
		return nil, false, err
	}
	body = make([]byte, n)
	if _, err := io.ReadFull(b.r.Body, body); err != nil {
		return nil, false, bodyError(b.r.Context(), err)
	}
	b.r.Header.Del("Expect")
	b.putBack(body, http.NoBody)
	return body, true, nil
}

// putBack gives the request what was read of its body, and the rest behind that.
func (b *requestBody) putBack(read []byte, rest io.Reader) {
	b.held = heldBody{Closer: b.r.Body, held: read, rest: rest, taken: b.taken}
	b.r.Body = &b.held
}

// counted is a buffer whose bytes count against the limit of all buffers.
type counted struct {
	buffer *bytes.Buffer
	taken  *recording.Allowance
	most   int64 // how many bytes may come
}

// Write implements io.Writer.
func (c *counted) Write(p []byte) (int, error) {
	if err := c.taken.Admit(len(p)); err != nil {
		return 0, err
	}
	// At most doubled, as bytes come, and never beyond what can come.
	if c.buffer.Available() < len(p) {
		had := int64(c.buffer.Len())
		grown := bytes.NewBuffer(make([]byte, 0, max(min(2*had, c.most), had+int64(len(p)))))
		grown.Write(c.buffer.Bytes())
		*c.buffer = *grown
	}
	return c.buffer.Write(p)
}

// heldBody is a body that was read, for those behind. When they have it, its buffer and
// its room in the budget are given back.
type heldBody struct {
	io.Closer // of the body as it came
	rest      io.Reader
	taken     *recording.Allowance

	mu   sync.Mutex // a transport may close the body while it is being read
	held []byte
	read int // how much of it
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	if n := b.readHeld(p); n > 0 || len(p) == 0 {
		return n, nil
	}
	return b.rest.Read(p)
}

func (b *heldBody) readHeld(p []byte) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := copy(p, b.held[b.read:])
	b.read += n
	if b.read == len(b.held) {
		b.letGoLocked()
	}
	return n
}

func (b *heldBody) letGoLocked() {
	b.taken.GiveBack(int64(len(b.held)))
	b.held, b.read = nil, 0
}

// Close implements io.Closer.
func (b *heldBody) Close() error {
	letGo(b)
	return b.Closer.Close()
}

// letGo gives back what a body holds, if it is one of ours.
func letGo(body io.ReadCloser) {
	if b, ok := body.(*heldBody); ok {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.letGoLocked()
	}
}

// bodyError says with which status a request ends whose body could not be read.
func bodyError(ctx context.Context, err error) error {
	var handlerError caddyhttp.HandlerError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &handlerError):
		return err
	case errors.As(err, &tooLarge):
		return caddyhttp.Error(http.StatusRequestEntityTooLarge, err)
	case ctx.Err() != nil:
		return caddyhttp.Error(statusClientGone, err)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return caddyhttp.Error(http.StatusRequestTimeout, err)
	default:
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
}

// unreadOutcome is what becomes of a request whose body could not be read.
func unreadOutcome(err error) outcome {
	var handlerError caddyhttp.HandlerError
	if errors.As(err, &handlerError) && handlerError.StatusCode == http.StatusRequestEntityTooLarge {
		return outcomeTooLarge
	}
	return outcomeInvalid
}

// statusClientGone is what Caddy's reverse_proxy, too, notes for a client that
// went away before it was answered.
const statusClientGone = 499

// readOff reads what is left of a body, within limits. A client that waits to be
// told to continue has sent none; it sees our answer only if the connection is
// closed, because Go's server, which does not know its own body reader behind
// Caddy's, would wait for a body that never comes.
func readOff(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if body, ok := r.Body.(*heldBody); ok && body.rest == http.NoBody { // it was read to its end
		letGo(body)
		return
	}
	if r.Header.Get("Expect") != "" {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		return
	}
	control := http.NewResponseController(w)
	// Where there is no deadline to be had the server's own timeouts apply.
	_ = control.SetReadDeadline(time.Now().Add(readOffFor))
	_, err := io.CopyN(io.Discard, r.Body, readOffAtMost)
	if err == nil || errors.Is(err, io.EOF) {
		_ = control.SetReadDeadline(time.Time{})
	}
}
