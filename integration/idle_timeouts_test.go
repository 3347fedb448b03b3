package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A `timeouts` handler behind dedup writes to the recording, and has no part in how long the
// client may take. Here it wants a rate of writing that no stream of a few bytes has.
func TestTimeoutsBehindDedupAreNotTheClients(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.Header().Set("Content-Type", "text/event-stream")
		for n := range 6 {
			fmt.Fprintf(w, "data: %d\n\n", n)
			w.(http.Flusher).Flush()
			time.Sleep(300 * time.Millisecond)
		}
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", "handle {", "timeouts {", "write_timeout 500ms 1000000", "}", proxyTo(up), "}")})
	const whole = "data: 0\n\ndata: 1\n\ndata: 2\n\ndata: 3\n\ndata: 4\n\ndata: 5\n\n"
	first := p.post(t, "/", "k", "body")
	wantFresh(t, first, 200, whole)
	wantReplay(t, p.post(t, "/", "k", "body"), first)
	up.wantRuns(t, "k", 1)
}

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
