package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// What Caddy's reverse_proxy says about the request in its placeholders.
const (
	upstreamAddress = "http.reverse_proxy.upstream.address"
	upstreamStatus  = "http.reverse_proxy.status_code"
)

// handlersError is where Caddy has the error for which error routes are run.
const handlersError = "http.error"

// forgetUpstream removes what a proxy in front of this handler, such as
// forward_auth, has left in the placeholders.
func forgetUpstream(repl *caddy.Replacer) {
	repl.Delete(upstreamAddress)
	repl.Delete(upstreamStatus)
}

// upstreamTrace observes whether a run's request may have reached an upstream, over
// all the attempts that a proxy makes: the error it returns in the end speaks of
// the last one only.
type upstreamTrace struct {
	hooks  httptrace.ClientTrace
	repl   *caddy.Replacer
	sought atomic.Bool // a transport looked for a connection
	had    atomic.Bool // and had one
	// address is the upstream for which a transport last looked for one.
	address atomic.Value
	// within says that the run is itself within error routes, for an error before it.
	within bool
	// sent is the request as those behind have it. What a proxy sends is a copy of it.
	sent *http.Request
}

// observe returns a context in which a transport's connections are observed.
func (t *upstreamTrace) observe(ctx context.Context, repl *caddy.Replacer) context.Context {
	t.repl = repl
	if t.within = ctx.Value(caddyhttp.ErrorCtxKey) != nil; !t.within {
		repl.Delete(handlersError)
	}
	t.hooks = httptrace.ClientTrace{GetConn: t.getConn, GotConn: t.gotConn}
	return httptrace.WithClientTrace(ctx, &t.hooks)
}

func (t *upstreamTrace) getConn(string) {
	t.sought.Store(true)
	if address, chosen := t.repl.Get(upstreamAddress); chosen { // as it is: a string would be allocated anew
		t.address.Store(address)
	}
}

// gotConn is called by the proxy's own goroutine, while the proxy waits for its transport. What
// an attempt before was answered says nothing of this one.
func (t *upstreamTrace) gotConn(httptrace.GotConnInfo) {
	t.had.Store(true)
	t.repl.Delete(upstreamStatus)
	if held := heldIn(t.sent.Body); held != nil {
		t.sent.Body = &laterBody{held}
	}
}

// upstreamWay is what was seen of a request's way to an upstream.
type upstreamWay struct {
	// maybeSent says that the request may have reached an upstream. A proxy that
	// chose an upstream and whose transport shows no connections (FastCGI) cannot
	// tell.
	maybeSent bool
	// sought says that a transport has looked for a connection.
	sought bool
	// status is what a proxy says that its upstream answered, 0 if nobody said.
	status int
	// answered says that it is the answer to the last attempt that may have reached an
	// upstream, as far as connections show.
	answered bool
	// failed is the error for which error routes behind, those of a subroute, were run.
	failed error
}

// unanswered reports whether a whole answer is a page of error routes behind, about an error
// before which no upstream has answered. Nor has one that they themselves have asked.
func (w *upstreamWay) unanswered() bool { return w.failed != nil && w.status == 0 }

// nothingSent reports whether no proxy has sent the request to an upstream.
func (w upstreamWay) nothingSent() bool { return !w.maybeSent && w.status == 0 }

// gaveUp reports whether a 499 is no answer of anybody's, but what reverse_proxy notes where
// its transport gave up. A run's own client does not make it do so, but another request can:
// those of HTTP/3 that wait for one connection all fail when the one that dials is cancelled.
func (w *upstreamWay) gaveUp() bool {
	return w.status != statusClientGone && (w.maybeSent || w.sought)
}

func (t *upstreamTrace) seen() upstreamWay {
	address, chosen := t.repl.Get(upstreamAddress)
	value, _ := t.repl.Get(upstreamStatus)
	status, _ := value.(int)
	var failed error
	if !t.within {
		value, _ = t.repl.Get(handlersError)
		failed, _ = value.(error)
	}
	return upstreamWay{
		failed:    failed,
		maybeSent: t.had.Load() || chosen && !t.sought.Load(),
		sought:    t.sought.Load(),
		status:    status,
		answered:  status != 0 && t.had.Load() && t.address.Load() == address,
	}
}
