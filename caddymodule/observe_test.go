package caddymodule

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// nothing is an address at which nothing listens. A port that was free a moment ago may be the
// site's own by now.
const nothing = "127.0.0.1:1"

// told is what an upstream has got, or a client: two of them are compared.
type told struct {
	mu    sync.Mutex
	lines []string
}

func (s *told) add(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = append(s.lines, fmt.Sprintf(format, args...))
}

// fields describes a header without what differs from one response to the next.
func fields(header http.Header) string {
	header = header.Clone()
	header.Del("Date")
	header.Del("Traceparent")
	var text bytes.Buffer
	_ = header.Write(&text)
	return text.String()
}

// TestObserveIsTransparent compares a site under observe with one whose dedup matches nothing: what
// the upstream gets of each request, what the client gets, and which errors the server logs.
func TestObserveIsTransparent(t *testing.T) {
	large := strings.Repeat("x", 3000) // than max_request_body
	post := func(body string, header ...string) func(*told, string) {
		return func(client *told, url string) { exchanged(client, url, strings.NewReader(body), header...) }
	}
	chunked := func(body string, header ...string) func(*told, string) {
		return func(client *told, url string) {
			exchanged(client, url, io.NopCloser(strings.NewReader(body)), header...)
		}
	}
	key := []string{"Idempotency-Key", "k"}
	keyed := func(header ...string) []string { return append(key, header...) }
	answer := func(header ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "created")
		}
	}
	for name, c := range map[string]struct {
		block   string // more lines of dedup
		before  string
		behind  string // {up} is the upstream; "" for reverse_proxy
		more    string // lines beside
		serve   http.HandlerFunc
		request func(client *told, url string)
	}{
		"a request with a key":                      {serve: answer("Set-Cookie", "a=b", "X-Own", "1"), request: post("body", key...)},
		"without a key":                             {serve: answer(), request: post("body")},
		"a missing key":                             {block: "on_missing reject", serve: answer(), request: post("body")},
		"an invalid key":                            {serve: answer(), request: post("body", "Idempotency-Key", `"`)},
		"Dedup fields of the client":                {serve: answer(), request: post("body", keyed("Dedup-Execution-Id", "forged", "Dedup-X", "1", "Connection", "Dedup-X")...)},
		"a retention that is wished":                {serve: answer("Dedup-Retention", "60"), request: post("body", key...)},
		"a field that forces":                       {block: "force X-Force", serve: answer(), request: post("body", keyed("X-Force", "true")...)},
		"a failure":                                 {serve: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "failed", http.StatusServiceUnavailable) }, request: post("body", key...)},
		"no body":                                   {serve: answer(), request: post("", key...)},
		"an empty chunked body":                     {serve: answer(), request: chunked("", key...)},
		"a chunked body":                            {serve: answer(), request: chunked("body", key...)},
		"a large body":                              {serve: answer(), request: post(large, key...)},
		"a large chunked body":                      {serve: answer(), request: chunked(large, key...)},
		"a large body with a key":                   {block: "mode webhook\nkey json /id", serve: answer(), request: chunked(large)},
		"a body that the client is to be asked for": {serve: answer(), request: post("body", keyed("Expect", "100-continue")...)},
		"trailers of the request": {serve: answer(), request: func(client *told, url string) {
			sent(client, url, "POST / HTTP/1.1\r\nHost: example.test\r\nIdempotency-Key: k\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"+
				"Trailer: X-Sum, Dedup-Sum\r\n\r\n4\r\nbody\r\n0\r\nX-Sum: 1\r\nDedup-Sum: 2\r\n\r\n")
		}},
		"a body that cannot be read": {before: "request_body {\nmax_size 2\n}", serve: answer(), request: chunked("body", key...)},
		"a small body that cannot":   {before: "request_body {\nmax_size 2\n}", serve: answer(), request: post("body", key...)},
		"an upgrade": {serve: raw("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nhello"), request: func(client *told, url string) {
			sent(client, url, "POST / HTTP/1.1\r\nHost: example.test\r\nIdempotency-Key: k\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		}},
		"an encoded response": {serve: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", r.Header.Get("Accept-Encoding"))
			encoder := gzip.NewWriter(w)
			_, _ = io.WriteString(encoder, "created")
			_ = encoder.Close()
		}, request: post("body", keyed("Accept-Encoding", "gzip")...)},
		"early hints": {serve: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Link", "</style.css>; rel=preload")
			w.WriteHeader(103)
			w.Header().Del("Link")
			answer("X-Own", "1")(w, r)
		}, request: post("body", key...)},
		"trailers of the response": {serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Sum")
			_, _ = io.WriteString(w, "created")
			w.Header().Set("X-Sum", "1")
			w.Header().Set(http.TrailerPrefix+"Dedup-Late", "2")
		}, request: post("body", key...)},
		"a cut response": {serve: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "created")
			panic(http.ErrAbortHandler)
		}, request: post("body", key...)},
		"no upstream":                {behind: "reverse_proxy {refusing}", request: post("body", key...)},
		"an error page":              {behind: "reverse_proxy {refusing}", more: "handle_errors {\nrespond \"page {err.status_code}\"\n}", request: post("body", key...)},
		"a proxy for errors":         {behind: "reverse_proxy {refusing}", more: "handle_errors {\nreverse_proxy {up}\n}", serve: answer(), request: post("body", key...)},
		"a proxy for errors, copied": {behind: "reverse_proxy {refusing}", more: "tracing\nhandle_errors {\nreverse_proxy {up}\n}", serve: answer(), request: chunked("body", key...)},
		"an error of a handler":      {behind: "error 401", request: post("body", key...)},
		"no handler":                 {behind: "vars a b", request: post("body", key...)},
		"no handler, and no key":     {behind: "vars a b", request: post("body")},
		"a fallback":                 {behind: "reverse_proxy {up} {\n@down status 503\nhandle_response @down {\nrespond masked 200\n}\n}", serve: answer(), request: post("body", key...)},
	} {
		t.Run(name, func(t *testing.T) {
			var got [2][3]told // of upstream, client and log; without dedup, and under observe
			for i, matcher := range []string{"/never", ""} {
				up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					got[i][0].add("%s %s %s length %d %q\n%s", r.Method, r.Host, r.RequestURI, r.ContentLength, r.TransferEncoding, fields(r.Header))
					body, err := io.ReadAll(r.Body)
					got[i][0].add("%s\n%v %s", body, err != nil, fields(r.Trailer))
					c.serve(w, r)
				}))
				address := strings.TrimPrefix(up.URL, "http://")
				places := strings.NewReplacer("{up}", address, "{refusing}", nothing)
				behind := c.behind
				if behind == "" {
					behind = "reverse_proxy {up}"
				}
				s := serveLogged(t, "DEBUG", "", "log", c.before, "dedup "+matcher+" {", "observe", "max_request_body 1000", c.block, "}", places.Replace(behind), places.Replace(c.more))
				for range 2 { // the second is a duplicate
					c.request(&got[i][1], s.URL)
				}
				s.stop()
				up.Close()
				for _, line := range book.about("") {
					if strings.HasPrefix(line.text("logger"), "http.log.error") {
						got[i][2].add("%s %s", line.text("level"), line.text("status"))
					}
				}
			}
			for of, name := range []string{"the upstream", "the client", "the log"} {
				if of == 0 && c.before != "" {
					continue // whether a request that breaks off reaches it is up to the proxy
				}
				without, observed := got[0][of].lines, got[1][of].lines
				if !slices.Equal(without, observed) {
					t.Errorf("under observe %s gets\n%s\nand without dedup\n%s", name, strings.Join(observed, "\n"), strings.Join(without, "\n"))
				}
			}
		})
	}
}

// raw answers with bytes, and closes the connection.
func raw(answer string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = io.WriteString(conn, answer)
			_ = conn.Close()
		}
	}
}

// exchanged sends a POST with a body, and notes all that the client gets.
func exchanged(client *told, url string, body io.Reader, header ...string) {
	r, err := http.NewRequest(http.MethodPost, url+"/things?q=1", body)
	if err != nil {
		panic(err)
	}
	r.Host = "example.test"
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	r = r.WithContext(httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{
		Got1xxResponse: func(code int, header textproto.MIMEHeader) error {
			if code != http.StatusContinue { // which server and proxy both send, or one of them
				client.add("%d %s", code, fields(http.Header(header)))
			}
			return nil
		},
	}))
	got, err := oneRequest.Do(r)
	if err != nil {
		client.add("no answer")
		return
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	client.add("%d length %d %q\n%s\n%q %v\n%s", got.StatusCode, got.ContentLength, got.TransferEncoding, fields(got.Header), text, err, fields(got.Trailer))
}

// sent sends bytes, and notes what comes back until the connection is closed.
func sent(client *told, url, request string) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, request)
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		client.add("no answer")
		return
	}
	defer got.Body.Close()
	text, _ := io.ReadAll(got.Body)
	client.add("%d length %d\n%s\n%q", got.StatusCode, got.ContentLength, fields(got.Header), text)
}

// Request and response stream at the same time, whatever the key needs of the body.
func TestObserveStreamsBothWays(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for word := make([]byte, 4); ; {
			if _, err := io.ReadFull(r.Body, word); err != nil {
				return
			}
			_, _ = w.Write(word)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	startHTTP2(up)
	defer up.Close()
	s := serve(t, "dedup {", "observe", "}", "reverse_proxy h2c://"+up.Listener.Addr().String())
	counts, front := s.counted(), httptest.NewUnstartedServer(s.Config.Handler)
	startHTTP2(front)
	defer front.Close()
	body, client := io.Pipe()
	defer client.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	go func() { _, _ = io.WriteString(client, "ping") }()
	got, err := (&http.Transport{Protocols: front.Config.Protocols}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	for range 2 {
		word := make([]byte, 4)
		if _, err := io.ReadFull(got.Body, word); err != nil || string(word) != "ping" {
			t.Fatalf("the client got %q, %v", word, err)
		}
		go func() { _, _ = io.WriteString(client, "ping") }()
	}
	if _, err := io.ReadFull(got.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if tail, err := io.ReadAll(got.Body); len(tail) > 0 || err != nil {
		t.Errorf("after the end the client got %q, %v", tail, err)
	}
	counts.want(t, "executed")
	if state := s.only().State; state != idempotency.Complete {
		t.Errorf("the key is %s", state)
	}
}
