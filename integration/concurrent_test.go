package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// While the response cannot be stored, no client may have all of it.
func TestAnswerIsStoredBeforeItsLastByte(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 100_000)
	shapes := map[string]answering{
		"small": answers201,
		"large of known length": func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			fmt.Fprint(w, large)
		},
		"stream of known length": func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			fmt.Fprint(w, large)
		},
		"stream": func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, large)
		},
	}
	for name, answer := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			g := newGate(t)
			up := startUpstream(t, g.before(answer))
			p := start(t, conf{store: lines(storeAt(server.Addr)+" {", "timeout 10s", "}"),
				site: lines(dedupBlock("max_response_body 150KB"), proxyTo(up))})
			first := p.postLater("/", "k", "")
			up.awaitRuns(t, "k", 1)
			server.Pause()
			g.open()
			select {
			case <-first.done:
				t.Errorf("the client has its whole answer before that is stored: %d, %v", first.got.Status, first.err)
			case <-time.After(longEnough):
			}
			server.Resume()
			if got := first.reply(t); got.Status >= 300 {
				t.Errorf("got %d %q", got.Status, got.Body)
			}
		})
	}
}

// A retry that follows an answer which freed the key runs, also on a replica that has
// not been told of the run's end and on which somebody still waits for it.
func TestRetryOnAnotherReplicaRuns(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do("ACL", "SETUSER", "default", "-publish") // nobody is told
	g := newGate(t)
	up := startUpstream(t, inTurn(g.before(answersStatus(503)), answers201))
	c := conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))}
	a, b := start(t, c), start(t, c)

	first := a.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	waiter := b.postLater("/", "k", "body")
	b.awaitWaiting(t, 1, waiter)
	g.open()
	failed := first.reply(t)
	wantFresh(t, failed, 503, "run 1 of k")
	wantFresh(t, b.post(t, "/", "k", "body"), 201, "run 2 of k")
	wantReplay(t, waiter.reply(t), failed)
	up.wantRuns(t, "k", 2)
}
