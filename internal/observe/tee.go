package observe

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// What a [tap] sees of a request: its body, its response and its placeholders, which it does not
// change.

// bodyTee is a request's body. What the handlers behind read of it is copied, up to a limit. For a
// response, it is only the copy.
type bodyTee struct {
	io.ReadCloser         // nil for a response
	limit, declared int64 // bytes
	allowance       budget.Allowance

	mu    sync.Mutex // transports read in goroutines of their own
	held  budget.Chunks
	err   error         // why no more is copied: [io.EOF] at the end of the body, or at the limit
	ended chan struct{} // closed when err is set
}

// newBodyTee returns a tee of a body with this Content-Length, -1 for none.
func newBodyTee(body io.ReadCloser, declared, limit int64, b *budget.Budget) *bodyTee {
	return &bodyTee{ReadCloser: body, limit: limit, declared: declared, allowance: budget.Allowance{Budget: b}, ended: make(chan struct{})}
}

// Read implements [io.Reader].
func (b *bodyTee) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.copy(p[:n], err)
	return n, err
}

// copy copies bytes of the body, and ends the copying at an error.
func (b *bodyTee) copy(p []byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	if full := b.allowance.Admit(len(p)); full != nil {
		b.endLocked(full)
		return
	}
	b.held.Append(p)
	switch held := int64(b.held.Len()); {
	case held > b.limit, held == b.declared, errors.Is(err, io.EOF):
		b.endLocked(io.EOF)
	case err != nil:
		b.endLocked(err)
	}
}

// joined ends the copying, and returns the copy in one piece.
func (b *bodyTee) joined() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.endLocked(io.EOF); !errors.Is(b.err, io.EOF) {
		return nil, b.err
	}
	if err := b.allowance.Admit(b.held.JoinCost()); err != nil {
		return nil, err
	}
	return b.held.Join(), nil
}

// end ends the copying, unless it has ended.
func (b *bodyTee) end(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked(err)
}

func (b *bodyTee) endLocked(err error) {
	if b.err != nil {
		return
	}
	b.err = err
	if !errors.Is(err, io.EOF) {
		b.dropLocked()
	}
	close(b.ended)
}

// discard ends the copying, and drops the copy.
func (b *bodyTee) discard() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endLocked(io.EOF)
	b.dropLocked()
}

func (b *bodyTee) dropLocked() {
	b.held.Drop()
	b.allowance.ReleaseAll()
}

// copied returns the copy. A read waits until the copying has ended, and releases what it returns.
func (b *bodyTee) copied() io.ReadCloser { return io.NopCloser(copiedBody{b}) }

type copiedBody struct{ of *bodyTee }

// Read implements [io.Reader].
func (c copiedBody) Read(p []byte) (int, error) {
	b := c.of
	<-b.ended
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.held.Take(p)
	b.allowance.Release(int64(n))
	if n == 0 && len(p) > 0 {
		return 0, b.err
	}
	return n, nil
}

// observedWriter is the client's writer. It records status and length of the response.
type observedWriter struct {
	*caddyhttp.ResponseWriterWrapper
	status  int
	written int64
	tee     *bodyTee            // nil if no release_if reads the body
	answer  upstream.Answer     // nil if all of it would be kept
	omitted bool                // the body would not be kept; known when the handlers have ended
	decided map[string][]string // [observedWriter.decisive], known then too
}

// WriteHeader implements [http.ResponseWriter].
func (w *observedWriter) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		w.setStatus(status)
	}
	w.ResponseWriterWrapper.WriteHeader(status)
}

// Write implements [http.ResponseWriter].
func (w *observedWriter) Write(p []byte) (int, error) {
	w.setStatus(http.StatusOK)
	n, err := w.ResponseWriterWrapper.Write(p)
	w.written += int64(n)
	if w.tee != nil {
		w.tee.copy(p[:n], nil)
	}
	if w.answer != nil {
		w.answer.Feed(p[:n])
	}
	return n, err
}

type writerOnly struct{ io.Writer }

// ReadFrom implements [io.ReaderFrom].
func (w *observedWriter) ReadFrom(r io.Reader) (int64, error) {
	w.setStatus(http.StatusOK)
	if w.tee != nil || w.answer != nil {
		return io.Copy(writerOnly{w}, r)
	}
	n, err := w.ResponseWriterWrapper.ReadFrom(r)
	w.written += n
	return n, err
}

// setStatus records the final status, unless there is one, and starts to read the part of an answer that would be
// kept.
func (w *observedWriter) setStatus(status int) {
	if w.status != 0 {
		return
	}
	w.status = status
	if w.answer != nil {
		w.answer.Begin(status, w.Header(), func(room *budget.Allowance, n int) bool { return room.Admit(n) == nil })
	}
}

// decisive returns the header fields that decide what becomes of the key and its duplicates.
func (w *observedWriter) decisive() map[string][]string {
	fields := make(map[string][]string)
	for _, name := range []string{"Location", "Www-Authenticate", "Payment-Required"} {
		if values := w.Header()[name]; len(values) > 0 {
			fields[name] = slices.Clone(values)
		}
	}
	return fields
}

// steadyPlaceholders are the placeholders of a request for an [upstream.Trace] that must not change
// them: what it deletes is hidden from it until a handler sets it again.
type steadyPlaceholders struct {
	repl   *caddy.Replacer
	mu     sync.Mutex
	hidden map[string][2]string
}

// Delete implements [upstream.Placeholders].
func (p *steadyPlaceholders) Delete(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hidden[name] = p.text(name)
}

// Get implements [upstream.Placeholders].
func (p *steadyPlaceholders) Get(name string) (any, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if hidden, is := p.hidden[name]; is && hidden == p.text(name) {
		return nil, false
	}
	return p.repl.Get(name)
}

// text returns a text that changes when a handler sets the placeholder. Two responses may
// have the same status, but not the same latency in nanoseconds.
func (p *steadyPlaceholders) text(name string) (text [2]string) {
	text[0], _ = p.repl.GetString(name)
	if name == upstream.Status {
		text[1], _ = p.repl.GetString(upstream.Latency)
	}
	return text
}

// Shared implements [upstream.Response]. It has no body.
func (w *observedWriter) Shared(share upstream.Share, err error) *idempotency.Response {
	switch share {
	case upstream.ShareResponse:
		return &idempotency.Response{Status: w.status, Header: w.decided, Omitted: w.omitted}
	case upstream.ShareEmpty:
		return &idempotency.Response{Status: http.StatusOK}
	case upstream.ShareError:
		return &idempotency.Response{Status: upstream.FailedStatus(err), Failed: true}
	default:
		return nil
	}
}

// Body implements [upstream.Response].
func (w *observedWriter) Body(*idempotency.Response) ([]byte, error) { return w.tee.joined() }

// Take implements [upstream.Response]. It does not wait for room.
func (w *observedWriter) Take(n int) bool { return w.tee.allowance.Admit(n) == nil }

// Room implements [upstream.Response].
func (w *observedWriter) Room() *budget.Allowance { return &w.tee.allowance }
