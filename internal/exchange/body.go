package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// Before dedup answers a request itself, it drains the rest of the body: a client that is still
// sending would see a broken connection instead of the answer. Both limits are generous for a client
// and cheap for the server.
const (
	maxDrained   = 32 << 20
	drainTimeout = 10 * time.Second
)

// requestBody reads a request's body to its end, or up to a limit, at most once, and puts it back for
// the handlers behind. The body is read before the claim, so that a client that is slow or vanishes
// holds no claim.
type requestBody struct {
	w     http.ResponseWriter // to its client
	r     *http.Request
	limit int64

	read      bool
	complete  bool // it was read to its end
	err       error
	parseRoom int64       // bytes of the allowance, for what it is parsed into
	large     *largeError // why it is not parsed, or not read to its end, if it is too large for the budget
	held      heldBody    // what was read, and what the request has in place of its body
}

// readAll is [requestBody.readToLimit] for a caller that needs the whole body. A body whose declared
// length is too large is not read, and the client gets no 100 Continue.
func (b *requestBody) readAll() error {
	if !b.read && b.r.ContentLength > b.limit {
		return delivery.ErrBodyTooLarge
	}
	return b.readToLimit()
}

// joined returns the whole body in one piece.
func (b *requestBody) joined() ([]byte, error) {
	if err := b.readAll(); err != nil {
		return nil, err
	}
	return b.join()
}

// join returns what was read of the body in one piece.
func (b *requestBody) join() ([]byte, error) {
	n := b.held.bytes.JoinCost()
	if err := b.reserve(n); err != nil {
		return nil, err
	}
	defer b.release(int64(n)) // the room of the separate chunks
	return b.held.join(), nil
}

// joinedIfUnread returns the whole body if the handlers behind have not begun to read it, else nil.
func (b *requestBody) joinedIfUnread(room *Allowance) ([]byte, error) {
	b.held.mu.Lock()
	defer b.held.mu.Unlock()
	if !b.complete || b.held.begun || b.held.discarded {
		return nil, nil
	}
	if err := room.Admit(b.held.bytes.JoinCost()); err != nil {
		return nil, err
	}
	return b.held.bytes.Join(), nil
}

// admit takes room for n bytes that are made from the body. A small body always gets it.
func (b *requestBody) admit(n int) error {
	if n == 0 || b.held.bytes.Len() <= smallBody {
		b.held.allowance.Count(n)
		return nil
	}
	err := b.held.allowance.Admit(n)
	if large, ok := errors.AsType[*largeError](err); ok {
		b.large = large
	} else if err != nil {
		b.err = err
	}
	return err
}

// reserve takes room for n bytes that parsing the body allocates.
func (b *requestBody) reserve(n int) error {
	err := b.admit(n)
	if err == nil {
		b.parseRoom += int64(n)
	}
	return err
}

// release releases room that was reserved.
func (b *requestBody) release(n int64) {
	b.parseRoom -= n
	b.held.allowance.Release(n)
}

// readToLimit reads the body. It returns [delivery.ErrBodyTooLarge] if there is more than the limit:
// the rest then streams on behind what was read.
func (b *requestBody) readToLimit() error {
	if !b.read {
		b.read = true
		b.complete, b.err = b.readBody()
	}
	if b.err == nil && !b.complete {
		return delivery.ErrBodyTooLarge
	}
	return b.err
}

// tryRead reads the body of an observed request, which needs it only for its hash. The request does not
// fail with it.
func (b *requestBody) tryRead() error {
	if b.readToLimit() != nil {
		b.complete, b.err = false, nil
	}
	return nil
}

// failed returns why the body could not be read, nil if it was read or not tried.
func (b *requestBody) failed() error { return b.err }

// readBody reads the body and puts it back. It reports whether it has read the whole body.
func (b *requestBody) readBody() (whole bool, err error) {
	r, limit := b.r, b.limit
	if r.Body == nil || r.Body == http.NoBody {
		return true, nil
	}
	b.sendContinue()
	rest, maxBytes := r.Body, limit+1
	if r.ContentLength > 0 {
		maxBytes = min(maxBytes, r.ContentLength+1) // a small body takes a small buffer
	}
	if n := r.ContentLength; 0 < n && n <= min(limit, smallBody) && len(r.Trailer) == 0 {
		err = b.readSmall(int(n))
	} else {
		err = b.readChunks(maxBytes)
	}
	if full, ok := errors.AsType[spentError](err); ok {
		b.putBack(rest)
		return false, full
	}
	if large, ok := errors.AsType[*largeError](err); ok {
		b.large = large
		b.putBack(rest)
		return false, nil
	}
	if err != nil {
		return false, bodyError(r.Context(), err)
	}
	// The client already has its 100 Continue: the upstream must not be asked for another one.
	delete(r.Header, "Expect")
	n := int64(b.held.bytes.Len())
	if n > limit {
		b.putBack(rest)
		return false, nil
	}
	b.putBack(http.NoBody)
	if n == 0 {
		r.Body = http.NoBody
	}
	if len(r.Trailer) == 0 {
		r.ContentLength = n
		r.TransferEncoding = nil
	}
	return true, nil
}

// sendContinue sends 100 Continue to an HTTP/3 client that waits for it before it sends the body (RFC
// 9110, section 10.1.1). The servers of HTTP/1.1 and HTTP/2 do so by themselves when the body is first
// read.
func (b *requestBody) sendContinue() {
	if b.r.ProtoMajor == 3 && b.r.ContentLength != 0 && strings.EqualFold(firstValue(b.r.Header, "Expect"), "100-continue") {
		b.w.WriteHeader(http.StatusContinue)
	}
}

// readSmall reads a body of a small declared length into a buffer of that length.
func (b *requestBody) readSmall(n int) error {
	if err := b.held.allowance.Admit(n); err != nil {
		return err
	}
	if _, err := io.ReadFull(b.r.Body, b.held.bytes.Room(int64(n))); err != nil {
		return err
	}
	b.held.bytes.Grow(n)
	return nil
}

// readChunks reads a body to its end, or at most maxBytes of it. Its buffers grow as the bytes come:
// a client that only declares a length takes no memory.
func (b *requestBody) readChunks(maxBytes int64) error {
	delete(b.r.Header, "Expect") // the first read tells the client to continue
	buffer := &b.held.bytes
	for int64(buffer.Len()) < maxBytes {
		n, err := b.r.Body.Read(buffer.Room(maxBytes - int64(buffer.Len())))
		if n > 0 {
			if full := b.held.allowance.Admit(n); full != nil {
				return full
			}
			buffer.Grow(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	// An HTTP/3 server may end a body before its declared length without an error, although such a
	// request is malformed (RFC 9114, section 4.1.2).
	if n, declared := int64(buffer.Len()), b.r.ContentLength; declared > 0 && n < min(declared, maxBytes) {
		return fmt.Errorf("the body ended after %d of %d bytes: %w", n, declared, io.ErrUnexpectedEOF)
	}
	return nil
}

// putBack makes the body of the request what was read of it, followed by the rest.
func (b *requestBody) putBack(rest io.Reader) {
	b.held.Closer, b.held.rest = b.r.Body, rest
	b.r.Body = &b.held
}

// heldBody is a body that was read, for the handlers behind. What they read is no longer held, and
// its room in the budget is released.
type heldBody struct {
	io.Closer // of the body as it came
	rest      io.Reader
	allowance *Allowance

	mu        sync.Mutex // a transport may close the body while it is being read
	bytes     chunkBuffer
	begun     bool // the handlers behind have begun to read it
	discarded bool // some of it was released, so that it cannot be read whole
	// reader is the first one that read it. Others get an error.
	reader io.Reader
	later  laterBody
}

// join returns the bytes in one piece.
func (b *heldBody) join() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Join()
}

// beginning returns the first chunk of the bytes.
func (b *heldBody) beginning() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.from(0)
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) { return b.readBy(b, p) }

func (b *heldBody) readBy(reader io.Reader, p []byte) (int, error) {
	n, err := b.readHeld(reader, p)
	if n > 0 || err != nil || len(p) == 0 {
		return n, err
	}
	return b.rest.Read(p)
}

func (b *heldBody) readHeld(reader io.Reader, p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reader == nil {
		b.reader = reader
	}
	if b.discarded || b.reader != reader {
		return 0, http.ErrBodyReadAfterClose // not io.EOF, which would make it look whole
	}
	n := b.bytes.Take(p)
	b.allowance.Release(int64(n))
	b.begun = b.begun || n > 0
	return n, nil
}

func (b *heldBody) discardLocked() {
	b.discarded = b.discarded || b.bytes.Len() > 0
	b.allowance.Release(int64(b.bytes.Len()))
	b.bytes.Drop()
}

// Close implements io.Closer. A later read returns an error, as with the body of Go's own server, and
// not io.EOF: a body that was read to its end would look like an empty one.
func (b *heldBody) Close() error {
	b.mu.Lock()
	b.discardLocked()
	b.discarded = true
	b.mu.Unlock()
	return b.Closer.Close()
}

// laterBody is the same body for handlers that get the request after a proxy got a connection for it,
// such as those of handle_response. Only one of the two may read it: if the proxy's transport is
// still sending it when the upstream answers, the rest is not the body.
type laterBody struct{ *heldBody }

// forLater returns the body as a laterBody.
func (b *heldBody) forLater() *laterBody {
	b.later.heldBody = b
	return &b.later
}

// Read implements io.Reader.
func (b *laterBody) Read(p []byte) (int, error) { return b.readBy(b, p) }

// heldIn returns the held body that a request's body is, nil for any other.
func heldIn(body io.ReadCloser) *heldBody {
	switch b := body.(type) {
	case *heldBody:
		return b
	case *laterBody:
		return b.heldBody
	default:
		return nil
	}
}

// releaseBody releases what a held body holds. It does nothing to any other.
func releaseBody(body io.ReadCloser) {
	if b := heldIn(body); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.discardLocked()
	}
}

// bodyError returns an error with the status of a request whose body could not be read.
func bodyError(ctx context.Context, err error) error {
	var handlerError caddyhttp.HandlerError
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &handlerError):
		return err
	case errors.As(err, &tooLarge):
		return caddyhttp.Error(http.StatusRequestEntityTooLarge, err)
	case errors.Is(err, os.ErrDeadlineExceeded): // the server then cancels the context too
		return caddyhttp.Error(http.StatusRequestTimeout, err)
	case ctx.Err() != nil:
		return caddyhttp.Error(statusClientGone, err)
	default:
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
}

// unreadOutcome returns the outcome of a request whose body could not be read.
func unreadOutcome(err error) Outcome {
	var handlerError caddyhttp.HandlerError
	if errors.As(err, &handlerError) && handlerError.StatusCode == http.StatusRequestEntityTooLarge {
		return OutcomeTooLarge
	}
	return OutcomeInvalid
}

// statusClientGone is the status of a request whose client disconnected before it was answered, as in
// Caddy's reverse_proxy.
const statusClientGone = 499

// drainBody reads the rest of a request's body, within limits. A client that waits for 100 Continue
// has sent none. Its connection is closed behind the answer: Go's server does not recognize its own
// body reader behind Caddy's, and would wait for a body that never comes.
func drainBody(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if body := heldIn(r.Body); body != nil && body.rest == http.NoBody { // it was read to its end
		releaseBody(body)
		return
	}
	if firstValue(r.Header, "Expect") != "" {
		if r.ProtoMajor == 1 {
			w.Header().Set("Connection", "close")
		}
		return
	}
	control := http.NewResponseController(w)
	// Without support for deadlines, the server's own timeouts apply.
	_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
	_, err := io.CopyN(io.Discard, r.Body, maxDrained)
	if err == nil || errors.Is(err, io.EOF) {
		_ = control.SetReadDeadline(time.Time{})
	}
}
