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

// What Caddy's reverse_proxy says about the request in its placeholders.
const (
	upstreamAddress  = "http.reverse_proxy.upstream.address"
	upstreamHostPort = "http.reverse_proxy.upstream.hostport"
	upstreamStatus   = "http.reverse_proxy.status_code"
	upstreamLatency  = "http.reverse_proxy.upstream.latency"
)

// handlersError is where Caddy has the error for which error routes are run.
const handlersError = "http.error"

// proxyPlaceholders are the placeholders of a request in which proxies say what they do.
type proxyPlaceholders interface {
	Get(name string) (value any, known bool)
	Delete(name string)
}

var _ proxyPlaceholders = (*caddy.Replacer)(nil)

// forgetUpstream removes what a proxy in front of this handler, such as
// forward_auth, has left in the placeholders.
func forgetUpstream(repl proxyPlaceholders) {
	repl.Delete(upstreamAddress)
	repl.Delete(upstreamStatus)
}

// upstreamTrace observes whether a run's request may have reached an upstream, over all the
// attempts that proxies and transports make, and cancels the run before a transport or a proxy
// sends the request again. Go's transport does so for a request without a body that has an
// idempotency key (net/http, Request.isReplayable), once for each idle connection.
//
// It is the context of what it observes.
type upstreamTrace struct {
	context.Context // with the hooks
	parent          context.Context
	hooks           httptrace.ClientTrace
	repl            proxyPlaceholders
	cancel          context.CancelCauseFunc // cancels the run; nil if it is only observed
	// inErrorRoutes reports whether the run is itself within error routes, for an error before it.
	inErrorRoutes bool
	// request is the one that the handlers behind get. What a proxy sends is a copy of it.
	request *http.Request

	mu      sync.Mutex // a transport dials, and writes, in goroutines of its own
	attempt attempt    // the last one
	sought  bool       // a transport looked for a connection
	asked   bool       // a proxy that has chosen its upstream begins an attempt
	// address is the upstream of the last attempt, nil if no proxy chose one.
	address any
	// sent reports whether an attempt before the last, or a transport that shows nothing but its
	// dialer, may have reached an upstream. It is never taken back.
	sent bool
	// resent reports whether the run was cancelled.
	resent bool
}

// attempt is one attempt to send the request.
type attempt struct {
	// sought reports whether Go's transport looked for a connection.
	sought                      bool
	connected, wrote, responded bool
	// http2 reports whether a request without a body went out over HTTP/2 or HTTP/3.
	http2 bool
	// dialed reports whether the transport shows nothing but its dialer. It may have written from
	// then on, and that it was answered shows in the proxy's status.
	dialed bool
}

// errResent cancels a run whose request would be sent again. To reverse_proxy it is a request
// that was given up, which is no failure of its upstream.
var errResent error = resentError{}

type resentError struct{}

// Error implements error.
func (resentError) Error() string {
	return "the connection broke, and the request is not sent again: the upstream may have executed it"
}

// Is makes it a [context.Canceled].
func (resentError) Is(target error) bool { return target == context.Canceled }

// observe makes t a context in which a transport's connections are observed.
func (t *upstreamTrace) attach(ctx context.Context, repl proxyPlaceholders) context.Context {
	t.repl = repl
	if t.inErrorRoutes = ctx.Value(caddyhttp.ErrorCtxKey) != nil; !t.inErrorRoutes {
		repl.Delete(handlersError)
	}
	t.hooks = httptrace.ClientTrace{
		GetConn: t.getConn, GotConn: t.gotConn, ConnectDone: t.connectDone, GotFirstResponseByte: t.gotFirstResponseByte,
	}
	// A transport resends a request with a body only if it has written nothing of it. That of one
	// without is judged by its protocol, which shows in the header; each field is an allocation.
	if t.request.ContentLength == 0 {
		t.hooks.WroteHeaderField = t.wroteHeaderField
	} else {
		t.hooks.WroteHeaders = t.wroteHeaders
	}
	t.parent, t.Context = ctx, httptrace.WithClientTrace(ctx, &t.hooks)
	return t
}

// Value implements [context.Context]. reverse_proxy asks for the hooks before each attempt,
// whatever its transport shows of it. Its transport asks reverse_proxy's own context.
func (t *upstreamTrace) Value(key any) any {
	value := t.Context.Value(key)
	if _, hooks := value.(*httptrace.ClientTrace); hooks {
		t.parent.Value(key) // so that a dedup in front notices, too
		t.willSend()
	}
	return value
}

// willSend begins an attempt of a proxy behind one whose transport shows nothing but its dialer, or
// that had another upstream. Others begin with getConn.
func (t *upstreamTrace) willSend() {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, chosen := t.repl.Get(upstreamAddress)
	t.asked = chosen
	if t.attempt.dialed || t.attempt.connected && address != t.address {
		t.nextAttempt(address)
	}
}

// getConn begins an attempt of Go's transport.
func (t *upstreamTrace) getConn(string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	address, _ := t.repl.Get(upstreamAddress)
	t.nextAttempt(address)
	t.sought, t.attempt.sought = true, true
}

// nextAttempt begins an attempt, unless the last one forbids it.
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

// unprocessed reports whether the transport itself, and no proxy, sends the request again over
// HTTP/2 or HTTP/3, which it does only if the upstream has not processed it: after GOAWAY and
// REFUSED_STREAM (RFC 9113, sections 6.8 and 8.7) or H3_REQUEST_REJECTED (RFC 9114, section
// 4.1.1).
func (t *upstreamTrace) unprocessed(last attempt) bool {
	return last.http2 && !t.asked && !last.responded
}

// answered reports whether an attempt was answered: a proxy that sends the request again
// has decided so by the response.
func (t *upstreamTrace) answered(a attempt) bool {
	_, status := t.repl.Get(upstreamStatus)
	return (a.responded || a.dialed) && (t.address == nil || status)
}

// gotConn is called by the proxy's own goroutine, while the proxy waits for its transport. What
// an attempt before was answered says nothing of this one.
func (t *upstreamTrace) gotConn(info httptrace.GotConnInfo) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.attempt.connected = true
	if t.resent && t.cancel != nil && isExclusive(info) { // the transport may not notice in time that it is cancelled
		_ = info.Conn.Close()
	}
	t.repl.Delete(upstreamStatus)
	if held := heldIn(t.request.Body); held != nil {
		t.request.Body = held.forLater()
	}
}

// isExclusive reports whether a connection carries no other request. That of HTTP/3 panics when it
// is closed.
func isExclusive(info httptrace.GotConnInfo) bool {
	_, quic := info.Conn.RemoteAddr().(*net.UDPAddr)
	return !quic && (!info.Reused || info.WasIdle)
}

// connectDone notices the connection of a transport that shows none of its own, such as that
// of FastCGI. Go's transport dials for the upstream for which it looked for a connection, and a
// resolver over UDP.
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

// upstreamObservation is what was seen of a request's way to an upstream.
type upstreamObservation struct {
	// maybeSent reports whether the request may have reached an upstream: a connection was made.
	maybeSent bool
	// sought says that a transport has looked for a connection.
	sought bool
	// status is that of the upstream, as a proxy reports it; 0 if none has.
	status int
	// answered says that it is the answer to the last attempt that may have reached an
	// upstream, as far as connections show.
	answered bool
	// resent says that the run was cancelled, because its request would have been sent again.
	resent bool
	// failed is the error for which error routes behind, those of a subroute, were run.
	failed error
}

// unanswered reports whether a whole answer is a page of error routes behind, about an error
// before which no upstream has answered. Nor has one that they themselves have asked.
func (w *upstreamObservation) unanswered() bool { return w.failed != nil && w.status == 0 }

// gaveUp reports whether a 499 is no answer of anybody's, but what reverse_proxy notes where
// its transport gave up. A run's own client does not make it do so, but another request can:
// those of HTTP/3 that wait for one connection all fail when the one that dials is cancelled.
func (w *upstreamObservation) gaveUp() bool {
	return w.status != statusClientGone && (w.maybeSent || w.sought)
}

// observed returns what was observed until now.
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
