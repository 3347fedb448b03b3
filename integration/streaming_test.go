package integration

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
)

func TestStreamReachesTheClientLiveAndIsKeptWhole(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		g := newGate(t)
		up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, r run) {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprint(w, "data: first\n\n")
			w.(http.Flusher).Flush()
			<-g.opened
			fmt.Fprintf(w, "data: %s\n\n", r.text())
		})
		p := start(t, conf{store: store, site: lines("dedup", proxyTo(up))})

		answer, err := oneShot.Do(p.newPost("/", "k", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		head := make([]byte, len("data: first\n\n"))
		if _, err := io.ReadFull(answer.Body, head); err != nil {
			t.Fatalf("the first event did not come while the stream goes on: %v", err)
		}
		// A duplicate follows the stream from its first byte.
		follower, err := oneShot.Do(p.newPost("/", "k", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer follower.Body.Close()
		if _, err := io.ReadFull(follower.Body, head); err != nil {
			t.Fatalf("the first event did not come to the follower: %v", err)
		}
		g.open()
		rest, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		first := reply{Status: answer.StatusCode, Header: answer.Header, Body: string(head) + string(rest)}
		wantAnswer(t, first, 200, "data: first\n\ndata: run 1 of k\n\n")
		rest, err = io.ReadAll(follower.Body)
		if err != nil {
			t.Fatal(err)
		}
		followed := reply{Status: follower.StatusCode, Header: follower.Header, Body: string(head) + string(rest)}
		for _, got := range []reply{followed, p.post(t, "/", "k", "")} {
			wantReplay(t, got, first)
			if kind := got.Header.Get("Content-Type"); kind != "text/event-stream" {
				t.Errorf("the replay has Content-Type %q", kind)
			}
		}
		up.wantRuns(t, "k", 1)
	})
}

// A stream that breaks off must not look whole, neither to its client nor to a duplicate.
func TestCutStreamEndsCutForItsFollowers(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: first\n\n")
		w.(http.Flusher).Flush()
		<-g.opened
		panic(http.ErrAbortHandler)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	var bodies []io.Reader
	for range 3 {
		answer, err := oneShot.Do(p.newPost("/", "k", ""))
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if _, err := io.ReadFull(answer.Body, make([]byte, len("data: first\n\n"))); err != nil {
			t.Fatalf("the first event did not come while the stream goes on: %v", err)
		}
		bodies = append(bodies, answer.Body)
	}
	up.wantRuns(t, "k", 1)
	g.open()
	for _, body := range bodies {
		if _, err := io.ReadAll(body); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("the stream ended with %v, want it cut", err)
		}
	}
}
