package upstream

import (
	"net/http"
	"net/http/httptrace"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Whether a request may have reached an upstream, by what proxies choose and what transports
// show. Each letter is a step: C and D a proxy chooses upstream 1 or 2, and begins an attempt; g a
// transport looks for a connection, G it has one, d a dialer has one, n one of a resolver has one, w
// it writes a header of HTTP/1.1, h one of HTTP/2, r it reads a response, s the proxy has the status
// of that, x the proxy tries again after an error.
func TestWaysToAnUpstream(t *testing.T) {
	const unsent, sent, cancelled = "not sent", "sent", "sent, and cancelled"
	for steps, want := range map[string]string{
		"":       unsent, // no proxy
		"C":      unsent, // the request cannot be sent
		"Cg":     unsent, // no connection to be had
		"Cgd":    unsent, // nor after a handshake
		"CgDg":   unsent, // nor to the next upstream
		"CgD":    unsent,
		"CgG":    sent,
		"CgGDg":  sent, // and to the next upstream none
		"CgGCg":  sent, // nothing was written
		"gG":     sent, // no proxy
		"gGwg":   cancelled,
		"CgGwg":  cancelled, // sent again by the transport
		"CgGwDg": cancelled, // or by another proxy

		// A transport that shows nothing but its dialer, such as that of FastCGI.
		"Cd":      sent,
		"Cn":      unsent,
		"CdsDg":   sent, // which an upstream that refuses connections does not take back
		"CdsDgCg": sent,
		"CdDg":    cancelled,
		"CdD":     cancelled, // before it dials
		"CdC":     cancelled,
		"CdnC":    cancelled,
		"CdsC":    sent,      // for the response
		"CdsCdC":  cancelled, // which is none to the next attempt
		"CgDd":    sent,
		"CgGwDd":  cancelled,
		"CgGwrsD": sent,
		"CgGwd":   sent, // Go's transport has dialed for nothing

		// Over HTTP/2 the transport sends again what was not processed.
		"CgGhgG":      sent,
		"CgGhg":       unsent, // and finds no other connection
		"CgGhDg":      cancelled,
		"CgGhrg":      cancelled, // without a status of its own
		"CgGhrsDgGwg": cancelled, // what has spoken HTTP/2 before says nothing of HTTP/1.1
		"CgGhCg":      cancelled, // by the proxy
	} {
		t.Run(steps, func(t *testing.T) {
			repl := caddy.NewReplacer()
			trace := &Trace{Request: new(http.Request), Cancel: func(error) {}}
			ctx := trace.Attach(t.Context(), repl)
			shown := &trace.hooks
			for _, step := range steps {
				switch step {
				case 'C':
					repl.Set(Address, "127.0.0.1:9001")
					httptrace.WithClientTrace(ctx, new(httptrace.ClientTrace))
				case 'D':
					repl.Set(Address, "127.0.0.1:9002")
					httptrace.WithClientTrace(ctx, new(httptrace.ClientTrace))
				case 'g':
					shown.GetConn("")
				case 'G':
					shown.GotConn(httptrace.GotConnInfo{})
				case 'd':
					shown.ConnectDone("tcp", "", nil)
				case 'n':
					shown.ConnectDone("udp", "", nil)
				case 'w':
					shown.WroteHeaderField("Host", nil)
				case 'h':
					shown.WroteHeaderField(":method", nil)
				case 'r':
					shown.GotFirstResponseByte()
				case 's':
					repl.Set(Status, 200)
				}
			}
			got, is := trace.Way(), unsent
			switch {
			case got.Resent && got.MaybeSent:
				is = cancelled
			case got.MaybeSent:
				is = sent
			}
			if is != want {
				t.Errorf("seen: %+v, want %s", got, want)
			}
		})
	}
}

// A proxy's status is the answer to the last attempt, and not where another proxy comes behind.
func TestStatusOfTheLastAttempt(t *testing.T) {
	repl := caddy.NewReplacer()
	repl.Set(Address, "127.0.0.1:9001")
	repl.Set(Status, 500) // of an attempt before
	trace := &Trace{Request: new(http.Request), Cancel: func(error) {}}
	shown := httptrace.ContextClientTrace(trace.Attach(t.Context(), repl))
	shown.GetConn("")
	shown.GotConn(httptrace.GotConnInfo{})
	if got := trace.Way(); got.Status != 0 || got.Answered {
		t.Errorf("before its answer: %+v", got)
	}
	repl.Set(Status, 503)
	if got := trace.Way(); got.Status != 503 || !got.Answered {
		t.Errorf("after its answer: %+v", got)
	}
	repl.Set(Address, "127.0.0.1:9002")
	if got := trace.Way(); got.Answered {
		t.Errorf("after a transport that shows nothing: %+v", got)
	}
}
