package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Once a proxy has begun to read a body, no stand-in can send it. Here the upstream answers before it has the whole
// body, which the transport is still sending.
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
		dedupBlock("mode webhook", "key value {http.request.uri.query.id}", "scope shared one"), proxyTo(up), "}")})
	first := p.postLater("/?id=1", "first", "body")
	up.awaitRuns(t, "first", 1)
	if got := p.post(t, "/?id=1&short=1", "second", "body"); got.Status != 504 {
		t.Errorf("the duplicate got %d %q", got.Status, got.Body)
	}
	g.open()
	wantFresh(t, first.reply(t), 201, "run 1 of first")
}
