package integration

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"
)

// longEnough is how long a test watches that something does not happen which
// would happen at once.
const longEnough = 300 * time.Millisecond

func TestRunGoesOnWhenTheClientIsGone(t *testing.T) {
	t.Parallel()
	clients := map[string]*http.Client{"HTTP1": oneShot, "HTTP2": unencryptedHTTP2()}
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				gone := make(chan struct{})
				aborted := make(chan bool, 1)
				up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
					<-gone
					select {
					case <-r.Context().Done():
						aborted <- true
					case <-time.After(longEnough):
						aborted <- false
					}
					answers201(w, r, n)
				})
				p := start(t, conf{store: store, global: h2c, site: lines("dedup", proxyTo(up))})

				ctx, leave := context.WithCancel(t.Context())
				first := sendLater(client, p.newPost("/", "k", "body", within(ctx)))
				begun := up.awaitRuns(t, "k", 1)
				leave()
				if <-first.done; !errors.Is(first.err, context.Canceled) {
					t.Fatalf("the client did not leave: %v", first.err)
				}
				close(gone)
				got := p.post(t, "/", "k", "body")
				wantAnswer(t, got, 201, "run 1 of k")
				if !got.replayed() || got.executionID() != begun.Header.Get("Dedup-Execution-Id") {
					t.Errorf("got %v, want the replay of execution %s", got.Header, begun.Header.Get("Dedup-Execution-Id"))
				}
				if <-aborted {
					t.Error("the run was aborted with its client")
				}
				up.wantRuns(t, "k", 1)
			})
		})
	}
}
