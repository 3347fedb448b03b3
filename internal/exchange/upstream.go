package exchange

import (
	"context"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// The placeholders of Caddy's reverse_proxy.
const (
	upstreamAddress  = "http.reverse_proxy.upstream.address"
	upstreamHostPort = "http.reverse_proxy.upstream.hostport"
	upstreamStatus   = "http.reverse_proxy.status_code"
	upstreamLatency  = "http.reverse_proxy.upstream.latency"
)

// handlersError is the placeholder with the error for which Caddy runs error routes.
const handlersError = "http.error"

// proxyPlaceholders are the placeholders of a request, which proxies set.
type proxyPlaceholders interface {
	Get(name string) (value any, known bool)
	Delete(name string)
}

var _ proxyPlaceholders = (*caddy.Replacer)(nil)

// forgetUpstream deletes the placeholders that an earlier proxy, such as that of forward_auth, has
// set.
func forgetUpstream(repl proxyPlaceholders) {
	repl.Delete(upstreamAddress)
	repl.Delete(upstreamStatus)
}

// upstreamTrace observes whether a run's request may have reached an upstream, over all attempts of
// proxies and transports, and cancels the run before a transport or a proxy sends the request
// again. Go's transport resends a request without a body that has an idempotency key, once for each
// idle connection (net/http, Request.isReplayable).
//
// It is the context of the request that it observes.
type upstreamTrace struct {
	context.Context // with the hooks
	parent          context.Context
	hooks           httptrace.ClientTrace
	repl            proxyPlaceholders
	cancel          context.CancelCauseFunc // cancels the run; nil under observe
	// inErrorRoutes reports whether the run itself is in error routes, for an earlier error.
	inErrorRoutes bool
	// request is the request that the handlers behind get. A proxy sends a copy of it.
	request *http.Request

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

// errResent cancels a run whose request would be sent again. reverse_proxy takes it for a request
// whose client has left, which does not count as a failure of the upstream.
var errResent error = resentError{}

type resentError struct{}

// Error implements error.
func (resentError) Error() string {
	return "the connection broke, and the request is not sent again: the upstream may have executed it"
}

// Is makes it a [context.Canceled].
func (resentError) Is(target error) bool { return target == context.Canceled }

// attach returns t as a context that traces the connections of transports.
func (t *upstreamTrace) attach(ctx context.Context, repl proxyPlaceholders) context.Context {
	t.repl = repl
	if t.inErrorRoutes = ctx.Value(caddyhttp.ErrorCtxKey) != nil; !t.inErrorRoutes {
		repl.Delete(handlersError)
	}
	t.hooks = httptrace.ClientTrace{
		GetConn: t.getConn, GotConn: t.gotConn, ConnectDone: t.connectDone, GotFirstResponseByte: t.gotFirstResponseByte,
	}
	// A transport resends a request with a body only if it has written nothing of it. Whether it
	// may resend one without depends on the protocol, which only the header fields show, at an
	// allocation for each.
	if t.request.ContentLength == 0 {
		t.hooks.WroteHeaderField = t.wroteHeaderField
	} else {
		t.hooks.WroteHeaders = t.wroteHeaders
	}
	t.parent, t.Context = ctx, httptrace.WithClientTrace(ctx, &t.hooks)
	return t
}

// Value implements [context.Context]. reverse_proxy looks the hooks up before each attempt, with
// any transport. The transport looks them up in reverse_proxy's own context.
func (t *upstreamTrace) Value(key any) any {
	value := t.Context.Value(key)
	if _, hooks := value.(*httptrace.ClientTrace); hooks {
		t.parent.Value(key) // a dedup in front has to notice too
		t.willSend()
	}
	return value
}

// willSend starts an attempt of a proxy if only the dialer of the last attempt was traced, or if
// the last one had another upstream. Other attempts start with getConn.
func (t *upstreamTrace) willSend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, chosen := t.repl.Get(upstreamAddress)
	t.asked = chosen
	if t.attempt.dialed || t.attempt.connected && address != t.address {
		t.nextAttempt(address)
	}
}

// getConn starts an attempt of Go's transport.
func (t *upstreamTrace) getConn(string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, _ := t.repl.Get(upstreamAddress)
	t.nextAttempt(address)
	t.sought, t.attempt.sought = true, true
}

// nextAttempt starts an attempt. It cancels the run if the last attempt was sent and not answered.
func (t *upstreamTrace) nextAttempt(address any) {
	last := t.attempt
	t.attempt = attempt{}
	if last.connected && !(t.unprocessed(last) && address == t.address) {
		t.sent = true
		if last.wrote && !t.answered(last) {
			t.resent = true
			if t.cancel != nil {
				t.cancel(errResent)
			}
		}
	}
	t.address, t.asked = address, false
}

// unprocessed reports whether the transport itself, and not a proxy, sends the request again over
// HTTP/2 or HTTP/3. It does so only if the upstream has not processed the request: after GOAWAY and
// REFUSED_STREAM (RFC 9113, sections 6.8 and 8.7) or H3_REQUEST_REJECTED (RFC 9114, section 4.1.1).
func (t *upstreamTrace) unprocessed(last attempt) bool {
	return last.http2 && !t.asked && !last.responded
}

// answered reports whether an attempt was answered: a proxy that then sends the request again has
// decided so by the response.
func (t *upstreamTrace) answered(a attempt) bool {
	_, status := t.repl.Get(upstreamStatus)
	return (a.responded || a.dialed) && (t.address == nil || status)
}

// gotConn is called in the proxy's own goroutine, while the proxy waits for its transport. It
// deletes the status of an earlier attempt, which is not the answer to this one.
func (t *upstreamTrace) gotConn(info httptrace.GotConnInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.connected = true
	if t.resent && t.cancel != nil && isExclusive(info) { // the transport may notice the cancellation too late
		_ = info.Conn.Close()
	}
	t.repl.Delete(upstreamStatus)
	if held := heldIn(t.request.Body); held != nil {
		t.request.Body = held.forLater()
	}
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
func (t *upstreamTrace) connectDone(network, _ string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, chosen := t.repl.Get(upstreamAddress)
	if err != nil || strings.HasPrefix(network, "udp") || !chosen || address == t.address && (t.attempt.sought || t.attempt.dialed) {
		return
	}
	t.attempt = attempt{connected: true, wrote: true, dialed: true}
	t.sent, t.address = true, address
	t.repl.Delete(upstreamStatus)
}

func (t *upstreamTrace) wroteHeaderField(name string, _ []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.wrote = true
	t.attempt.http2 = t.attempt.http2 || strings.HasPrefix(name, ":")
}

func (t *upstreamTrace) wroteHeaders() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.wrote = true
}

func (t *upstreamTrace) gotFirstResponseByte() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.responded = true
}

// upstreamObservation is what was observed of a request's way to an upstream.
type upstreamObservation struct {
	// maybeSent reports whether the request may have reached an upstream: a connection was made.
	maybeSent bool
	// sought reports whether a transport has looked for a connection.
	sought bool
	// status is the upstream's status that a proxy reports; 0 for none.
	status int
	// answered reports whether status is the answer to the last attempt that may have reached an
	// upstream, as far as connections show.
	answered bool
	// resent reports whether the run was cancelled because its request would have been sent again.
	resent bool
	// failed is the error for which error routes behind ran, such as those of a subroute.
	failed error
}

// unanswered reports whether a whole response is a page of error routes behind, for an error
// without an upstream's answer, also not to the error routes themselves.
func (w *upstreamObservation) unanswered() bool { return w.failed != nil && w.status == 0 }

// gaveUp reports whether a 499 comes from reverse_proxy, for a transport that gave up, and not from
// an upstream or a handler. A run's own client does not cause it, but another request can: HTTP/3
// requests that wait for one connection all fail when the one that dials is cancelled.
func (w *upstreamObservation) gaveUp() bool {
	return w.status != statusClientGone && (w.maybeSent || w.sought)
}

// observation returns what was observed until now.
func (t *upstreamTrace) observation() upstreamObservation {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, _ := t.repl.Get(upstreamAddress)
	value, _ := t.repl.Get(upstreamStatus)
	status, _ := value.(int)
	var failed error
	if !t.inErrorRoutes {
		value, _ = t.repl.Get(handlersError)
		failed, _ = value.(error)
	}
	connected := t.sent || t.attempt.connected
	return upstreamObservation{
		failed:    failed,
		maybeSent: connected,
		sought:    t.sought,
		status:    status,
		answered:  status != 0 && connected && t.address == address,
		resent:    t.resent,
	}
}
