package caddymodule

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
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
// the upstream gets of each request, and what the client gets.
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
			var got [2][2]told // of upstream and client; without dedup, and under observe
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
				s := serve(t, c.before, "dedup "+matcher+" {", "observe", "max_request_body 1000", c.block, "}", places.Replace(behind), places.Replace(c.more))
				for range 2 { // the second is a duplicate
					c.request(&got[i][1], s.URL)
				}
				s.stop()
				up.Close()
			}
			for of, name := range []string{"the upstream", "the client"} {
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

// A stream reaches the client as it comes, and a client that leaves ends the upstream's request.
func TestObserveStreamsAndCancels(t *testing.T) {
	goOn, cancelled := make(chan struct{}), make(chan error, 1)
	address, _ := upstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		cancelled <- r.Context().Err()
	})
	s := serve(t, "dedup {", "observe", "on_unknown hold", "}", "reverse_proxy "+address)
	counts := s.counted()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	got, err := oneRequest.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if _, err := io.ReadFull(got.Body, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("the upstream's request ended with %v", err)
	}
	close(goOn)
	counts.want(t, "executed")
	if state := s.only().State; state != idempotency.Held {
		t.Errorf("the key is %s, want it held: the end is unknown", state)
	}
}

// counted collects the requests that are counted. A request counts when its claim is settled.
type counted struct {
	exchange.Observer
	told chan string
}

// counted returns the collector of the site.
func (s *site) counted() *counted {
	c := &counted{s.handler().exchange.Observer, make(chan string, 10)}
	s.handler().exchange.Observer = c
	return c
}

func (c *counted) Request(provider string, o exchange.Outcome, observed bool) {
	c.Observer.Request(provider, o, observed)
	c.told <- fmt.Sprintf("%s %s %v", provider, o, observed)
}

// want waits for the next outcome, and compares it.
func (c *counted) want(t *testing.T, outcome string) {
	t.Helper()
	select {
	case got := <-c.told:
		if got != "api "+outcome+" true" {
			t.Errorf("it counts as %q, want %s", got, outcome)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("it does not count, want %s", outcome)
	}
}

// TestObserveReports sends requests, which all reach the upstream, and compares what is counted.
func TestObserveReports(t *testing.T) {
	address, runs := upstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if r.Header.Get("X-Slow") != "" {
			time.Sleep(2 * time.Millisecond)
		}
		if r.Header.Get("X-Cut") != "" {
			panic(http.ErrAbortHandler)
		}
		for _, name := range []string{"Location", "Dedup-Retention", "Payment-Required"} {
			if value := r.Header.Get("X-" + name); value != "" {
				w.Header().Set(name, value)
			}
		}
		status, _ := strconv.Atoi(cmp.Or(r.Header.Get("X-Status"), "201"))
		answers(status, cmp.Or(r.Header.Get("X-Says"), "created"))(w, r, n)
	})
	type request []string                                 // key, body, header fields
	plain, bare := request{"k", "body"}, request{"k", ""} // what nothing behind reads has no outcome
	with := func(header ...string) request { return append(slices.Clone(plain), header...) }
	for name, c := range map[string]struct {
		block    string
		behind   string
		requests []request
		want     string
	}{
		"a duplicate":         {requests: []request{plain, plain, plain}, want: "executed replayed replayed"},
		"another body":        {requests: []request{plain, {"k", "other"}}, want: "executed reused"},
		"a released key":      {requests: []request{with("X-Status", "500"), plain, plain}, want: "executed executed replayed"},
		"released as wished":  {requests: []request{with("X-Dedup-Retention", "0"), plain}, want: "executed executed"},
		"says it failed":      {block: "release_if /errors", requests: []request{with("X-Says", `{"errors": 1}`), with("X-Says", `{"errors": 0}`), plain}, want: "executed executed replayed"},
		"asked for payment":   {requests: []request{with("X-Status", "402", "X-Payment-Required", "1"), plain}, want: "executed executed"},
		"a kept 402":          {requests: []request{with("X-Status", "402"), plain}, want: "executed replayed"},
		"no key":              {requests: []request{{"", "body"}}, want: "missing"},
		"an unusable key":     {block: "key json /id", requests: []request{{"", `{"id":[]}`}}, want: "unusable"},
		"a key too long":      {requests: []request{{strings.Repeat("k", 256), "body"}}, want: "invalid"},
		"a body too large":    {block: "max_request_body 3", requests: []request{plain}, want: "too_large"},
		"a response too long": {block: "max_response_body 3", requests: []request{plain, plain}, want: "executed not_kept"},
		"an unknown end":      {requests: []request{with("X-Cut", "1"), plain}, want: "executed executed"},
		"held":                {block: "on_unknown hold", requests: []request{with("X-Cut", "1"), plain}, want: "executed held"},
		"over the timeout":    {block: "timeout 1ms\non_unknown hold", requests: []request{with("X-Slow", "1"), plain}, want: "executed held"},
		"not sent":            {block: "on_unknown hold", behind: "reverse_proxy " + nothing, requests: []request{bare, bare}, want: "executed executed"},
		"exhausted":           {block: "max_attempts 1", requests: []request{with("X-Cut", "1"), plain}, want: "executed exhausted"},
		"conflict":            {block: "on_duplicate conflict", requests: []request{plain, plain}, want: "executed conflict"},
		"acknowledge":         {block: "on_duplicate acknowledge", requests: []request{plain, plain}, want: "executed acknowledged"},
		"see other":           {block: "on_duplicate see_other", requests: []request{with("X-Location", "/1"), plain}, want: "executed see_other"},
		"see no other":        {block: "on_duplicate see_other", requests: []request{plain, plain}, want: "executed replayed"},
		"forced":              {block: "force X-Force", requests: []request{plain, with("X-Force", "true")}, want: "executed forced"},
		"no handler":          {behind: "vars a b", requests: []request{bare, bare}, want: "no_handler no_handler"},
	} {
		t.Run(name, func(t *testing.T) {
			before := runs.Load()
			s := serve(t, "dedup {", "observe", c.block, "}", cmp.Or(c.behind, "reverse_proxy "+address))
			counts := s.counted()
			for i, outcome := range strings.Fields(c.want) {
				s.mustPost(c.requests[i][0], c.requests[i][1], c.requests[i][2:]...)
				counts.want(t, outcome)
			}
			if n := runs.Load() - before; c.behind == "" && n != int64(len(c.requests)) {
				t.Errorf("%d of %d requests reached the upstream", n, len(c.requests))
			}
		})
	}
}

// The access log has the outcome of a request whose handlers end after its claim.
func TestObserveIsInTheAccessLog(t *testing.T) {
	decided := make(chan struct{})
	address, _ := upstream(t, func(_ http.ResponseWriter, _ *http.Request, n int) {
		if n > 1 {
			<-decided
		}
	})
	s := serveLogged(t, "", "", "log", "dedup {", "observe", "}", "reverse_proxy "+address)
	counts := s.counted()
	s.serveHTTP("k", "body")
	counts.want(t, "executed")
	go func() {
		counts.want(t, "replayed")
		close(decided)
	}()
	s.serveHTTP("k", "body")
	line := book.only(t, "handled request", "dedup_outcome", "replayed")
	if record := s.only(); line.text("dedup_execution_id") != record.ExecutionID || line.text("dedup_key") == "" {
		t.Errorf("the access log has %v, the store %+v", line, record)
	}
}

// A request beside a run passes at once.
func TestObserveDoesNotWait(t *testing.T) {
	for line, want := range map[string]string{"wait 30s": "waited", "wait off": "in_flight"} {
		goOn := make(chan struct{})
		address, _ := upstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
			if r.Header.Get("X-Slow") != "" {
				<-goOn
			}
		})
		s := serve(t, "dedup {", "observe", line, "}", "reverse_proxy "+address)
		counts, first := s.counted(), make(chan answer)
		go func() { first <- s.mustPost("k", "body", "X-Slow", "1") }()
		for len(s.listed()) == 0 {
			time.Sleep(time.Millisecond)
		}
		s.mustPost("k", "body")
		counts.want(t, want)
		close(goOn)
		<-first
		counts.want(t, "executed")
		s.stop()
	}
}

func (s *site) listed() []idempotency.Listed {
	page, _, err := s.keys.List(s.t.Context(), "", 100)
	if err != nil {
		s.t.Error(err)
	}
	return page
}

// What is observed is kept without its body and under a key of its own, and counts as no run.
func TestObserveKeepsApart(t *testing.T) {
	address, _ := upstream(t, answers(201, "created"))
	s := serve(t, "@observed header X-Observed *", "route {", "dedup @observed {", "observe", "}",
		"@enforced not header X-Observed *", "dedup @enforced", "reverse_proxy "+address, "}")
	before, onPage := total(t, "runs_total"), processMetrics.byOutcome()["executed"]
	counts := s.counted()
	s.mustPost("k", "body", "X-Observed", "1")
	counts.want(t, "executed")
	kept := s.listed()
	if len(kept) != 1 || kept[0].Record.State != idempotency.Complete || kept[0].Record.Status != 201 {
		t.Fatalf("the store has %+v", kept)
	}
	response, err := s.keys.Response(t.Context(), kept[0].Key, kept[0].Record)
	if err != nil || response == nil || response.Status != 201 || len(response.Body)+len(response.Header) > 0 {
		t.Errorf("the response that is kept is %+v, %v", response, err)
	}
	if n, shown := total(t, "runs_total")-before, processMetrics.byOutcome()["executed"]-onPage; n != 0 || shown != 0 {
		t.Errorf("%v runs are counted, and the page shows %d", n, shown)
	}
	if got := s.mustPost("k", "body"); got.header.Get("Idempotent-Replayed") != "" {
		t.Error("what was only observed is replayed")
	}
	if n := total(t, "runs_total") - before; len(s.listed()) != 2 || n != 1 {
		t.Errorf("there are %d keys, and %v runs; want 2 and 1", len(s.listed()), n)
	}
}

// Without a store, or room, requests pass, and have no outcome.
func TestObservePassesWithoutStoreOrRoom(t *testing.T) {
	body := strings.Repeat("x", 10_000)
	var got string
	up := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		got = string(text)
	}))
	defer up.Close()
	for name, c := range map[string]struct {
		line, global string
		taken        int
	}{
		"no store":             {line: "store redis redis://" + nothing},
		"no room for a body":   {global: "limits {\nbuffered 64KiB\n}", taken: 64 << 10},
		"no room for a record": {global: "limits {\nmemory_store 1KiB\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveLogged(t, "", c.global, "log", "dedup {", "observe", c.line, "}", "reverse_proxy "+strings.TrimPrefix(up.URL, "http://"))
			counts, before := s.counted(), total(t, "overloads_total")
			others := &exchange.Allowance{Budget: buffered}
			others.Count(c.taken)
			defer others.ReleaseAll()
			if answered := s.mustPost("k", body); answered.status != 200 || got != body {
				t.Errorf("the client got %d, the upstream %d bytes", answered.status, len(got))
			}
			for len(book.about("unobserved: ")) == 0 {
				time.Sleep(time.Millisecond)
			}
			s.Close()
			if n := len(book.about("handled request")); n != 1 || len(book.about("handled request", "dedup_outcome", "")) != 1 {
				t.Errorf("the access log has %v", book.about("handled request"))
			}
			if len(counts.told) > 0 || total(t, "overloads_total") != before {
				t.Errorf("it counts as %d requests, and %v refusals because of a limit", len(counts.told), total(t, "overloads_total")-before)
			}
		})
	}
}

// total returns the sum of a counter of the process over all its labels.
func total(t *testing.T, counter string) float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := processMetrics.register(registry); err != nil {
		t.Fatal(err)
	}
	_, values := gathered(t, registry)
	sum := 0.0
	for name, value := range values {
		if strings.HasPrefix(name, "caddy_dedup_"+counter) {
			sum += value
		}
	}
	return sum
}

// What Go's transport sends again, it sends again: the run would not have been repeated, and its
// end would have been unknown.
func TestObserveLetsTheTransportResend(t *testing.T) {
	var executions []int64
	for _, matcher := range []string{"/never", ""} {
		s, runs := warmed(t, (*httptest.Server).Start, "route {", "dedup "+matcher+" {", "observe", "on_unknown hold", "}", "reverse_proxy {to}", "}")
		counts := s.counted()
		if got := s.mustPost("k", ""); got.status != http.StatusBadGateway {
			t.Errorf("the client got %+v", got)
		}
		executions = append(executions, runs.Load())
		if matcher == "" {
			counts.want(t, "executed")
			if state := s.only().State; state != idempotency.Held {
				t.Errorf("the key is %s, want held", state)
			}
		}
		s.stop()
	}
	if executions[0] != executions[1] || executions[0] < 2 {
		t.Errorf("without dedup the upstream executes %d times, under observe %d; want the same", executions[0], executions[1])
	}
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
	overHTTP2(up)
	defer up.Close()
	s := serve(t, "dedup {", "observe", "}", "reverse_proxy h2c://"+up.Listener.Addr().String())
	counts, front := s.counted(), httptest.NewUnstartedServer(s.Config.Handler)
	overHTTP2(front)
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

func overHTTP2(server *httptest.Server) {
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
}

// The server logs the errors of the handlers behind, and shows its pages for them, as without dedup.
func TestObserveLeavesErrorsToTheServer(t *testing.T) {
	address, _ := upstream(t, answers(201, "created"))
	for _, routes := range []string{"", "handle_errors {\nreverse_proxy " + address + "\n}"} {
		var lines [2][]entry
		var got [2]answer
		for i, matcher := range []string{"/never", ""} {
			s := serveLogged(t, "DEBUG", "", "log", "dedup "+matcher+" {", "observe", "}", "reverse_proxy "+nothing, routes)
			got[i] = s.mustPost("k", "body")
			s.Close()
			for _, line := range book.about("") {
				if strings.HasPrefix(line.text("logger"), "http.log.error") {
					lines[i] = append(lines[i], line)
				}
			}
			s.stop()
		}
		if len(lines[0]) != 1 || len(lines[1]) != 1 || lines[0][0].text("level") != lines[1][0].text("level") {
			t.Errorf("%q: the server logs %v, without dedup %v", routes, lines[1], lines[0])
		}
		if got[0].status != got[1].status || got[0].body != got[1].body {
			t.Errorf("%q: the client gets %+v, without dedup %+v", routes, got[1], got[0])
		}
	}
}

// What a proxy in front has left in the placeholders stays there, and says nothing of the run.
func TestObserveBehindAProxy(t *testing.T) {
	address, _ := upstream(t, answers(200, "done"))
	const shown = "respond `{http.reverse_proxy.status_code} {http.reverse_proxy.upstream.hostport}`"
	for name, c := range map[string]struct {
		behind []string
		status int
		body   string
		want   idempotency.State
	}{
		"no proxy":        {[]string{shown}, 200, "200 " + address, idempotency.Complete},
		"no upstream":     {[]string{"reverse_proxy " + nothing}, 502, "", idempotency.Released},
		"the same one":    {[]string{"reverse_proxy " + address}, 200, "done", idempotency.Complete},
		"made nothing of": {[]string{"reverse_proxy " + address + " {", "handle_response {", "vars a b", "}", "}"}, 200, "", idempotency.Complete},
	} {
		t.Run(name, func(t *testing.T) {
			lines := slices.Concat([]string{"route {", "forward_auth " + address + " {", "uri /", "}", "dedup {", "observe", "on_unknown hold", "}"}, c.behind, []string{"}"})
			s := serve(t, lines...)
			counts := s.counted()
			if got := s.mustPost("k", ""); got.status != c.status || got.body != c.body {
				t.Errorf("the client got %+v", got)
			}
			counts.want(t, "executed")
			if state := s.only().State; state != c.want {
				t.Errorf("the key is %s, want %s", state, c.want)
			}
		})
	}
}

// A request that comes before the store is open passes, too.
func TestObservePassesBeforeTheStoreIsOpen(t *testing.T) {
	address, _ := upstream(t, answers(201, "done"))
	app, web := provision(t, "", "dedup {", "observe", "}", "reverse_proxy "+address)
	for _, server := range web.Servers {
		s := &site{t: t, app: app, Server: httptest.NewServer(server)}
		defer s.Close()
		if got := s.mustPost("k", "body"); got.status != 201 {
			t.Errorf("got %+v", got)
		}
	}
}
