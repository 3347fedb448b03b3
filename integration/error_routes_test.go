package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// An error route of the user's own may be a proxy, and it may fail. It gets a GET of what was
// refused, and its status is not the client's.
func TestErrorRouteThatIsAProxy(t *testing.T) {
	t.Parallel()
	for name, status := range map[string]int{"answers": http.StatusTeapot, "answers with a success": 200, "answers with nothing": 0, "fails": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGate(t)
			runs := g.before(answers201)
			up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, this run) {
				switch {
				case !strings.HasPrefix(r.URL.Path, "/page/"):
					runs(w, r, this)
				case status > 0:
					w.Header().Set("Content-Type", "text/html")
					w.WriteHeader(status)
					fmt.Fprint(w, "page for ", r.URL.Path)
				case status < 0:
					panic(http.ErrAbortHandler)
				}
			})
			site := func(path string, lines_ ...string) string {
				return lines("handle "+path+" {", dedupBlock(lines_...), proxyTo(up), "}")
			}
			p := start(t, conf{store: "store memory", site: lines(
				site("/pay", "wait off", "max_request_body 1KiB"), site("/must", "on_missing reject"), site("/wait"),
				"handle_errors {", "rewrite * /page/{err.status_code}", proxyTo(up), "}")})
			first, waited := p.postLater("/pay", "k", "body"), p.postLater("/wait", "w", "")
			up.awaitRuns(t, "k", 1)
			up.awaitRuns(t, "w", 1)
			refused := func(path, key, body string, refusal int, code string) {
				t.Helper()
				before := len(up.all())
				got := p.post(t, path, key, body, header("If-Match", `"v3"`), header("Range", "bytes=0-1"))
				page := fmt.Sprint("/page/", refusal)
				switch {
				case status > 0: // it is that of the page alone
					wantAnswer(t, got, refusal, "page for "+page)
				default:
					wantProblem(t, got, refusal, code)
				}
				for _, seen := range up.all()[before:] {
					if seen.Header.Get("If-Match") != "" || seen.Header.Get("Range") != "" {
						t.Errorf("%s: the page is asked for with %v", code, seen.Header)
					}
					if seen.URI != page || seen.Method != http.MethodGet || seen.Body != "" {
						t.Errorf("%s %s: the upstream has seen %s %s with the body %q", code, body, seen.Method, seen.URI, seen.Body)
					}
				}
				if n := len(up.all()) - before; n != 1 {
					t.Errorf("%s %q: the upstream has seen %d requests, want that for the page", code, body, n)
				}
			}
			for _, body := range []string{"", "body"} {
				refused("/must", "", body, 400, "idempotency_key_missing")
			}
			refused("/pay", "k", "body", 409, "request_in_flight")
			refused("/pay", "k", "other", 422, "idempotency_key_reused")
			refused("/pay", "k", "", 422, "idempotency_key_reused")
			refused("/pay", "\"open", "body", 400, "idempotency_key_invalid")
			refused("/pay", "large", strings.Repeat("x", 1025), 413, "request_too_large")
			g.open()
			wantFresh(t, first.reply(t), 201, "run 1 of k")
			wantFresh(t, waited.reply(t), 201, "run 1 of w")
			refused("/pay", "k", "other", 422, "idempotency_key_reused")
			up.wantRuns(t, "w", 1)
		})
	}
}

// A page without a length comes in pieces, which reverse_proxy flushes. Its status is that of
// the refusal all the same.
func TestErrorRouteThatStreams(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, func(w http.ResponseWriter, r *http.Request, this run) {
		if !strings.HasPrefix(r.URL.Path, "/page/") {
			g.before(answers201)(w, r, this)
			return
		}
		w.WriteHeader(http.StatusConflict)
		_ = http.NewResponseController(w).Flush()
		fmt.Fprint(w, "page")
	})
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("wait off"), proxyTo(up),
		"handle_errors {", "rewrite * /page/{err.status_code}", proxyTo(up), "}")})
	first := p.postLater("/", "k", "body")
	up.awaitRuns(t, "k", 1)
	for range 3 {
		wantAnswer(t, p.post(t, "/", "k", "body"), 409, "page")
	}
	g.open()
	wantFresh(t, first.reply(t), 201, "run 1 of k")
}

// A handler of ours in an error route refuses by itself, and does not call its own route.
func TestErrorRouteThatRefuses(t *testing.T) {
	t.Parallel()
	nobody := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
	p := start(t, conf{store: "store memory", site: lines(
		"route /must {", dedupBlock("on_missing reject"), "}",
		"route {", "dedup", "reverse_proxy "+nobody, "}",
		"handle_errors {", dedupBlock("on_missing reject"), `respond "in error"`, "}")})
	for _, body := range []string{"", "body"} {
		wantAnswer(t, p.post(t, "/must", "", body), 400, "in error")
		wantProblem(t, p.post(t, "/", "", body), 400, "idempotency_key_missing")
		wantAnswer(t, p.post(t, "/", "k"+body, body), 502, "in error")
		wantAnswer(t, p.post(t, "/", `"open`, body), 400, "in error")
	}
}

// A run that failed, and the duplicates that waited for it, get a page of the error routes. What
// these ask for it shows it, and executes nothing.
func TestErrorRoutesOfARunAndOfThoseThatWaited(t *testing.T) {
	t.Parallel()
	for name, behind := range map[string]string{
		"one dedup": "",
		"two":       dedupBlock("mode webhook", "key value {http.request.uri.query.id}"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			up := startUpstream(t, answers201)
			nobody := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
			p := start(t, conf{store: "store memory", site: lines("route {", "dedup", behind,
				"reverse_proxy "+nobody+" {", "lb_try_duration 4s", "lb_try_interval 50ms", "}", "}",
				"handle_errors {", proxyTo(up), "}")})
			key := func(n int) string {
				if behind != "" { // the handler behind has one key for all of them
					return fmt.Sprint("k", n)
				}
				return "k"
			}
			all := []*pending{p.postLater("/?id=1", key(0), "body")}
			eventually(t, "a request runs", func() bool { return p.scrape(t)["caddy_dedup_in_flight"] > 0 })
			for n := range 3 {
				all = append(all, p.postLater("/?id=1", key(n+1), "body"))
			}
			p.awaitWaiting(t, 3, all[1:]...)
			for n, request := range all {
				if got := request.reply(t); got.Status != 502 || !strings.HasPrefix(got.Body, "run ") || got.replayed() != (n > 0) {
					t.Errorf("request %d got %d %q, replayed: %t", n, got.Status, got.Body, got.replayed())
				}
			}
			for _, run := range up.all() {
				if run.Method != http.MethodGet || run.Body != "" {
					t.Errorf("the error routes have sent %s %q", run.Method, run.Body)
				}
			}
		})
	}
}

// A body that a proxy has begun to read can be sent by nobody else: not what is left of it, and
// not as an empty one.
func TestStandInAfterTheBodyWasRead(t *testing.T) {
	t.Parallel()
	const buffers = "request_buffers 4KiB"
	for name, c := range map[string]struct{ main, standIn string }{
		"read by the first":            {buffers, ""},
		"read by the first, both read": {buffers, buffers},
		"sent by the first":            {"", ""},
		"sent by the first, then read": {"", buffers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fails := startUpstream(t, answersStatus(503))
			up := startUpstream(t, answers201)
			p := start(t, conf{store: "store memory", site: lines("dedup", "reverse_proxy "+fails.addr+" {", c.main,
				"@failed status 503", "handle_response @failed {", "reverse_proxy "+up.addr+" {", c.standIn, "}", "}", "}")})
			for form, content := range map[string]string{"short": "amount=5", "long": strings.Repeat("amount=5;", 700)} {
				for _, framing := range []string{
					fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(content), content),
					fmt.Sprintf("Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n%x\r\n%s\r\n0\r\nX-T: t\r\n\r\n", len(content), content),
				} {
					key := fmt.Sprint(form, len(framing))
					p.sendRaw(t, []byte("POST / HTTP/1.1\r\nHost: dedup.test\r\nIdempotency-Key: "+key+"\r\n"+framing))
					for _, run := range up.runs(key) {
						if run.Body != content {
							t.Errorf("%s: the stand-in has executed %q", form, run.Body)
						}
					}
				}
			}
		})
	}
}

// The same where the upstream answers before it has the whole body: the transport is still
// sending it then, or has not told its end yet.
func TestStandInWhileTheBodyIsSent(t *testing.T) {
	t.Parallel()
	read := make(chan struct{})
	fails := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		if err := control.EnableFullDuplex(); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(r.Body, make([]byte, 1)); err != nil { // the transport has begun
			t.Error(err)
		}
		w.WriteHeader(503)
		if err := control.Flush(); err != nil {
			t.Error(err)
		}
		<-read
	}))
	defer fails.Close()
	defer close(read)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines(dedupBlock("max_request_body 64MiB"),
		"reverse_proxy "+strings.TrimPrefix(fails.URL, "http://")+" {", "@failed status 503", "handle_response @failed {",
		"reverse_proxy "+up.addr+" {", "request_buffers 4KiB", "}", "}", "}")})
	body := strings.Repeat("amount=5;", 4<<20)
	p.sendRaw(t, fmt.Appendf(nil, "POST / HTTP/1.1\r\nHost: dedup.test\r\nIdempotency-Key: k\r\n"+
		"Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n%x\r\n%s\r\n0\r\nX-T: t\r\n\r\n", len(body), body))
	for _, run := range up.runs("k") {
		t.Errorf("the stand-in has executed %d of %d bytes", len(run.Body), len(body))
	}
}

// A proxy that sends nothing of the body, as one that only asks who may pass, leaves it whole
// to the proxy behind it.
func TestBodyBehindAProxyThatSendsNone(t *testing.T) {
	t.Parallel()
	who := startUpstream(t, answersStatus(204))
	up := startUpstream(t, answers201)
	p := start(t, conf{store: "store memory", site: lines("route {", "dedup", "forward_auth "+who.addr+" {", "uri /auth", "}", proxyTo(up), "}")})
	for name, body := range map[string]string{"short": "amount=5", "long": strings.Repeat("amount=5;", 700), "large": strings.Repeat("amount=5;", 30_000)} {
		wantFresh(t, p.post(t, "/", name, body), 201, "run 1 of "+name)
		if runs := up.runs(name); len(runs) != 1 || runs[0].Body != body {
			t.Errorf("%s: it was executed with another body", name)
		}
		if got := p.post(t, "/", name, body); !got.replayed() {
			t.Errorf("%s: the duplicate got %d %q", name, got.Status, shorten(got.Body))
		}
	}
}

// A duplicate that waits within the run of another handler waits no longer than that may take.
func TestDuplicateWithinARunThatHasNoTimeLeft(t *testing.T) {
	t.Parallel()
	g := newGate(t)
	up := startUpstream(t, g.before(answers201))
	p := start(t, conf{store: "store memory", site: lines("route {",
		"@short query short=1", "dedup @short {", "timeout 1s", "}", "@long not query short=1", "dedup @long",
		dedupBlock("mode webhook", "key value {http.request.uri.query.id}", "scope one"), proxyTo(up), "}")})
	first := p.postLater("/?id=1", "first", "body")
	up.awaitRuns(t, "first", 1)
	if got := p.post(t, "/?id=1&short=1", "second", "body"); got.Status != 504 {
		t.Errorf("the duplicate got %d %q", got.Status, got.Body)
	}
	g.open()
	wantFresh(t, first.reply(t), 201, "run 1 of first")
}
