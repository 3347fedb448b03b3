package caddymodule

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// githubSignature signs a body as GitHub does.
func githubSignature(secret, body string) string {
	return "sha256=" + signedWith(secret, body)
}

// standardSignature signs a message as Standard Webhooks says, with the secret "secret".
func standardSignature(id string, at time.Time, body string) string {
	mac := hmac.New(sha256.New, []byte("secret"))
	_, _ = fmt.Fprintf(mac, "%s.%d.%s", id, at.Unix(), body)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// Whoever has not the secret gets 401 with any method and any way of sending, and reaches neither
// the upstream nor the store. Whoever has it gets through, whatever the method.
func TestVerifyGuardsEveryRequest(t *testing.T) {
	t.Setenv("TEST_SECRET", "old\n")
	t.Setenv("TEST_NEXT", "next")
	var got []string
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got = append(got, r.Method+" "+string(body))
	}))
	defer up.Close()
	s := serve(t, "dedup github {", "verify {env.TEST_SECRET} {env.TEST_NEXT}", "max_request_body 1KiB", "}",
		"reverse_proxy "+up.Listener.Addr().String())
	const body = `{"zen": "x"}`
	right := githubSignature("old", body)
	of := func(signature string, more ...string) []string {
		return append([]string{"X-Hub-Signature-256", signature, "X-GitHub-Delivery", "1"}, more...)
	}
	padded := body + strings.Repeat(" ", 2000)
	for name, c := range map[string]struct {
		request request
		want    int
	}{
		"unsigned":                       {keyedBy("", body, "X-GitHub-Delivery", "1"), 401},
		"without anything":               {with(body), 401},
		"another secret":                 {keyedBy("", body, of(githubSignature("other", body))...), 401},
		"the line end of the secret":     {keyedBy("", body, of(githubSignature("old\n", body))...), 401},
		"the older field":                {keyedBy("", body, "X-Hub-Signature", right, "X-GitHub-Delivery", "1"), 401},
		"Gitea's fields":                 {keyedBy("", body, of(right, "X-Gitea-Delivery", "1")...), 401},
		"GET":                            {with("", "GET"), 401},
		"GET with a challenge of others": {with("", "GET", "/?hub.challenge=1"), 401},
		"PUT":                            {with(body, "PUT"), 401},
		"a method of its own":            {with(body, "FROB"), 401},
		"OPTIONS":                        {with("", "OPTIONS"), 401},
		"an offer to upgrade":            {keyedBy("", "", "Connection", "Upgrade", "Upgrade", "websocket").as("GET"), 401},
		"gRPC over HTTP/1.1":             {keyedBy("", body, "Content-Type", "application/grpc"), 401},
		"an unsigned handshake":          {keyedBy("", `{"type": "url_verification"}`, "X-GitHub-Event", "ping"), 401},
		"padded":                         {keyedBy("", padded, of(right)...), 413},
		"padded and chunked":             {keyedBy("", padded, of(right)...).as(chunked), 413},
		"padded without a key":           {keyedBy("", padded, "X-Hub-Signature-256", right).as(chunked), 413},
		"padded and unsigned":            {with(padded), 401},
	} {
		answered := s.must(c.request)
		code := map[int]string{401: `"code":"signature_invalid"`, 413: `"code":"request_too_large"`}[c.want]
		if answered.status != c.want || !strings.Contains(answered.body, code) {
			t.Errorf("%s: got %+v; want %d", name, answered, c.want)
		}
		if strings.Contains(answered.body, "old") || strings.Contains(answered.body, "next") {
			t.Errorf("%s: the answer shows a secret: %s", name, answered.body)
		}
	}
	if len(got) > 0 {
		t.Fatalf("the upstream got %q", got)
	}
	for _, c := range []struct {
		request request
		want    string // what the upstream gets
	}{
		{keyedBy("", body, of(right)...), "POST " + body},
		{keyedBy("", body, of(right)...), ""},
		{keyedBy("", body, of(githubSignature("next", body))...).as(chunked), "POST " + body}, // the scope has the secret
		{keyedBy("", body, of("sha256="+strings.ToUpper(strings.TrimPrefix(right, "sha256=")))...), ""},
		{keyedBy("", "\x1f\x8b", "X-Hub-Signature-256", githubSignature("old", "\x1f\x8b"), "X-GitHub-Delivery", "2", "Content-Encoding", "gzip"), "POST \x1f\x8b"},
		{keyedBy("", body, of(right)...).as("PUT"), ""},
		{keyedBy("", body, "X-Hub-Signature-256", right, "X-GitHub-Delivery", "3").as("PUT", chunked), "PUT " + body},
		{keyedBy("", "", "X-Hub-Signature-256", githubSignature("old", ""), "X-GitHub-Delivery", "4").as("GET"), "GET "},
		{keyedBy("", body, "X-Hub-Signature-256", right), "POST " + body}, // it has no key
	} {
		got = nil
		if answered := s.must(c.request); answered.status != 200 || strings.Join(got, ",") != c.want {
			t.Errorf("%s: got %+v, and the upstream got %q; want %q", c.request, answered, got, c.want)
		}
	}
	s.stop() // it waits for the handlers, which end behind their answers
	if held := buffered.Used(); held != 0 {
		t.Errorf("%d bytes are held when all is answered", held)
	}
}

// Where the scheme signs an ID, that ID is the key, whatever else a captured request is sent with. A
// provider without a signature of its own scheme claims nothing that another has signed.
func TestVerifiedSenderSelectsTheKey(t *testing.T) {
	t.Setenv("TEST_SECRET", "whsec_c2VjcmV0")
	t.Setenv("TEST_OTHER", "secret")
	address, runs := startUpstream(t, answers(200, ""))
	s := serve(t, "dedup gitlab github {", "mode webhook", "verify gitlab {env.TEST_SECRET}", "verify github {env.TEST_OTHER}",
		"key header X-Id", "verify hmac {", "header X-Signature", "secret {env.TEST_OTHER}", "}", "}",
		"reverse_proxy "+address)
	const body = `{}`
	now := time.Now()
	of := func(more ...string) []string {
		return append([]string{"webhook-id", "m1", "webhook-timestamp", strconv.FormatInt(now.Unix(), 10),
			"webhook-signature", standardSignature("m1", now, body)}, more...)
	}
	stale := now.Add(-time.Hour)
	for i, c := range []struct {
		header []string
		want   int
		runs   int64
	}{
		{of("X-Gitlab-Event", "Push Hook", "Idempotency-Key", "m1"), 200, 1},
		{of("X-Gitlab-Event", "Push Hook", "Idempotency-Key", "m1"), 200, 1},
		{of("X-Gitlab-Event", "Push Hook", "Idempotency-Key", "m2"), 200, 1},
		{of("X-Gitlab-Event", "Push Hook", "Idempotency-Key", "m1", "Idempotency-Key", "m2"), 200, 1},
		{of("X-Gitlab-Event", "Push Hook", "Idempotency-Key", `"m2`), 200, 1},
		{of("X-Gitlab-Event", "Push Hook", "X-Gitlab-Webhook-UUID", "u"), 200, 1},
		{of("X-Gitlab-Event-UUID", "u"), 200, 1}, // without the sign of an honest sender
		{of("X-GitHub-Delivery", "g1"), 200, 1},  // which github's secret has not signed
		{append(of(), "webhook-id", "m2"), 401, 1},
		{[]string{"X-Gitlab-Event", "Push Hook", "X-Gitlab-Token", "secret", "Idempotency-Key", "m3"}, 401, 1},
		{[]string{"webhook-id", "m1", "webhook-timestamp", strconv.FormatInt(stale.Unix(), 10), "webhook-signature", standardSignature("m1", stale, body)}, 401, 1},
		{[]string{"X-Hub-Signature-256", githubSignature("secret", body), "X-GitHub-Delivery", "g1"}, 200, 2},
		{[]string{"X-Hub-Signature-256", githubSignature("secret", body), "X-GitHub-Delivery", "g1", "X-Id", "o1"}, 200, 2},
		{[]string{"X-Signature", signedWith("secret", body), "X-Id", "o1"}, 200, 3},
		{[]string{"X-Signature", signedWith("secret", body), "X-Id", "o1", "X-GitHub-Delivery", "g2"}, 200, 3},
	} {
		if answered := s.must(keyedBy("", body, c.header...)); answered.status != c.want || runs.Load() != c.runs {
			t.Errorf("request %d: got %+v after %d runs; want %d after %d", i+1, answered, runs.Load(), c.want, c.runs)
		}
	}
}

// Unsigned challenges pass; of the handshakes, the signed ones. None of what passes offers another
// protocol: what the client sends behind a 101 would not be verified.
func TestVerifyAndHandshakes(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	var got []string
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got = append(got, r.Method)
		if r.Header.Get("Upgrade")+r.Header.Get("Http2-Settings") != "" {
			t.Errorf("the upstream got an offer: %v", r.Header)
		}
	}))
	defer up.Close()
	s := serve(t, "dedup dropbox asana {", "verify dropbox {env.TEST_SECRET}", "verify asana {env.TEST_SECRET}", "}",
		"reverse_proxy "+up.Listener.Addr().String())
	signed := strings.TrimPrefix(githubSignature("secret", `{"events": []}`), "sha256=")
	offer := []string{"Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AAMAAABkAAQAAP__"}
	signedOffer := append([]string{"X-Hook-Signature", signed}, offer...)
	for i, c := range []struct {
		request request
		want    int
		runs    int
	}{
		{with("", "GET", "/?challenge=1"), 200, 1},
		{with("", "GET"), 401, 1},
		{with("", "/?challenge=1"), 401, 1},
		{with("x", "GET", "/?challenge=1"), 401, 1},
		{keyedBy("", "", "X-Hook-Secret", "s"), 401, 1}, // asana's, which is never signed
		{keyedBy("", `{"events": []}`, "X-Hook-Signature", signed), 200, 2},
		{keyedBy("", `{"events": []}`, "X-Hook-Signature", signed), 200, 3},
		{keyedBy("", "", offer...).as("GET", "/?challenge=1"), 200, 4},
		{keyedBy("", `{"events": []}`, signedOffer...), 200, 5},
		{keyedBy("", `{"events": []}`, signedOffer...).as("PUT"), 200, 6},
	} {
		if answered := s.must(c.request); answered.status != c.want || len(got) != c.runs {
			t.Errorf("request %d: got %+v after %q; want %d after %d", i+1, answered, got, c.want, c.runs)
		}
	}
}

// A refusal is shown by the error routes as a GET without a body, in api mode too, is counted once,
// and logged with the reason and no secret.
func TestVerifyRefusesLikeOthers(t *testing.T) {
	t.Setenv("TEST_SECRET", "s3cr3tword")
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = fmt.Fprintf(w, "%s %q %s", r.Method, body, r.Header.Get("X-Outcome"))
	}))
	defer page.Close()
	const outcome = string(report.SignatureInvalid)
	before := processMetrics.byOutcome()[outcome]
	s := serveLogged(t, "", "", "dedup {", "verify hmac {", "secret {env.TEST_SECRET}", "header X-Signature", "}", "}", `respond "ran"`,
		"handle_errors {", "reverse_proxy "+page.Listener.Addr().String()+" {\nheader_up X-Outcome {http.dedup.outcome}\n}", "}")
	answered := s.must(keyedBy("", "x", "Idempotency-Key", "k", "X-Signature", strings.Repeat("0", 64)))
	if answered.status != 401 || answered.body != `GET "" signature_invalid` {
		t.Errorf("got %+v", answered)
	}
	if n := processMetrics.byOutcome()[outcome] - before; n != 1 {
		t.Errorf("it is counted %d times", n)
	}
	line := book.only(t, "refused a request", "code", "signature_invalid")
	for field, want := range map[string]string{"reason": "hmac: no signature matches", "body_bytes": "1", "secrets_tried": "1", "path": "/"} {
		if line.text(field) != want {
			t.Errorf("%s is %q in the log; want %q", field, line.text(field), want)
		}
	}
	for _, line := range book.about("") {
		if strings.Contains(fmt.Sprint(line), "s3cr3tword") {
			t.Errorf("the log has the secret: %v", line)
		}
	}
}

// 32 forged bodies that arrive slowly end when others need their room, and keep no other request out.
func TestSlowForgedBodies(t *testing.T) {
	t.Setenv("TEST_SECRET", "secret")
	address, _ := startUpstream(t, answers(200, ""))
	s := serveWith(t, "limits {\nbuffered 1MiB\n}", "dedup github {", "verify {env.TEST_SECRET}", "}",
		"reverse_proxy "+address)
	const size = 100 << 10
	head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nX-GitHub-Delivery: f\r\nX-Hub-Signature-256: sha256=%064d\r\nContent-Length: %d\r\n\r\n", 0, size)
	var slow []*bufio.Reader
	for range 32 {
		conn, err := net.Dial("tcp", s.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		answer := bufio.NewReader(conn)
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answer, nil)
		if err != nil || response.StatusCode != http.StatusContinue { // the body of the request is being read
			t.Fatal(response, err)
		}
		_ = response.Body.Close()
		if _, err := io.WriteString(conn, strings.Repeat("x", size-1)); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, answer)
	}
	body := strings.Repeat("x", 200<<10)
	for i := range 10 {
		if answered := s.must(keyedBy("", body, "X-Hub-Signature-256", githubSignature("secret", body), "X-GitHub-Delivery", strconv.Itoa(i))); answered.status != 200 {
			t.Fatalf("a genuine delivery got %+v", answered)
		}
	}
	ended := 0
	for _, answer := range slow[:20] { // at most five fit into half of the room
		response, err := http.ReadResponse(answer, nil)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode == http.StatusRequestTimeout {
			ended++
		}
	}
	if ended != 20 {
		t.Errorf("%d of the first 20 slow bodies ended with 408", ended)
	}
}
