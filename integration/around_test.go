package integration

import (
	"fmt"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// A handler in front that replaces parts of a field must not reach the kept
// response, nor another duplicate's.
func TestReplaysBehindAReplacingHeader(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("X-Rep", "a")
		answers201(w, r, n)
	}))
	p := start(t, conf{store: "store memory", site: lines("header >X-Rep a aa", "dedup", proxyTo(up))})
	all := p.postMany(20, "/", "k", "body")
	up.awaitRuns(t, "k", 1)
	g.open()
	got := replies(t, all)
	for range 3 {
		got = append(got, p.post(t, "/", "k", "body"))
	}
	for _, reply := range got {
		if value := reply.Header.Get("X-Rep"); value != "aa" {
			t.Fatalf("a client got X-Rep %q, want aa", value)
		}
	}
	up.wantRuns(t, "k", 1)
}

// Of which type an answer is that names none is the affair of the handlers in front, and then of
// the server, as it is without dedup. A duplicate gets the same.
func TestTypeOfAnAnswerThatNamesNone(t *testing.T) {
	t.Parallel()
	untyped := answersStatus(201)
	const large = "larger than is kept"
	for shape, answer := range map[string]answering{
		"whole": untyped,
		"empty": func(http.ResponseWriter, *http.Request, run) {},
		"streamed": func(w http.ResponseWriter, _ *http.Request, n run) {
			_ = http.NewResponseController(w).Flush()
			fmt.Fprint(w, n.text())
		},
		large: func(w http.ResponseWriter, _ *http.Request, _ run) {
			w.Header().Set("Content-Length", fmt.Sprint(2<<20)) // else the proxy may send its header first
			fmt.Fprint(w, strings.Repeat("x", 2<<20))
		},
		"encoded": func(w http.ResponseWriter, r *http.Request, n run) {
			w.Header().Set("Content-Encoding", "unknown")
			untyped(w, r, n)
		},
	} {
		up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
			w.Header()["Content-Type"] = nil
			answer(w, r, n)
		})
		for front, line := range map[string]string{
			"nothing":         "",
			"a type for none": "header ?Content-Type application/json",
			"an encoder":      "encode gzip {\nminimum_length 1\n}",
		} {
			p := start(t, conf{store: "store memory", site: lines("handle /plain {", line, proxyTo(up), "}", "handle {", line, "dedup {\nmax_response_body 1MiB\n}", proxyTo(up), "}")})
			want := p.post(t, "/plain", "k", "body").Header["Content-Type"]
			for range 2 {
				got := p.post(t, "/", front, "body")
				if got.Status == 409 && shape == large {
					continue // a duplicate
				}
				if got := got.Header["Content-Type"]; !slices.Equal(got, want) {
					t.Errorf("%s behind %s is of type %q, without dedup of %q", shape, front, got, want)
				}
			}
		}
	}
}

// So it is where a duplicate follows a stream that names no type. Whether the server guesses that
// of its first client is up to the proxy: it flushes the header, or the first bytes with it.
func TestTypeOfAStreamThatNamesNone(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ run) {
		w.Header()["Content-Type"] = nil
		fmt.Fprint(w, "<html>")
		_ = http.NewResponseController(w).Flush()
		<-g.opened
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	for n := range 8 {
		var kinds [2][]string
		for i := range kinds {
			got, err := oneShot.Do(p.newPost("/", fmt.Sprint("k", n), "body"))
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
	g.open()
}

// A store that hangs must not keep a process from stopping when nothing runs.
func TestStopsWhileTheStoreHangs(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup", proxyTo(up))})
	wantFresh(t, p.post(t, "/", "first", ""), 201, "run 1 of first")
	server.Pause()
	wantProblem(t, p.post(t, "/", "k", ""), 503, "store_unavailable")
	p.terminate(t)
	if code := p.awaitExit(t); code != 0 {
		t.Errorf("it ended with %d", code)
	}
	server.Resume()
	up.wantRuns(t, "k", 0)
}

// An empty list of the JSON form is the default, as for every other list.
func TestEmptyScopeKeepsCallersApart(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	dir, port := shortTempDir(t), freeport.Of(t)
	config := fmt.Sprintf(`{
		"admin": {"disabled": true},
		"apps": {
			"dedup": {"store": {"store": "memory"}},
			"http": {"servers": {"s": {"listen": ["127.0.0.1:%d"], "routes": [{"handle": [
				{"handler": "dedup", "scope": [], "methods": [], "release_on": [], "keys": [], "keep_header": []},
				{"handler": "reverse_proxy", "upstreams": [{"dial": %q}]}
			]}]}}}
		}
	}`, port, up.addr)
	p := startJSON(t, dir, port, config)
	first := p.post(t, "/", "k", "body", header("Authorization", "alice"))
	wantFresh(t, first, 201, "run 1 of k")
	wantFresh(t, p.post(t, "/", "k", "body", header("Authorization", "carol")), 201, "run 2 of k")
	wantReplay(t, p.post(t, "/", "k", "body", header("Authorization", "alice")), first)
}

// What an upstream answers to a run under our prefix never reaches a client.
func TestUpstreamsCannotSetOurHeaders(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Dedup-Retention", "60")
		w.Header().Set("Dedup-Execution-Id", "its own")
		w.Header().Set("Dedup-Anything", "its own")
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	first := p.post(t, "/", "k", "body")
	for name, reply := range map[string]reply{"run": first, "replay": p.post(t, "/", "k", "body")} {
		ids := reply.Header["Dedup-Execution-Id"]
		if len(ids) != 1 || ids[0] == "its own" || ids[0] != first.executionID() {
			t.Errorf("%s: the client got the execution IDs %q", name, ids)
		}
		for _, field := range []string{"Dedup-Retention", "Dedup-Anything"} {
			if v, ok := reply.Header[field]; ok {
				t.Errorf("%s: the client got %s %q", name, field, v)
			}
		}
	}
}

// Nor does it in what comes before the answer.
func TestUpstreamsCannotSetOurHeadersInEarlyHints(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n run) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.Header().Set("Dedup-Retention", "60")
		w.Header().Set("Dedup-Execution-Id", "its own")
		w.WriteHeader(http.StatusEarlyHints)
		clear(w.Header())
		answers201(w, r, n)
	})
	p := start(t, conf{store: "store memory", site: lines("dedup", proxyTo(up))})
	var hinted textproto.MIMEHeader
	answer := p.post(t, "/", "k", "body", func(r *http.Request) {
		*r = *r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(_ int, header textproto.MIMEHeader) error { hinted = header; return nil },
		}))
	})
	if hinted.Get("Link") == "" || hinted.Get("Dedup-Retention") != "" {
		t.Errorf("the hints are %v", hinted)
	}
	if ids := hinted["Dedup-Execution-Id"]; len(ids) != 1 || ids[0] != answer.executionID() {
		t.Errorf("the hints name the executions %q, the answer %s", ids, answer.executionID())
	}
}

// A response handler that makes nothing of the upstream's answer leaves the server's empty 200,
// also for duplicates: what was executed does not run again.
func TestUpstreamAnswerThatNobodyWrites(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("on_unknown hold"),
		"reverse_proxy "+up.addr+" {", "handle_response {", "vars seen true", "}", "}")})
	for n := 1; n <= 2; n++ {
		if got := p.post(t, "/", "k", "body"); got.Status != 200 || got.Body != "" || got.replayed() != (n == 2) {
			t.Errorf("request %d got %d %q %v", n, got.Status, got.Body, got.Header)
		}
	}
	up.wantRuns(t, "k", 1)
}

// A body that is declared to be too large is refused before the client is told
// to send it.
func TestDeclaredBodyOverTheLimitIsRefusedUnread(t *testing.T) {
	t.Parallel()
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_request_body 1KiB"), proxyTo(up))})
	got := p.sendRaw(t, []byte(strings.Join([]string{
		"POST / HTTP/1.1", "Host: x", "Idempotency-Key: k", "Content-Length: 2000000", "Expect: 100-continue", "", "",
	}, "\r\n")))
	wantProblem(t, got, 413, "request_too_large")
}
