package caddymodule

import (
	"net/http"
	"net/http/httptrace"
	"testing"

	"github.com/caddyserver/caddy/v2"
)

// Whether a request may have reached an upstream: by the upstream that a proxy has
// chosen, and by the connections that its transport shows. Without either of these,
// nothing was sent. A transport that shows none, as that of FastCGI, cannot tell.
func TestWaysToAnUpstream(t *testing.T) {
	for name, way := range map[string]struct {
		chosen, sought, had bool
		want                bool
	}{
		"no proxy": {false, false, false, false},
		"an upstream, and no connection to be had":   {true, true, false, false},
		"an upstream, and a connection":              {true, true, true, true},
		"an upstream, and no word about connections": {true, false, false, true},
		"a connection, and no proxy":                 {false, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			repl := caddy.NewReplacer()
			repl.Set(upstreamStatus, 500) // of an attempt before
			if way.chosen {
				repl.Set(upstreamAddress, "127.0.0.1:9000")
			}
			trace := &upstreamTrace{sent: new(http.Request)}
			ctx := trace.observe(t.Context(), repl)
			shown := httptrace.ContextClientTrace(ctx)
			if way.sought {
				shown.GetConn("127.0.0.1:9000")
			}
			if way.had {
				shown.GotConn(httptrace.GotConnInfo{})
			}
			if way.had {
				if got := trace.seen(); got.status != 0 || got.answered {
					t.Errorf("before its answer: %+v", got)
				}
			}
			repl.Set(upstreamStatus, 503)
			got := trace.seen()
			if got.answered != way.had || way.had && trace.seenBehind(repl, "127.0.0.1:9001").answered {
				t.Errorf("seen: %+v, want answered %v, and not where a blind transport comes behind", got, way.had)
			}
			if got.maybeSent != way.want || got.status != 503 {
				t.Errorf("seen: %+v, want maybe sent %v, and the status of the proxy", got, way.want)
			}
		})
	}
}

// seenBehind is what is seen when a transport that shows no connections has had another upstream.
func (t *upstreamTrace) seenBehind(repl *caddy.Replacer, address string) upstreamWay {
	before, chosen := repl.Get(upstreamAddress)
	repl.Set(upstreamAddress, address)
	defer func() {
		repl.Delete(upstreamAddress)
		if chosen {
			repl.Set(upstreamAddress, before)
		}
	}()
	return t.seen()
}
