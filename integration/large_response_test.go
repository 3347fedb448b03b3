package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// Tests of responses that are larger than is kept, while duplicates follow them.

const largeSize = 8 << 20 // more than is kept, and than the kernel's buffers take

// awaitCall waits until one of the process's goroutines is in a function.
func (p *caddy) awaitCall(t *testing.T, function string) {
	t.Helper()
	eventually(t, "something is in "+function, func() bool {
		_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
		return strings.Contains(dump, function)
	})
}

// A download that is not kept, and that no client reads any more, ends at the upstream too,
// even while that one sends nothing.
func TestDownloadEndsWithItsLastReader(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]*http.Client{"HTTP1": oneShot, "HTTP2": unencryptedHTTP2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{})
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				answersLarge(2<<20)(w, r, n)
				<-r.Context().Done() // it waits for something
				close(ended)
			})
			p := start(t, conf{store: "store memory", global: h2c, site: lines(dedupBlock("max_response_body 1MiB"), proxyTo(up))})
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			answer, err := client.Do(p.newPost("/", "k", "body", within(ctx)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.CopyN(io.Discard, answer.Body, 2<<20); err != nil {
				t.Fatal(err)
			}
			wantProblem(t, p.post(t, "/", "k", "body"), 409, "response_not_kept")
			leave()
			answer.Body.Close()
			select {
			case <-ended:
			case <-time.After(patience):
				t.Error("the upstream's request goes on")
			}
		})
	}
}

// A duplicate that follows a response gets all of it, even if it outgrows what is kept, and its run's
// client loses its network or hangs up. A later duplicate is refused.
func TestFollowersOfALargeResponseGetAllOfIt(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]func(t *testing.T, p *caddy){
		"the client stays":    func(_ *testing.T, p *caddy) { p.postLater("/", "k", "body") },
		"the client stalls":   func(t *testing.T, p *caddy) { stalled(t, p, "k") },
		"the client hangs up": func(t *testing.T, p *caddy) { _ = stalled(t, p, "k").Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
				fmt.Fprint(w, "begun:")
				w.(http.Flusher).Flush()
				<-g.opened
				answersLarge(largeSize)(w, r, n)
			})
			p := start(t, conf{store: "store file", site: lines(dedupBlock("max_response_body 1MiB"), proxyTo(up))})
			begin(t, p)
			up.awaitRuns(t, "k", 1)
			var all sync.WaitGroup
			for range 3 {
				answer, err := oneShot.Do(p.newPost("/", "k", "body"))
				if err != nil {
					t.Fatal(err)
				}
				defer answer.Body.Close()
				head := make([]byte, len("begun:"))
				if _, err := io.ReadFull(answer.Body, head); err != nil || string(head) != "begun:" {
					t.Fatalf("the stream begins with %q, %v", head, err)
				}
				all.Go(func() {
					if n, err := io.Copy(io.Discard, answer.Body); err != nil || n != largeSize {
						t.Errorf("a follower got %d of %d bytes more, %v", n, largeSize, err)
					}
				})
			}
			g.open()
			all.Wait()
			if name == "the client stays" { // and no duplicate follows any more
				wantProblem(t, p.post(t, "/", "k", "body"), 409, "response_not_kept")
			}
			up.wantRuns(t, "k", 1)
		})
	}
}

// What waits for room to be replayed does not run when its response cannot be read by then, even
// where requests pass without a store: its body was read off meanwhile. From a local copy it can be
// read.
func TestWaitingReplayNeverRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		copies string
		lose   func(t *testing.T, p *caddy, server *redistest.Server, key string)
	}{
		"the store is away":            {"local_copies off", func(_ *testing.T, _ *caddy, server *redistest.Server, _ string) { server.Stop() }},
		"the store is away, with copy": {"local_copies 64MiB", func(_ *testing.T, _ *caddy, server *redistest.Server, _ string) { server.Stop() }},
		"the key is forgotten":         {"local_copies off", func(t *testing.T, p *caddy, _ *redistest.Server, key string) { p.operator(t, "DELETE", key, 204) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			up := startUpstream(t, answersLarge(largeSize))
			p := start(t, conf{store: storeAt(server.Addr) + " {\ntimeout 2s\n}", dedup: lines(limits("buffered 9500KiB"), c.copies),
				site: lines(keyHeader, dedupBlock("on_store_error pass", "max_response_body 16MiB"), proxyTo(up))})
			first := p.post(t, "/", "k", "body")
			p.post(t, "/", "other", "body")
			holding := stalled(t, p, "other")
			p.awaitCall(t, "recording.(*Writer).Send(")
			slowly(holding) // one that stalls is disconnected
			waiting := p.postLater("/", "k", "body")
			p.awaitCall(t, "(*Allowance).TakeReplay(")
			c.lose(t, p, server, first.Header.Get("X-Key"))
			holding.Close()
			got := waiting.reply(t)
			up.wantRuns(t, "k", 1)
			if c.copies != "local_copies off" {
				wantReplay(t, got, first)
				return
			}
			wantProblem(t, got, 503, "store_unavailable")
			wantRetryAfter(t, got)
		})
	}
}
