// Package upstream traces whether a request reached its upstream, and concludes how its run ended.
package upstream

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/reqbody"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// The placeholders of Caddy's reverse_proxy.
const (
	Address  = "http.reverse_proxy.upstream.address"
	HostPort = "http.reverse_proxy.upstream.hostport"
	Status   = "http.reverse_proxy.status_code"
	Latency  = "http.reverse_proxy.upstream.latency"
)

// HandlersError is the placeholder with the error for which Caddy runs error routes.
const HandlersError = "http.error"

// Placeholders are the placeholders of a request, which proxies set.
type Placeholders interface {
	Get(name string) (value any, known bool)
	Delete(name string)
}

var _ Placeholders = (*caddy.Replacer)(nil)

// Forget deletes the placeholders that an earlier proxy, such as that of forward_auth, has
// set.
func Forget(repl Placeholders) {
	repl.Delete(Address)
	repl.Delete(Status)
}

// Trace observes whether a run's request may have reached an upstream, over all attempts of
// proxies and transports, and cancels the run before a transport or a proxy sends the request
// again. Go's transport resends a request without a body that has an idempotency key, once for each
// idle connection (net/http, Request.isReplayable).
//
// It is the context of the request that it observes.
type Trace struct {
	context.Context // with the hooks
	parent          context.Context
	hooks           httptrace.ClientTrace
	repl            Placeholders
	// Cancel cancels the run; nil under observe.
	Cancel context.CancelCauseFunc
	// inErrorRoutes reports whether the run itself is in error routes, for an earlier error.
	inErrorRoutes bool
	// Request is the request that the handlers behind get. A proxy sends a copy of it.
	Request *http.Request

	mu      sync.Mutex // a transport dials, and writes, in goroutines of its own
	attempt attempt    // the last one
	sought  bool       // some transport looked for a connection
	asked   bool       // a proxy that has chosen its upstream starts this attempt
	// address is the upstream of the last attempt, nil if no proxy chose one.
	address any
	// sent reports whether an earlier attempt, or a transport of which only the dialer is traced,
	// may have reached an upstream. It is never reset.
	sent bool
	// resent reports whether the request would have been sent again.
	resent bool
	// refusals counts the attempts that the upstream has not processed.
	refusals int
	// refused reports whether the run was cancelled for that.
	refused bool
}

// attempt is one attempt to send the request.
type attempt struct {
	// sought reports whether Go's transport looked for a connection.
	sought                      bool
	connected, wrote, responded bool
	// http2 reports whether a request without a body was written over HTTP/2 or HTTP/3.
	http2 bool
	// dialed reports whether only the transport's dialer is traced. From the dial on, the request
	// may have been written, and only the proxy's status shows whether it was answered.
	dialed bool
}

// errNotResent is why a run ends whose request would be sent again.
var errNotResent = errors.New("the connection broke, and the request is not sent again: the upstream may have executed it")

// errResent cancels such a run. reverse_proxy takes it for a request whose client has left, which does not
// count as a failure of the upstream.
var errResent error = resentError{errNotResent}

type resentError struct{ error }

// Is makes it a [context.Canceled].
func (resentError) Is(target error) bool { return target == context.Canceled }

// maxRefusals is how often a transport may send a request again that the upstream has not processed.
const maxRefusals = 7

// errRefused cancels a run whose upstream processes no request. It is no [context.Canceled]: reverse_proxy
// answers it with 502.
var errRefused = errors.New("the upstream refused the request again and again without processing it (GOAWAY or REFUSED_STREAM)")

// Attach returns t as a context that traces the connections of transports.
func (t *Trace) Attach(ctx context.Context, repl Placeholders) context.Context {
	t.repl = repl
	if t.inErrorRoutes = ctx.Value(caddyhttp.ErrorCtxKey) != nil; !t.inErrorRoutes {
		repl.Delete(HandlersError)
	}
	t.hooks = httptrace.ClientTrace{
		GetConn: t.getConn, GotConn: t.gotConn, ConnectDone: t.connectDone, GotFirstResponseByte: t.gotFirstResponseByte,
	}
	// A transport resends a request with a body only if it has written nothing of it. Whether it
	// may resend one without depends on the protocol, which only the header fields show, at an
	// allocation for each.
	if t.Request.ContentLength == 0 {
		t.hooks.WroteHeaderField = t.wroteHeaderField
	} else {
		t.hooks.WroteHeaders = t.wroteHeaders
	}
	t.parent, t.Context = ctx, httptrace.WithClientTrace(ctx, &t.hooks)
	return t
}

// Value implements [context.Context]. reverse_proxy looks the hooks up before each attempt, with
// any transport. The transport looks them up in reverse_proxy's own context.
func (t *Trace) Value(key any) any {
	value := t.Context.Value(key)
	if _, hooks := value.(*httptrace.ClientTrace); hooks {
		t.parent.Value(key) // a dedup in front has to notice too
		t.willSend()
	}
	return value
}

// willSend starts an attempt of a proxy if only the dialer of the last attempt was traced, or if
// the last one had another upstream. Other attempts start with getConn.
func (t *Trace) willSend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, chosen := t.repl.Get(Address)
	t.asked = chosen
	if t.attempt.dialed || t.attempt.connected && address != t.address {
		t.nextAttempt(address)
	}
}

// getConn starts an attempt of Go's transport.
func (t *Trace) getConn(string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, _ := t.repl.Get(Address)
	t.nextAttempt(address)
	t.sought, t.attempt.sought = true, true
}

// nextAttempt starts an attempt. It cancels the run if the last attempt was sent and not answered.
func (t *Trace) nextAttempt(address any) {
	last := t.attempt
	t.attempt = attempt{}
	switch {
	case !last.connected:
	case t.unprocessed(last) && address == t.address:
		if t.refusals++; t.refusals > maxRefusals {
			t.refused = true
			if t.Cancel != nil {
				t.Cancel(errRefused)
			}
		}
	default:
		t.sent = true
		if last.wrote && !t.answered(last) {
			t.resent = true
			if t.Cancel != nil {
				t.Cancel(errResent)
			}
		}
	}
	t.address, t.asked = address, false
}

// unprocessed reports whether the transport itself, and not a proxy, sends the request again over
// HTTP/2 or HTTP/3. It does so only if the upstream has not processed the request: after GOAWAY and
// REFUSED_STREAM (RFC 9113, sections 6.8 and 8.7) or H3_REQUEST_REJECTED (RFC 9114, section 4.1.1).
func (t *Trace) unprocessed(last attempt) bool {
	return last.http2 && !t.asked && !last.responded
}

// answered reports whether an attempt was answered: a proxy that then sends the request again has
// decided so by the response.
func (t *Trace) answered(a attempt) bool {
	_, status := t.repl.Get(Status)
	return (a.responded || a.dialed) && (t.address == nil || status)
}

// gotConn is called in the proxy's own goroutine, while the proxy waits for its transport. It
// deletes the status of an earlier attempt, which is not the answer to this one.
func (t *Trace) gotConn(info httptrace.GotConnInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.connected = true
	if t.resent && t.Cancel != nil && isExclusive(info) { // the transport may notice the cancellation too late
		_ = info.Conn.Close()
	}
	t.repl.Delete(Status)
	t.Request.Body = reqbody.ForLater(t.Request.Body)
}

// isExclusive reports whether a connection carries no other request. It reports false for HTTP/3,
// whose connection panics when it is closed.
func isExclusive(info httptrace.GotConnInfo) bool {
	_, quic := info.Conn.RemoteAddr().(*net.UDPAddr)
	return !quic && (!info.Reused || info.WasIdle)
}

// connectDone handles a transport of which only the dialer is traced, such as that of FastCGI. It
// ignores dials of Go's transport, which has looked for a connection to the same upstream, and
// those of a resolver over UDP.
func (t *Trace) connectDone(network, _ string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, chosen := t.repl.Get(Address)
	if err != nil || strings.HasPrefix(network, "udp") || !chosen || address == t.address && (t.attempt.sought || t.attempt.dialed) {
		return
	}
	t.attempt = attempt{connected: true, wrote: true, dialed: true}
	t.sent, t.address = true, address
	t.repl.Delete(Status)
}

func (t *Trace) wroteHeaderField(name string, _ []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.wrote = true
	t.attempt.http2 = t.attempt.http2 || strings.HasPrefix(name, ":")
}

func (t *Trace) wroteHeaders() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.wrote = true
}

func (t *Trace) gotFirstResponseByte() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.responded = true
}

// Way is what was observed of a request's way to an upstream.
type Way struct {
	// MaybeSent reports whether the request may have reached an upstream: a connection was made.
	MaybeSent bool
	// SentBefore reports whether an attempt before the last one may have reached an upstream.
	SentBefore bool
	// Sought reports whether a transport has looked for a connection.
	Sought bool
	// Status is the upstream's status that a proxy reports; 0 for none.
	Status int
	// Answered reports whether Status is the answer to the last attempt that may have reached an
	// upstream, as far as connections show.
	Answered bool
	// Resent reports whether the run was cancelled because its request would have been sent again.
	Resent bool
	// Failed is the error for which error routes behind ran, such as those of a subroute.
	Failed error
}

// Unanswered reports whether a whole response is a page of error routes behind, for an error
// without an upstream's answer, also not to the error routes themselves.
func (w *Way) Unanswered() bool { return w.Failed != nil && w.Status == 0 }

// gaveUp reports whether a 499 comes from reverse_proxy, for a transport that gave up, and not from
// an upstream or a handler. A run's own client does not cause it, but another request can: HTTP/3
// requests that wait for one connection all fail when the one that dials is cancelled.
func (w *Way) gaveUp() bool {
	return w.Status != StatusClientGone && (w.MaybeSent || w.Sought)
}

// Way returns what was observed until now.
func (t *Trace) Way() Way {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, _ := t.repl.Get(Address)
	value, _ := t.repl.Get(Status)
	status, _ := value.(int)
	var failed error
	if !t.inErrorRoutes {
		value, _ = t.repl.Get(HandlersError)
		failed, _ = value.(error)
	}
	connected := t.sent || t.attempt.connected && (t.attempt.wrote || !t.refused)
	return Way{
		Failed:     failed,
		MaybeSent:  connected,
		SentBefore: t.sent,
		Sought:     t.sought,
		Status:     status,
		Answered:   status != 0 && connected && t.address == address,
		Resent:     t.resent,
	}
}

// Once returns a request that Go's transport sends only once. Go's transport resends only requests without a
// body ([Trace]).
func Once(r *http.Request, repl *caddy.Replacer) (*http.Request, context.CancelCauseFunc) {
	if r.ContentLength != 0 {
		return r, func(error) {}
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	trace := &Trace{Request: r, Cancel: func(error) { cancel(errNotResent) }} // not a context.Canceled: reverse_proxy answers it with 502, not 499
	trace.Request = r.WithContext(trace.Attach(ctx, repl))
	return trace.Request, cancel
}
