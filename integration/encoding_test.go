package integration

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// unzipped is the body of an answer as its client reads it.
func unzipped(t *testing.T, got reply) string {
	t.Helper()
	if got.Header.Get("Content-Encoding") != "gzip" {
		t.Fatalf("the answer has Content-Encoding %q, want gzip", got.Header.Get("Content-Encoding"))
	}
	z, err := gzip.NewReader(strings.NewReader(got.Body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestReplayCanBeReadByEveryClient(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Vary", "Accept-Encoding")
		switch accept := r.Header.Get("Accept-Encoding"); {
		case strings.Contains(accept, "br"):
			w.Header().Set("Content-Encoding", "br")
			fmt.Fprint(w, "not readable without br")
		case strings.Contains(accept, "gzip"):
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			fmt.Fprint(z, n.text())
			z.Close()
		default:
			fmt.Fprint(w, n.text())
		}
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})

	first := p.post(t, "/", "k", "", header("Accept-Encoding", "br, gzip"))
	wantFresh(t, first, 200, "run 1 of k")
	if encoding := first.Header.Get("Content-Encoding"); encoding != "" {
		t.Errorf("the first answer has Content-Encoding %q", encoding)
	}
	if got := up.nth(t, "k", 1).Header.Get("Accept-Encoding"); strings.Contains(got, "br") {
		t.Errorf("the upstream got the client's Accept-Encoding: %q", got)
	}
	for _, accept := range []string{"", "gzip", "br", "identity"} {
		second := p.post(t, "/", "k", "", header("Accept-Encoding", accept))
		wantReplay(t, second, first)
		if encoding := second.Header.Get("Content-Encoding"); encoding != "" {
			t.Errorf("the replay has Content-Encoding %q", encoding)
		}
	}
	// What is not deduplicated keeps its encodings.
	p.post(t, "/", "", "", header("Accept-Encoding", "br"))
	if got := up.nth(t, "", 1).Header.Get("Accept-Encoding"); got != "br" {
		t.Errorf("a request without key reached the upstream with Accept-Encoding %q, want br", got)
	}
}

func TestEncodeInFrontServesEachClient(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, n run) {
		w.Header().Set("Content-Type", "text/plain")
		fmt.Fprint(w, n.text(), strings.Repeat(" and on", 1000))
	})
	p := start(t, conf{store: "store memory", site: lines("encode gzip", "dedup", proxyTo(up))})
	want := "run 1 of k" + strings.Repeat(" and on", 1000)

	first := p.post(t, "/", "k", "", header("Accept-Encoding", "gzip"))
	if unzipped(t, first) != want || first.replayed() {
		t.Errorf("the first answer is wrong: %d, replayed: %v", first.Status, first.replayed())
	}
	plain := p.post(t, "/", "k", "")
	wantAnswer(t, plain, 200, want)
	if encoding := plain.Header.Get("Content-Encoding"); encoding != "" {
		t.Errorf("a client that asked for none got Content-Encoding %q", encoding)
	}
	again := p.post(t, "/", "k", "", header("Accept-Encoding", "gzip"))
	if unzipped(t, again) != want || !again.replayed() || !plain.replayed() {
		t.Errorf("the replays are wrong: replayed %v and %v", again.replayed(), plain.replayed())
	}
	up.wantRuns(t, "k", 1)
}
