package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// Of which type an answer is that names none is decided by the handlers in front, and then by the server, as it is
// without dedup. A duplicate gets the same.
func TestTypeOfAnAnswerThatNamesNone(t *testing.T) {
	html := func(w http.ResponseWriter) { _, _ = io.WriteString(w, "<html>") }
	for shape, answer := range map[string]func(http.ResponseWriter){
		"whole": html,
		"empty": func(http.ResponseWriter) {},
		"streamed": func(w http.ResponseWriter) {
			_ = http.NewResponseController(w).Flush()
			html(w)
		},
		"too large to be kept": func(w http.ResponseWriter) {
			w.Header().Set("Content-Length", fmt.Sprint(2<<20)) // else the proxy may send its header first
			_, _ = io.WriteString(w, strings.Repeat("x", 2<<20))
		},
		"encoded": func(w http.ResponseWriter) {
			w.Header().Set("Content-Encoding", "unknown")
			html(w)
		},
	} {
		address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header()["Content-Type"] = nil
			answer(w)
		})
		for front, line := range map[string]string{
			"nothing": "", "a type for none": "header ?Content-Type application/json", "an encoder": "encode gzip {\nminimum_length 1\n}",
		} {
			s := serve(t, line, "@keyed not header X-Plain *", "dedup @keyed {", "max_response_body 1MiB", "}", "reverse_proxy "+address)
			want := s.mustPost("k", "body", "X-Plain", "1").header["Content-Type"]
			for n := range 2 {
				got := s.mustPost("k", "body")
				if n == 0 && shape == "streamed" { // it is up to the proxy, as below
					want = got.header["Content-Type"]
				}
				if got.status != 409 && !slices.Equal(got.header["Content-Type"], want) {
					t.Errorf("%s behind %s is of type %q, without dedup of %q", shape, front, got.header["Content-Type"], want)
				}
			}
			s.stop()
		}
	}
}

// So it is where a duplicate follows a stream. Whether the server guesses the type for its first client is up to the
// proxy: it flushes the header, or the first bytes with it.
func TestTypeOfAStreamThatNamesNone(t *testing.T) {
	goOn := make(chan struct{})
	address, _ := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
		_ = http.NewResponseController(w).Flush()
		<-goOn
	})
	s := serve(t, "dedup", "reverse_proxy "+address)
	defer close(goOn)
	for n := range 8 {
		var kinds [2][]string
		for i := range kinds {
			got, err := oneRequest.Do(s.outgoing(keyedBy(fmt.Sprint(n), "body")))
			if err != nil {
				t.Fatal(err)
			}
			defer got.Body.Close()
			kinds[i] = got.Header["Content-Type"]
		}
		if !slices.Equal(kinds[0], kinds[1]) {
			t.Errorf("for its first client the stream is of type %q, and for one that follows it of %q", kinds[0], kinds[1])
		}
	}
}
