package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// tokens answers with events: half of them at once, the rest when the gate is open.
func tokens(g *gate) answering {
	return func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 20 {
			if i == 10 {
				<-g.opened
			}
			fmt.Fprintf(w, "data: %d of run %d\n\n", i, n.N)
			w.(http.Flusher).Flush()
		}
	}
}

// readHalf reads the events up to the gate.
func readHalf(t *testing.T, body io.Reader) string {
	t.Helper()
	var got string
	lines := bufio.NewReaderSize(body, 16)
	for range 20 {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("after %q: %v", got, err)
		}
		got += line
	}
	return got
}

func TestRecipeCompletionStreamIsResumed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, tokens(g))
	r := readRecipe(t, "completion-stream.md").before(t, up).on(t, server.Addr)
	a, b := r.start(t), r.start(t)

	wantProblem(t, a.post(t, "/", "", "prompt"), 400, "idempotency_key_missing")
	// The client loses its connection in the middle.
	broken, err := oneShot.Do(a.newPost("/", "k", "prompt"))
	if err != nil {
		t.Fatal(err)
	}
	half := readHalf(t, broken.Body)
	broken.Body.Close()
	// It comes back, and gets the same events while the model still writes.
	again, err := oneShot.Do(a.newPost("/", "k", "prompt"))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Body.Close()
	if again.Header.Get("Idempotent-Replayed") != "true" || again.Header.Get("Content-Type") != "text/event-stream" {
		t.Errorf("the stream that is resumed has the header %v", again.Header)
	}
	if got := readHalf(t, again.Body); got != half {
		t.Errorf("resumed with %q, want %q", got, half)
	}
	// Another replica waits for the end.
	elsewhere := b.postLater("/", "k", "prompt")
	g.open()
	if _, err := io.Copy(io.Discard, again.Body); err != nil {
		t.Errorf("the stream that was resumed ended with %v", err)
	}
	whole := elsewhere.reply(t)
	if whole.Status != 200 || len(whole.Body) <= 2*len(half)-1 || whole.Body[:len(half)] != half || !whole.replayed() {
		t.Errorf("the other replica answered %d %q", whole.Status, whole.Body)
	}
	for _, p := range []*caddy{a, b} {
		wantReplay(t, p.post(t, "/", "k", "prompt"), whole)
	}
	up.wantRuns(t, "k", 1)
}

func TestRecipeCompletionStreamIsCut(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		if f := w.(http.Flusher); n.N == 1 {
			fmt.Fprint(w, "data: begun\n\n")
			f.Flush()
		}
		<-g.opened
		panic(http.ErrAbortHandler)
	})
	p := readRecipe(t, "completion-stream.md").before(t, up).on(t, server.Addr).start(t)
	stream, err := oneShot.Do(p.newPost("/", "k", "prompt"))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Body.Close()
	g.open()
	if _, err := io.ReadAll(stream.Body); err == nil {
		t.Error("the cut stream ended as if it were whole")
	}
	wantProblem(t, p.post(t, "/", "k", "prompt"), 409, "outcome_unknown")
	up.wantRuns(t, "k", 1)
}
