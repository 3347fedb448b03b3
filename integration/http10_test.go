package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// Clients that speak HTTP/1.0, as nginx does in front of its upstreams unless it is told
// otherwise.

// post10 sends a POST over HTTP/1.0, and returns what comes back.
func post10(t *testing.T, p *caddy, key string) *bufio.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", p.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := fmt.Fprintf(conn, "POST / HTTP/1.0\r\nHost: %s\r\nIdempotency-Key: %s\r\nContent-Length: 4\r\n\r\nbody", p.addr, key); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(conn)
}

// A body without a length ends with its connection there. One that was cut off must not end
// like one that is whole.
func TestResponseThatWasCutDoesNotEndWholeOverHTTP10(t *testing.T) {
	t.Parallel()
	for name, begin := range map[string]string{
		"a stream":                           "begun",
		"a body that is larger than is kept": strings.Repeat("x", 200<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
				fmt.Fprint(w, begin)
				w.(http.Flusher).Flush()
				<-g.opened
				panic(http.ErrAbortHandler)
			})
			p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_response_body 100KiB"), proxyTo(up))})
			clients := map[string]*bufio.Reader{"the client of the run": post10(t, p, "k")}
			up.awaitRuns(t, "k", 1)
			if len(begin) < 100<<10 {
				clients["a duplicate that follows it"] = post10(t, p, "k")
			}
			for who, client := range clients {
				answer, err := http.ReadResponse(client, nil)
				if err != nil {
					t.Fatalf("%s: %v", who, err)
				}
				t.Cleanup(func() { answer.Body.Close() })
				if _, err := io.ReadFull(answer.Body, make([]byte, len(begin))); err != nil {
					t.Fatalf("%s: %v", who, err)
				}
			}
			g.open()
			for who, client := range clients {
				if _, err := io.ReadAll(client); err == nil {
					t.Errorf("what %s gets ends whole", who)
				}
			}
			up.wantRuns(t, "k", 1)
		})
	}
}

// RFC 9110, section 15.2: a server must not send a 1xx response to an HTTP/1.0 client, which
// takes it for the answer.
func TestNoInformationalResponseOverHTTP10(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	for _, of := range []string{"run", "replay"} {
		answer, err := http.ReadResponse(post10(t, p, "k"), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusCreated || string(body) != "run 1 of k" || err != nil {
			t.Errorf("the client of the %s got %s with %q, %v", of, answer.Status, body, err)
		}
	}
	up.wantRuns(t, "k", 1)
}
