package integration

import (
	"fmt"
	"net/http"
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
