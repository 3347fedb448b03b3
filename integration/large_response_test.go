package integration

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// Tests of responses that are larger than is kept, while duplicates follow them.

const largeSize = 8 << 20 // more than is kept, and than the kernel's buffers take

// begunLarge is an upstream that begins a stream, and goes on with a body that is larger
// than is kept when the gate opens.
func begunLarge(t *testing.T, g *gate) *upstream {
	return startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		fmt.Fprint(w, "begun:")
		w.(http.Flusher).Flush()
		<-g.opened
		answersLarge(largeSize)(w, r, n)
	})
}

// following sends a duplicate, and returns its answer when it has begun to come.
func following(t *testing.T, p *caddy, key string) io.ReadCloser {
	t.Helper()
	answer, err := oneShot.Do(p.newPost("/", key, "body"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	begin := make([]byte, len("begun:"))
	if _, err := io.ReadFull(answer.Body, begin); err != nil || string(begin) != "begun:" {
		t.Fatalf("the stream begins with %q, %v", begin, err)
	}
	return answer.Body
}

func wantRest(t *testing.T, who string, body io.Reader) {
	t.Helper()
	n, err := io.Copy(io.Discard, body)
	if err != nil || n != largeSize {
		t.Errorf("%s got %d of %d bytes more, %v", who, n, largeSize, err)
	}
}

// awaitCall waits until one of the process's goroutines is in a function.
func (p *caddy) awaitCall(t *testing.T, function string) {
	t.Helper()
	eventually(t, "something is in "+function, func() bool {
		_, dump := p.askAdmin(t, "GET", "/debug/pprof/goroutine?debug=2", "", "")
		return strings.Contains(dump, function)
	})
}

// Who has begun to follow a response gets all of it, even if it turns out to be larger
// than is kept. Who comes after that is told so.
func TestFollowersOfALargeResponseGetAllOfIt(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := begunLarge(t, g)
	p := start(t, conf{store: "store file", site: lines(dedupBlock("max_response_body 1MiB"), proxyTo(up))})
	all := []io.Reader{following(t, p, "k"), following(t, p, "k"), following(t, p, "k")}
	g.open()
	done := make(chan struct{})
	for n, body := range all {
		go func() {
			wantRest(t, fmt.Sprint("reader ", n), body)
			done <- struct{}{}
		}()
	}
	for range all {
		<-done
	}
	wantProblem(t, p.post(t, "/", "k", "body"), 409, "response_not_kept")
	up.wantRuns(t, "k", 1)
}

// Who waited for a failure that was too large to keep is told that a retry runs: as one of a
// request that was executed for good, the refusal would end the client's retries.
func TestLargeAnswerThatFreesTheKeySaysSo(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		g := newGate(t)
		large := func(w http.ResponseWriter, r *http.Request, n run) {
			w.Header().Set("Content-Length", "8192")
			w.WriteHeader(500)
			answersLarge(8192)(w, r, n)
		}
		up := startUpstream(t, g.before(inTurn(large, answers201)))
		p := start(t, conf{store: store, site: lines(dedupBlock("max_response_body 4KiB", "wait 1m"), proxyTo(up))})
		first := p.postLater("/", "k", "body")
		up.awaitRuns(t, "k", 1)
		waiting := p.postLater("/", "k", "body")
		p.awaitWaiting(t, 1, waiting)
		g.open()
		if got := first.reply(t); got.Status != 500 || len(got.Body) != 8192 {
			t.Errorf("the run's client got %d with %d bytes", got.Status, len(got.Body))
		}
		said := wantProblem(t, waiting.reply(t), 409, "response_not_kept")
		if !strings.Contains(said.Detail, "answered with 500") || !strings.Contains(said.Detail, "released the key") {
			t.Errorf("the detail is %q", said.Detail)
		}
		wantFresh(t, p.post(t, "/", "k", "body"), 201, "run 2 of k")
	})
}

// A stream may pause for longer than its client may take nothing: it is the upstream
// that says nothing.
func TestPauseOfAStreamIsNotItsClients(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]*http.Client{"HTTP1": oneShot, "HTTP2": unencryptedHTTP2()} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
				for n := range 2 {
					fmt.Fprintf(w, "part %d\n", n)
					w.(http.Flusher).Flush()
					time.Sleep(2 * time.Second) // twice client_idle
				}
				fmt.Fprint(w, "end\n")
			})
			p := start(t, conf{store: "store memory", dedup: limits("client_idle 1s"), global: "servers {\nprotocols h1 h2c\n}", site: lines(dedupBlock("max_response_body 1MiB"), proxyTo(up))})
			first := sendLater(client, p.newPost("/", "k", ""))
			up.awaitRuns(t, "k", 1)
			second := sendLater(client, p.newPost("/", "k", ""))
			for _, w := range []*pending{first, second} {
				if got := w.reply(t); got.Body != "part 0\npart 1\nend\n" {
					t.Errorf("got %q", got.Body)
				}
			}
			up.wantRuns(t, "k", 1)
		})
	}
}

// What is known to have been executed does not pass when its response cannot be read,
// even where requests pass without a store. From a local copy it can be read.
func TestWaitingReplayNeverRuns(t *testing.T) {
	t.Parallel()
	for _, copies := range []string{"local_copies off", "local_copies 64MiB"} {
		t.Run(copies, func(t *testing.T) {
			t.Parallel()
			waitingReplay(t, copies)
		})
	}
}

// A request whose response is gone when its turn comes has no body any more, which was read
// off while it waited. So it does not run: its client sends it again.
func TestWaitingReplayWhoseKeyIsForgotten(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answersLarge(largeSize))
	p := start(t, conf{store: "store file", dedup: lines(limits("buffered 9500KiB"), "local_copies off"),
		site: lines(keyHeader, dedupBlock("on_store_error pass", "max_response_body 16MiB"), proxyTo(up))})
	key := p.post(t, "/", "k", "body").Header.Get("X-Key")
	holding := stalled(t, p, "k")
	p.awaitCall(t, "recording.(*Writer).Send(")
	slowly(holding) // one that stalls is disconnected
	waiting := p.postLater("/", "k", "body")
	p.awaitCall(t, "(*Allowance).TakeReplay(")
	p.operator(t, "DELETE", key, 204)
	holding.Close()
	got := waiting.reply(t)
	wantProblem(t, got, 503, "store_unavailable")
	wantRetryAfter(t, got)
	up.wantRuns(t, "k", 1)
	if got := p.post(t, "/", "k", "body"); got.Status != 200 {
		t.Errorf("sent again, it gets %d", got.Status)
	}
	if again := up.nth(t, "k", 2); again.Body != "body" {
		t.Errorf("sent again, it ran with the body %q", again.Body)
	}
}

func waitingReplay(t *testing.T, copies string) {
	t.Helper()
	server := redistest.Start(t)
	up := startUpstream(t, answersLarge(largeSize))
	site := lines(dedupBlock("on_store_error pass", "max_response_body 16MiB"), proxyTo(up))
	p := start(t, conf{store: storeAt(server.Addr) + " {\ntimeout 2s\n}", dedup: lines(limits("buffered 9500KiB"), copies), site: site})
	first := p.post(t, "/", "k", "body")
	p.post(t, "/", "other", "body")
	holding := stalled(t, p, "other")
	p.awaitCall(t, "recording.(*Writer).Send(")
	slowly(holding) // one that stalls is disconnected
	waiting := p.postLater("/", "k", "body")
	p.awaitCall(t, "(*Allowance).TakeReplay(")
	server.Stop()
	holding.Close()
	got := waiting.reply(t)
	up.wantRuns(t, "k", 1)
	if copies != "local_copies off" {
		wantReplay(t, got, first)
		return
	}
	wantProblem(t, got, 503, "store_unavailable")
	if got.executionID() == "" {
		t.Error("the refusal does not name the execution")
	}
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
			p := start(t, conf{store: "store memory", global: "servers {\nprotocols h1 h2c\n}", site: lines(dedupBlock("max_response_body 1MiB"), proxyTo(up))})
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

// The client that began the run loses its network, or hangs up: who follows gets all.
func TestFollowerOfALargeResponseGoesOnAlone(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, p *caddy){
		"stalls":  func(t *testing.T, p *caddy) { stalled(t, p, "k") },
		"hang up": func(t *testing.T, p *caddy) { _ = stalled(t, p, "k").Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			up := begunLarge(t, g)
			p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_response_body 1MiB"), proxyTo(up))})
			lose(t, p)
			up.awaitRuns(t, "k", 1)
			body := following(t, p, "k")
			g.open()
			wantRest(t, "the follower", body)
			up.wantRuns(t, "k", 1)
		})
	}
}
