package caddymodule

import (
	"context"
	"net/http/httptrace"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
)

// What Caddy's reverse_proxy says about the request in its placeholders.
const (
	upstreamAddress = "http.reverse_proxy.upstream.address"
	upstreamStatus  = "http.reverse_proxy.status_code"
)

// sentTrace observes whether a run's request may have reached an upstream, over
// all the attempts that a proxy makes: the error it returns in the end speaks of
// the last one only.
type sentTrace struct {
	sought atomic.Bool // a transport looked for a connection
	had    atomic.Bool // and had one
}

// traced returns a context in which a transport's connections are observed.
func traced(ctx context.Context) (context.Context, *sentTrace) {
	t := new(sentTrace)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { t.sought.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { t.had.Store(true) },
	}), t
}

// forgetUpstream removes what a proxy in front of this handler, such as
// forward_auth, has left in the placeholders.
func forgetUpstream(repl *caddy.Replacer) {
	repl.Delete(upstreamAddress)
	repl.Delete(upstreamStatus)
}

// maybeSent reports whether the request may have reached an upstream. A proxy
// that chose an upstream and whose transport shows no connections (FastCGI)
// cannot tell.
func (t *sentTrace) maybeSent(repl *caddy.Replacer) bool {
	if t.had.Load() {
		return true
	}
	_, chosen := repl.Get(upstreamAddress)
	return chosen && !t.sought.Load()
}

// upstreamAnswered returns the status that a proxy's upstream answered, 0 if
// nobody said.
func upstreamAnswered(repl *caddy.Replacer) int {
	value, _ := repl.Get(upstreamStatus)
	status, _ := value.(int)
	return status
}
