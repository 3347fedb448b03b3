// Package reqbody reads the body of a request once, and hands it on to the handlers behind.
package reqbody

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/httpfield"
)

// Before dedup answers a request itself, it drains the rest of the body: a client that is still
// sending would see a broken connection instead of the answer. Both limits are generous for a client
// and cheap for the server.
const (
	maxDrained   = 32 << 20
	drainTimeout = 10 * time.Second
)

// Body reads a request's body to its end, or up to a limit, at most once, and puts it back for the
// handlers behind. The body is read before the claim, so that a client that is slow or vanishes holds no
// claim.
//
// Errors of its methods are [delivery.ErrBodyTooLarge], a [budget.SpentError], or an [*Error].
type Body struct {
	w     http.ResponseWriter // to its client
	r     *http.Request
	limit int64

	read      bool
	complete  bool // it was read to its end
	err       error
	parseRoom int64              // bytes of the allowance, for what it is parsed into
	large     *budget.LargeError // why it is not parsed, or not read to its end, if it is too large for the budget
	held      Held               // what was read, and what the request has in place of its body
}

// Error is why a body could not be read.
type Error struct{ Err error }

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the error of the body.
func (e *Error) Unwrap() error { return e.Err }

// Failed reports whether an error means that the body could not be read, or that there is no room for it
// now. Whether the request has a key is then unknown.
func Failed(err error) bool {
	_, unread := errors.AsType[*Error](err)
	_, spent := errors.AsType[budget.SpentError](err)
	return unread || spent
}

// Init initializes the body of a request, of which at most limit bytes are held, in room of the allowance.
func (b *Body) Init(w http.ResponseWriter, r *http.Request, limit int64, allowance *budget.Allowance) {
	b.w, b.r, b.limit = w, r, limit
	b.held.allowance = allowance
}

// WasRead reports whether the body was read, at least in part.
func (b *Body) WasRead() bool { return b.read }

// Complete reports whether the body was read to its end.
func (b *Body) Complete() bool { return b.complete }

// Len returns how many bytes were read and are held.
func (b *Body) Len() int { return b.held.bytes.Len() }

// Bytes returns what was read, in pieces. The caller must not keep them.
func (b *Body) Bytes() iter.Seq[[]byte] { return b.held.bytes.All() }

// Beginning returns the first bytes of what was read.
func (b *Body) Beginning() []byte {
	b.held.mu.Lock()
	defer b.held.mu.Unlock()
	return b.held.bytes.From(0)
}

// Excess explains why the body is too large.
func (b *Body) Excess() string {
	if b.large != nil {
		return b.large.Error()
	}
	return fmt.Sprintf("the body is larger than max_request_body, %d bytes", b.limit)
}

// ReadAll reads the whole body. If its declared length is too large, it is not read, and the client gets
// no 100 Continue.
func (b *Body) ReadAll() error {
	if !b.read && b.r.ContentLength > b.limit {
		return delivery.ErrBodyTooLarge
	}
	return b.ReadToLimit()
}

// ReadToLimit reads the body. It returns [delivery.ErrBodyTooLarge] if there is more than the limit: the
// rest then streams on behind what was read.
func (b *Body) ReadToLimit() error {
	if !b.read {
		b.read = true
		b.complete, b.err = b.readBody()
	}
	if b.err == nil && !b.complete {
		return delivery.ErrBodyTooLarge
	}
	return b.err
}

// Joined reads the whole body, and returns it in one piece.
func (b *Body) Joined() ([]byte, error) {
	if err := b.ReadAll(); err != nil {
		return nil, err
	}
	return b.Join()
}

// Join returns what was read of the body in one piece.
func (b *Body) Join() ([]byte, error) {
	n := b.held.bytes.JoinCost()
	if err := b.Reserve(n); err != nil {
		return nil, err
	}
	defer b.release(int64(n)) // the room of the separate chunks
	return b.Whole(), nil
}

// Whole returns what was read in one piece. A body of more than [budget.SmallBody] must have been joined.
func (b *Body) Whole() []byte {
	b.held.mu.Lock()
	defer b.held.mu.Unlock()
	return b.held.bytes.Join()
}

// JoinedIfUnread returns the whole body in one piece, or nil if the handlers behind have begun to read it.
func (b *Body) JoinedIfUnread(room *budget.Allowance) ([]byte, error) {
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

// Admit takes room for n bytes that are made from the body. A small body always gets it.
func (b *Body) Admit(n int) error {
	if n == 0 || b.held.bytes.Len() <= budget.SmallBody {
		b.held.allowance.Count(n)
		return nil
	}
	err := b.held.allowance.Admit(n)
	if large, ok := errors.AsType[*budget.LargeError](err); ok {
		b.large = large
		return delivery.ErrBodyTooLarge
	}
	return err
}

// Reserve takes room for n bytes that parsing the body allocates, until [Body.EndParsing].
func (b *Body) Reserve(n int) error {
	err := b.Admit(n)
	if err == nil {
		b.parseRoom += int64(n)
	}
	return err
}

// EndParsing releases what was reserved.
func (b *Body) EndParsing() { b.release(b.parseRoom) }

func (b *Body) release(n int64) {
	b.parseRoom -= n
	b.held.allowance.Release(n)
}

// Cut ends a read of the body that waits for its client. Without support for deadlines, the next read that returns
// ends it.
func (b *Body) Cut() { _ = http.NewResponseController(b.w).SetReadDeadline(time.Unix(1, 0)) }

// Drop drops what was read. The request gets none of it.
func (b *Body) Drop() {
	b.held.mu.Lock()
	defer b.held.mu.Unlock()
	b.held.bytes.Drop()
	b.held.allowance.ReleaseAll()
}

// readBody reads the body and puts it back. It reports whether it has read the whole body.
func (b *Body) readBody() (whole bool, _ error) {
	r, limit := b.r, b.limit
	if r.Body == nil || r.Body == http.NoBody {
		return true, nil
	}
	b.sendContinue()
	delete(r.Header, "Expect") // the first read tells the client to continue: the upstream must not be asked for it again
	rest, maxBytes := r.Body, limit+1
	if r.ContentLength > 0 {
		maxBytes = min(maxBytes, r.ContentLength+1) // a small body takes a small buffer
	}
	err := b.readChunks(maxBytes)
	if full, ok := errors.AsType[budget.SpentError](err); ok {
		b.putBack(rest)
		return false, full
	}
	if large, ok := errors.AsType[*budget.LargeError](err); ok {
		b.large = large
		b.putBack(rest)
		return false, nil
	}
	if err != nil {
		return false, &Error{err}
	}
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
func (b *Body) sendContinue() {
	if b.r.ProtoMajor == 3 && b.r.ContentLength != 0 && strings.EqualFold(httpfield.First(b.r.Header, "Expect"), "100-continue") {
		b.w.WriteHeader(http.StatusContinue)
	}
}

// readChunks reads a body to its end, or at most maxBytes of it. Its buffers grow as the bytes come:
// a client that only declares a length takes no memory.
func (b *Body) readChunks(maxBytes int64) error {
	buffer := &b.held.bytes
	for int64(buffer.Len()) < maxBytes {
		n, err := b.r.Body.Read(buffer.Room(maxBytes - int64(buffer.Len())))
		if n > 0 {
			full := b.held.allowance.Admit(n)
			buffer.Grow(n)
			if full != nil {
				b.held.allowance.Count(n) // they are held all the same, for the handlers behind
				return full
			}
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
func (b *Body) putBack(rest io.Reader) {
	b.held.Closer, b.held.rest = b.r.Body, rest
	b.r.Body = &b.held
}

// Held is a body that was read, for the handlers behind. What they read is no longer held, and
// its room in the budget is released.
type Held struct {
	io.Closer // of the body as it came
	rest      io.Reader
	allowance *budget.Allowance

	mu        sync.Mutex // a transport may close the body while it is being read
	bytes     budget.Chunks
	begun     bool // the handlers behind have begun to read it
	discarded bool // some of it was released, so that it cannot be read whole
	// reader is the first one that read it. Others get an error.
	reader io.Reader
	later  laterBody
}

// Read implements io.Reader.
func (b *Held) Read(p []byte) (int, error) { return b.readBy(b, p) }

func (b *Held) readBy(reader io.Reader, p []byte) (int, error) {
	n, err := b.readHeld(reader, p)
	if n > 0 || err != nil || len(p) == 0 {
		return n, err
	}
	return b.rest.Read(p)
}

func (b *Held) readHeld(reader io.Reader, p []byte) (int, error) {
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

func (b *Held) discardLocked() {
	b.discarded = b.discarded || b.bytes.Len() > 0
	b.allowance.Release(int64(b.bytes.Len()))
	b.bytes.Drop()
}

// Close implements io.Closer. A later read returns an error, as with the body of Go's own server, and
// not io.EOF: a body that was read to its end would look like an empty one.
func (b *Held) Close() error {
	b.mu.Lock()
	b.discardLocked()
	b.discarded = true
	b.mu.Unlock()
	return b.Closer.Close()
}

// laterBody is the same body for handlers that get the request after a proxy got a connection for it,
// such as those of handle_response. Only one of the two may read it: if the proxy's transport is
// still sending it when the upstream answers, the rest is not the body.
type laterBody struct{ *Held }

// ForLater returns a held body as that of later handlers, and any other body as it is.
func ForLater(body io.ReadCloser) io.ReadCloser {
	b := heldIn(body)
	if b == nil {
		return body
	}
	b.later.Held = b
	return &b.later
}

// Read implements io.Reader.
func (b *laterBody) Read(p []byte) (int, error) { return b.readBy(b, p) }

// heldIn returns the held body that a request's body is, nil for any other.
func heldIn(body io.ReadCloser) *Held {
	switch b := body.(type) {
	case *Held:
		return b
	case *laterBody:
		return b.Held
	default:
		return nil
	}
}

// Release releases what a held body holds. It does nothing to any other.
func Release(body io.ReadCloser) {
	if b := heldIn(body); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.discardLocked()
	}
}

// Drain reads the rest of a request's body, within limits. A client that waits for 100 Continue
// has sent none. Its connection is closed behind the answer: Go's server does not recognize its own
// body reader behind Caddy's, and would wait for a body that never comes.
func Drain(w http.ResponseWriter, r *http.Request) {
	if r.Body == nil || r.Body == http.NoBody {
		return
	}
	if body := heldIn(r.Body); body != nil && body.rest == http.NoBody { // it was read to its end
		Release(body)
		return
	}
	if httpfield.First(r.Header, "Expect") != "" {
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
