package exchange

import (
	"net/http"
	"net/http/httptrace"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Whether a request may have reached an upstream, by what proxies choose and what transports
// show. Each letter is a step: C and D a proxy chooses upstream 1 or 2, g a transport looks for a
// connection, G it has one, d a dialer has one, h it writes a header of HTTP/2, r it reads a
// response, s the proxy has the status of that.
func TestWaysToAnUpstream(t *testing.T) {
	for steps, want := range map[string]bool{
		"":        false, // no proxy
		"Cg":      false, // no connection to be had
		"Cgd":     false, // nor after a handshake
		"CgDg":    false, // nor to the next upstream
		"CgG":     true,
		"CgGDg":   true, // and to the next upstream none
		"gG":      true, // no proxy
		"C":       true, // a transport that shows nothing
		"Cd":      true, // one that shows its dialer, such as that of FastCGI
		"CdsDg":   true, // which an upstream that refuses connections does not take back
		"CdDg":    true, // nor if it has not answered
		"CgDd":    true,
		"CgD":     true,
		"CdsDgCg": true,
		"CgGhgG":  true,  // sent again by the transport, over HTTP/2
		"CgGhg":   false, // which finds no other connection: the upstream has not processed it
		"CgGhDg":  true,  // sent by one proxy, and not by the next one
		"CgGhrg":  true,  // answered, and not sent again
	} {
		t.Run(steps, func(t *testing.T) {
			repl := caddy.NewReplacer()
			trace := &upstreamTrace{request: new(http.Request), cancel: func(error) {}}
			shown := httptrace.ContextClientTrace(trace.observe(t.Context(), repl))
			for _, step := range steps {
				switch step {
				case 'C':
					repl.Set(upstreamAddress, "127.0.0.1:9001")
				case 'D':
					repl.Set(upstreamAddress, "127.0.0.1:9002")
				case 'g':
					shown.GetConn("")
				case 'G':
					shown.GotConn(httptrace.GotConnInfo{})
				case 'd':
					shown.ConnectDone("tcp", "", nil)
				case 'h':
					shown.WroteHeaderField(":method", nil)
				case 'r':
					shown.GotFirstResponseByte()
				case 's':
					repl.Set(upstreamStatus, 200)
				}
			}
			if got := trace.observed(nil); got.maybeSent != want {
				t.Errorf("seen: %+v, want maybe sent %v", got, want)
			}
		})
	}
}

// A proxy's status is the answer to the last attempt, and not where a transport that shows no
// connections comes behind.
func TestStatusOfTheLastAttempt(t *testing.T) {
	repl := caddy.NewReplacer()
	repl.Set(upstreamAddress, "127.0.0.1:9001")
	repl.Set(upstreamStatus, 500) // of an attempt before
	trace := &upstreamTrace{request: new(http.Request), cancel: func(error) {}}
	shown := httptrace.ContextClientTrace(trace.observe(t.Context(), repl))
	shown.GetConn("")
	shown.GotConn(httptrace.GotConnInfo{})
	if got := trace.observed(nil); got.status != 0 || got.answered {
		t.Errorf("before its answer: %+v", got)
	}
	repl.Set(upstreamStatus, 503)
	if got := trace.observed(nil); got.status != 503 || !got.answered {
		t.Errorf("after its answer: %+v", got)
	}
	repl.Set(upstreamAddress, "127.0.0.1:9002")
	if got := trace.observed(nil); got.answered {
		t.Errorf("after a transport that shows nothing: %+v", got)
	}
}
