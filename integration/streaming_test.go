package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"testing"
)

func TestEarlyHintsPassAndAreNotKept(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Link")
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})

	hints := func(seen *[]int) option {
		return func(r *http.Request) {
			*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
				Got1xxResponse: func(code int, _ textproto.MIMEHeader) error { *seen = append(*seen, code); return nil },
			}))
		}
	}
	var onFirst, onSecond []int
	first := p.post(t, "/", "k", "", hints(&onFirst))
	wantFresh(t, first, 201, "run 1 of k")
	if len(onFirst) != 1 || onFirst[0] != 103 {
		t.Errorf("the first client saw %v before its answer, want 103", onFirst)
	}
	second := p.post(t, "/", "k", "", hints(&onSecond))
	wantReplay(t, second, first)
	if len(onSecond) > 0 || second.Header.Get("Link") != "" {
		t.Errorf("the replay brought %v and Link %q", onSecond, second.Header.Get("Link"))
	}
}

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

func TestOversizeResponseIsNeverRunAgain(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("x", 100_000)
	shapes := map[string]answering{
		"known length": func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.Header().Set("Content-Type", "text/csv")
			w.Header().Set("X-Total", "7")
			w.Header().Set("Content-Length", fmt.Sprint(len(large)))
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, large)
		},
		"streamed": func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.Header().Set("Content-Type", "text/csv")
			w.Header().Set("X-Total", "7")
			w.WriteHeader(http.StatusAccepted)
			fmt.Fprint(w, large[:1000])
			w.(http.Flusher).Flush()
			fmt.Fprint(w, large[1000:])
		},
	}
	for name, answer := range shapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachStore(t, func(t *testing.T, store string) {
				up := startUpstream(t, answer)
				p := start(t, conf{store: store, site: lines(
					"handle /hook {", dedupBlock("mode webhook", "max_response_body 64KiB"), proxyTo(up), "}",
					"handle {", dedupBlock("max_response_body 64KiB"), proxyTo(up), "}")})

				first := p.post(t, "/", "k", "")
				wantFresh(t, first, 202, large)
				for range 2 {
					refused := wantProblem(t, p.post(t, "/", "k", ""), 409, "response_not_kept")
					if refused.ExecutionID != first.executionID() {
						t.Errorf("the refusal names execution %q, the first was %q", refused.ExecutionID, first.executionID())
					}
				}
				up.wantRuns(t, "k", 1)

				first = p.post(t, "/hook", "hook", "")
				wantFresh(t, first, 202, large)
				second := p.post(t, "/hook", "hook", "")
				first.Body = ""
				wantReplay(t, second, first)
				if kind := second.Header.Get("Content-Type"); kind != "" {
					t.Errorf("the answer without body has Content-Type %q", kind)
				}
				if second.Header.Get("X-Total") != "7" {
					t.Error("the answer without body lost its headers")
				}
				up.wantRuns(t, "hook", 1)
			})
		})
	}
}

func TestResponseOfExactlyTheLimitIsKept(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) { fmt.Fprint(w, strings.Repeat("x", 1024)) })
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_response_body 1KiB"), proxyTo(up))})
	first := p.post(t, "/", "k", "")
	wantReplay(t, p.post(t, "/", "k", ""), first)
}

// A request without a key keeps its offer of another protocol, and its connection.
func TestUpgradeWithoutAKeyPasses(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close()
		fmt.Fprint(buf, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		buf.Flush()
		line, _ := buf.ReadString('\n')
		fmt.Fprint(buf, "echo "+line)
		buf.Flush()
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})

	ask := func() net.Conn {
		conn, err := net.Dial("tcp", p.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\nContent-Length: 0\r\n\r\n", p.addr)
		return conn
	}
	wantEcho := func(conn net.Conn) {
		t.Helper()
		in := bufio.NewReader(conn)
		answer, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("got %d, want 101", answer.StatusCode)
		}
		fmt.Fprint(conn, "hello\n")
		if line, err := in.ReadString('\n'); line != "echo hello\n" {
			t.Errorf("got %q, %v over the upgraded connection", line, err)
		}
	}
	first, second := ask(), ask()
	wantEcho(second)
	wantEcho(first)
	up.wantRuns(t, "", 2)
}

// A call of gRPC has no key. It is of HTTP/2, and neither HTTP/1.1 nor gRPC-Web is it.
func TestGRPCHasNoKey(t *testing.T) {
	t.Parallel()
	for name, client := range map[string]*http.Client{"HTTP/1.1": oneShot, "HTTP/2": unencryptedHTTP2()} {
		for kind, isCall := range map[string]bool{
			"application/grpc": true, "application/grpc+proto": true, "Application/GRPC; x=y": true, "application/grpc-web": false, "application/grpcx": false,
		} {
			t.Run(name+" "+kind, func(t *testing.T) {
				t.Parallel()
				up := startUpstream(t, answers201)
				p := start(t, conf{store: "store memory", global: "servers {\nprotocols h1 h2c\n}", site: lines("dedup", proxyTo(up))})
				want := 1
				if isCall && name == "HTTP/2" {
					want = 2
				}
				for range 2 {
					if got, err := try(client, p.newPost("/", "k", "", header("Content-Type", kind))); err != nil || got.Status != 201 {
						t.Errorf("got %d, %v", got.Status, err)
					}
				}
				up.wantRuns(t, "k", want)
			})
		}
	}
}
