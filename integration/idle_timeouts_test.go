package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A client that stops in the middle of its body is told so, with the status for it (RFC 9110,
// section 15.5.9), and claims nothing.
func TestBodyThatOutlastsTheServersTimeout(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", global: "servers {\ntimeouts {\nread_body 300ms\n}\n}", site: lines("dedup", proxyTo(up))})
	whole := strings.Replace(string(rawPost("/", []byte("body"), "Idempotency-Key: k")), "Host: raw.test", "Host: dedup.test", 1)
	if got := p.sendRaw(t, []byte(whole[:len(whole)-2])); got.Status != http.StatusRequestTimeout {
		t.Errorf("got %d %s", got.Status, got.Body)
	}
	up.wantRuns(t, "k", 0)
	wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 1 of k")
}

// A stream may pause for longer than its client may take nothing: it is the upstream that says
// nothing. Nor does a `timeouts` handler behind dedup, which writes to the recording, have a part in
// how long the client may take; here it wants a rate of writing that no stream of a few bytes has.
func TestPausesOfAStreamAreNotItsClients(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]*http.Client{"HTTP1": oneShot, "HTTP2": unencryptedHTTP2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
				for n := range 2 {
					fmt.Fprintf(w, "part %d\n", n)
					w.(http.Flusher).Flush()
					time.Sleep(1500 * time.Millisecond) // longer than client_idle
				}
				fmt.Fprint(w, "end\n")
			})
			p := start(t, conf{store: "store memory", dedup: limits("client_idle 1s"), global: h2c,
				site: lines("dedup", "handle {", "timeouts {", "write_timeout 500ms 1000000", "}", proxyTo(up), "}")})
			first := sendLater(client, p.newPost("/", "k", ""))
			up.awaitRuns(t, "k", 1)
			for _, w := range []*pending{first, sendLater(client, p.newPost("/", "k", ""))} {
				if got := w.reply(t); got.Body != "part 0\npart 1\nend\n" {
					t.Errorf("got %q", got.Body)
				}
			}
			up.wantRuns(t, "k", 1)
		})
	}
}
