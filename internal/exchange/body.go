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

// Before we answer a request ourselves, what is left of its body is read off:
// a client that is still sending would see a broken connection instead of the
// answer. Both limits are generous for a client and cheap for us.
const (
	maxDrained   = 32 << 20
	drainTimeout = 10 * time.Second
)

// requestBody reads a request's body to its end, or up to a limit, at most once,
// and puts it back for those behind. Reading before a claim means that a slow or
// vanishing client holds no claim.
type requestBody struct {
	w     http.ResponseWriter // to its client
	r     *http.Request
	limit int64
	taken *Allowance

	read      bool
	complete  bool // it was read to its end
	err       error
	parseRoom int64       // bytes of the allowance, for what it is parsed into
	large     *largeError // why it is not parsed, or not read to its end; nil for no such reason
	held      heldBody    // what was read, and what the request has in place of its body
}

// readAll is [requestBody.readToLimit] for a caller that needs all of it: a body that is declared
// to be too large is not read, and its client is not asked to send it.
func (b *requestBody) readAll() error {
	if !b.read && b.r.ContentLength > b.limit {
		return delivery.ErrBodyTooLarge
	}
	return b.readToLimit()
}

// joined returns the bytes of a body that is needed in one piece.
func (b *requestBody) joined() ([]byte, error) {
	if err := b.readAll(); err != nil {
		return nil, err
	}
	n := b.held.bytes.JoinCost()
	if err := b.reserve(n); err != nil {
		return nil, err
	}
	defer b.release(int64(n)) // of the pieces
	return b.held.join(), nil
}

// joinedIfUnread is joined for a body that those behind have not begun to read; else it is empty.
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

// admit takes room for bytes that are made of the body beside it. A small one always gets it.
func (b *requestBody) admit(n int) error {
	if n == 0 || b.held.bytes.Len() <= smallBody {
		b.taken.Count(n)
		return nil
	}
	err := b.taken.Admit(n)
	if large, ok := errors.AsType[*largeError](err); ok {
		b.large = large
	} else if err != nil {
		b.err = err
	}
	return err
}

// reserve takes room for what is needed to parse the body.
func (b *requestBody) reserve(n int) error {
	err := b.admit(n)
	if err == nil {
		b.parseRoom += int64(n)
	}
	return err
}

// release gives back room that was reserved.
func (b *requestBody) release(n int64) {
	b.parseRoom -= n
	b.taken.Release(n)
}

// readToLimit reads the body. [delivery.ErrBodyTooLarge] says that it streams on behind what
// was read.
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

// failed returns why the body could not be read, nil if it could or was not.
func (b *requestBody) failed() error { return b.err }

// readBody reads a body and puts it back. It reports whether that is all of it.
func (b *requestBody) readBody() (whole bool, err error) {
	r, limit := b.r, b.limit
	if r.Body == nil || r.Body == http.NoBody {
		return true, nil
	}
	b.sendContinue()
	rest, most := r.Body, limit+1
	if r.ContentLength > 0 {
		most = min(most, r.ContentLength+1) // so that a small body takes a small buffer
	}
	if n := r.ContentLength; 0 < n && n <= min(limit, smallBody) && len(r.Trailer) == 0 {
		err = b.readSmall(int(n))
	} else {
		err = b.readPieces(most)
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
	// The client was told to continue already: the upstream must not be asked to.
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

// sendContinue tells a client to send the body that waits to be told so (RFC 9110, section 10.1.1).
// Go's servers of HTTP/1.1 and HTTP/2 do that themselves when the body is first read; that of
// HTTP/3 does not.
func (b *requestBody) sendContinue() {
	if b.r.ProtoMajor == 3 && b.r.ContentLength != 0 && strings.EqualFold(firstValue(b.r.Header, "Expect"), "100-continue") {
		b.w.WriteHeader(http.StatusContinue)
	}
}

// readSmall reads a body that is declared and small: it gets its buffer at once.
func (b *requestBody) readSmall(n int) error {
	if err := b.taken.Admit(n); err != nil {
		return err
	}
	if _, err := io.ReadFull(b.r.Body, b.held.bytes.Room(int64(n))); err != nil {
		return err
	}
	b.held.bytes.Grow(n)
	return nil
}

// readPieces reads a body to its end, or as much of it. Its buffers grow as it comes: a
// declared length costs its sender nothing.
func (b *requestBody) readPieces(most int64) error {
	delete(b.r.Header, "Expect") // the first read tells the client to continue
	pieces := &b.held.bytes
	for int64(pieces.Len()) < most {
		n, err := b.r.Body.Read(pieces.Room(most - int64(pieces.Len())))
		if n > 0 {
			if full := b.taken.Admit(n); full != nil {
				return full
			}
			pieces.Grow(n)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	// A server of HTTP/3 may end a body before its declared length as if it were whole (RFC
	// 9114, section 4.1.2, has it malformed).
	if n, declared := int64(pieces.Len()), b.r.ContentLength; declared > 0 && n < min(declared, most) {
		return fmt.Errorf("the body ended after %d of %d bytes: %w", n, declared, io.ErrUnexpectedEOF)
	}
	return nil
}

// putBack gives the request what was read of its body, and the rest behind that.
func (b *requestBody) putBack(rest io.Reader) {
	b.held.Closer, b.held.rest, b.held.taken = b.r.Body, rest, b.taken
	b.r.Body = &b.held
}

// heldBody is a body that was read, for those behind. What they have is held no more, and
// its room in the budget is given back.
type heldBody struct {
	io.Closer // of the body as it came
	rest      io.Reader
	taken     *Allowance

	mu    sync.Mutex // a transport may close the body while it is being read
	bytes chunkBuffer
	begun bool // to be read by those behind
	// reader is the first that reads it. No other may.
	reader    io.Reader
	discarded bool // some of it was released: it cannot be read whole
	later     laterBody
}

// join returns the bytes in one piece.
func (b *heldBody) join() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bytes.Join()
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
		return 0, http.ErrBodyReadAfterClose // and no end, which would make it look whole
	}
	n := b.bytes.Take(p)
	b.taken.Release(int64(n))
	b.begun = b.begun || n > 0
	return n, nil
}

func (b *heldBody) discardLocked() {
	b.discarded = b.discarded || b.bytes.Len() > 0
	b.taken.Release(int64(b.bytes.Len()))
	b.bytes.Drop()
}

// Close implements io.Closer. What is read after that is an error, as with the body of Go's
// server itself, and no end: a body of which all was read before would look like an empty one.
func (b *heldBody) Close() error {
	b.mu.Lock()
	b.discardLocked()
	b.discarded = true
	b.mu.Unlock()
	return b.Closer.Close()
}

// laterBody is a held body for handlers that get the request after a proxy had a connection for
// it. Either they read it, if that proxy sends none of it, or the proxy: its transport may
// not have come to the end yet when the upstream answers, and what is left is not the body.
type laterBody struct{ *heldBody }

// forLater returns the body as a laterBody.
func (b *heldBody) forLater() *laterBody {
	b.later.heldBody = b
	return &b.later
}

// Read implements io.Reader.
func (b *laterBody) Read(p []byte) (int, error) { return b.readBy(b, p) }

// heldIn returns the held body in a body, nil if it is none.
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

// releaseBody gives back what a body holds, if it is one of ours.
func releaseBody(body io.ReadCloser) {
	if b := heldIn(body); b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.discardLocked()
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
	case errors.Is(err, os.ErrDeadlineExceeded): // after which the server, too, ends the context
		return caddyhttp.Error(http.StatusRequestTimeout, err)
	case ctx.Err() != nil:
		return caddyhttp.Error(statusClientGone, err)
	default:
		return caddyhttp.Error(http.StatusBadRequest, err)
	}
}

// unreadOutcome is what becomes of a request whose body could not be read.
func unreadOutcome(err error) Outcome {
	var handlerError caddyhttp.HandlerError
	if errors.As(err, &handlerError) && handlerError.StatusCode == http.StatusRequestEntityTooLarge {
		return OutcomeTooLarge
	}
	return OutcomeInvalid
}

// statusClientGone is what Caddy's reverse_proxy, too, notes for a client that
// disconnected before it was answered.
const statusClientGone = 499

// drainBody reads what is left of a body, within limits. A client that waits to be
// told to continue has sent none; it sees our answer only if the connection is
// closed, because Go's server, which does not know its own body reader behind
// Caddy's, would wait for a body that never comes.
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
	// Where there is no deadline to be had the server's own timeouts apply.
	_ = control.SetReadDeadline(time.Now().Add(drainTimeout))
	_, err := io.CopyN(io.Discard, r.Body, maxDrained)
	if err == nil || errors.Is(err, io.EOF) {
		_ = control.SetReadDeadline(time.Time{})
	}
}
