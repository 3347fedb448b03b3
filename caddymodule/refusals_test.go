package caddymodule

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// problem is the body of a refusal.
type problem struct {
	Type, Title, Detail, Code, Key string
	Status                         int
	ExecutionID                    string `json:"execution_id"`
}

// problem fails the test unless the answer is a whole refusal with this status and code.
func (a answer) problem(t *testing.T, status int, code string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != status || p.Status != status || p.Code != code {
		t.Fatalf("got %+v, %v; want the problem %d %s", a, err, status, code)
	}
	if a.header.Get("Content-Type") != "application/problem+json" || p.Title == "" || p.Detail == "" || a.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the problem is %+v", a)
	}
	return p
}

// A refusal names the key and its execution, if the request has them, and the page of `docs`.
func TestRefusalsSayWhatTheyRefuse(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "created"))
	const docs = "https://shop.test/idempotency"
	for name, lines := range map[string]string{"": "", docs: "docs " + docs} {
		s := serve(t, "header >X-Key {http.dedup.key}", "dedup {", lines, "max_request_body 1KiB", "on_missing reject", "}", "reverse_proxy "+address)
		first := s.mustPost("k", "body")
		for _, c := range []struct {
			key, body string
			status    int
			code      string
			execution string
		}{
			{"k", "another", 422, "idempotency_key_reused", first.header.Get("Dedup-Execution-Id")},
			{"large", strings.Repeat("x", 1025), 413, "request_too_large", ""},
			{"", "body", 400, "idempotency_key_missing", ""},
		} {
			got := s.mustPost(c.key, c.body)
			p := got.problem(t, c.status, c.code)
			if p.ExecutionID != c.execution || p.Type != name {
				t.Errorf("%s: the execution is %q and the type %q, want %q, %q", c.code, p.ExecutionID, p.Type, c.execution, name)
			}
			if p.Key != got.header.Get("X-Key") || (c.key != "") != hexKey.MatchString(p.Key) {
				t.Errorf("%s: the key is %q, the placeholder %q", c.code, p.Key, got.header.Get("X-Key"))
			}
			link := ""
			if name != "" {
				link = "<" + docs + `>; rel="describedby"`
			}
			if got.header.Get("Link") != link {
				t.Errorf("%s: Link is %q, want %q", c.code, got.header.Get("Link"), link)
			}
		}
		if got := s.mustPost("large", "small"); got.status != 201 || got.header.Get("Idempotent-Replayed") != "" {
			t.Errorf("the key of a request that was too large is not free: %+v", got)
		}
		s.stop()
	}
}

// Error routes belong to the server: a site without any must not lose its refusals to those of
// another site on its port.
func TestRefusalsOfSitesOnOnePort(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "created"))
	dedup := "dedup {\non_missing reject\n}\nreverse_proxy " + address + "\n"
	s := serve(t, dedup+"}", "http://own.test:80 {", dedup, "handle_errors {", `respond "sorry: {err.status_code} {err.message}"`, "}", "}",
		"http://some.test:80 {", dedup, "handle_errors 404 {", `respond "not here"`, "}")
	for _, host := range []string{"own.test", "some.test", "none.test"} {
		send := func(key string) answer { return s.must(keyedBy(key, "", "Host", host)) }
		if got := send(""); host != "own.test" {
			got.problem(t, 400, "idempotency_key_missing")
		} else if text, found := strings.CutPrefix(got.body, "sorry: 400 "); got.status != 400 || !found || text == "" {
			t.Errorf("%s answered %+v", host, got)
		}
		if got := send("k"); got.status != 201 || got.body != "created" {
			t.Errorf("%s answered %+v", host, got)
		}
	}
}

// The user's own error page keeps what clients need.
func TestErrorRouteKeepsRetryAfter(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	address, _ := startUpstream(t, func(http.ResponseWriter, *http.Request, int) {
		close(arrived)
		<-goOn
	})
	s := serve(t, "dedup {\nwait off\n}", "reverse_proxy "+address, "handle_errors {", `respond "try {err.status_code} again"`, "}")
	first := make(chan answer)
	go func() { first <- s.serveHTTP("k", "body") }()
	<-arrived
	got := s.serveHTTP("k", "body")
	if seconds, err := strconv.Atoi(got.header.Get("Retry-After")); got.status != 409 || got.body != "try 409 again" || err != nil || seconds < 1 {
		t.Errorf("got %+v", got)
	}
	close(goOn)
	if got := <-first; got.status != 200 {
		t.Errorf("the run got %+v", got)
	}
}

// sendRaw writes a POST with these header lines and all of its body before it reads, and reads
// one answer.
func (s *site) sendRaw(body string, header ...string) answer {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: raw.test\r\nConnection: close\r\n%s\r\n\r\n%s", strings.Join(header, "\r\n"), body); err != nil {
		s.t.Fatalf("writing the request: %v", err)
	}
	got, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		s.t.Fatalf("reading the answer: %v", err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{got.StatusCode, got.Header, string(text)}
}

// A client that writes all of its body before it reads would find its connection broken if
// the answer came without the body having been read.
func TestRefusalReachesAClientThatStillSends(t *testing.T) {
	address, runs := startUpstream(t, answers(201, "created"))
	s := serve(t, "dedup {", "on_missing reject", "}", "reverse_proxy "+address)
	large := strings.Repeat("x", 20<<20)
	length := fmt.Sprint("Content-Length: ", len(large))
	s.sendRaw(large, length, "Idempotency-Key: k").problem(t, 413, "request_too_large")
	s.sendRaw(large, length).problem(t, 400, "idempotency_key_missing")
	s.sendRaw(large, length, `Idempotency-Key: "broken`).problem(t, 400, "idempotency_key_invalid")
	s.sendRaw(fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(large), large), "Transfer-Encoding: chunked", "Idempotency-Key: k").problem(t, 413, "request_too_large")
	// One that declares too much is not told to send it.
	s.sendRaw("", length, "Expect: 100-continue", "Idempotency-Key: k").problem(t, 413, "request_too_large")
	if runs.Load() != 0 {
		t.Error("a refused request reached the upstream")
	}
}

// Caddy answers `Expect: 100-continue` once; a second one from the way to the upstream would
// be taken for the answer.
func TestExpectationIsAnsweredOnce(t *testing.T) {
	address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		if expect, ok := r.Header["Expect"]; ok {
			t.Errorf("the upstream got Expect %q", expect)
		}
	})
	s := serve(t, "dedup", "reverse_proxy "+address)
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "POST / HTTP/1.1\r\nHost: raw.test\r\nIdempotency-Key: k\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\nbody")
	in := bufio.NewReader(conn)
	for _, want := range []int{100, 200} {
		got, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got.Body.Close(); got.StatusCode != want {
			t.Fatalf("got %d, want %d", got.StatusCode, want)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("the upstream ran %d times", runs.Load())
	}
}

// A duplicate whose body is larger than max_request_body does not wait for the run: what is unread
// of it would stall its HTTP/2 connection, and the run on it.
func TestDuplicateWithAnUnreadBodyDoesNotWait(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		close(arrived)
		<-goOn
	})
	s := serve(t, "dedup {", "fingerprint none", "max_request_body 1KiB", "wait 10m", "}", "reverse_proxy "+address)
	first := make(chan answer, 1)
	go func() {
		got, _ := s.post("k", "small")
		first <- got
	}()
	<-arrived
	if got := s.mustPost("k", strings.Repeat("x", 64<<10)); got.status != 409 || !strings.Contains(got.body, "request_in_flight") {
		t.Errorf("the duplicate got %d %s", got.status, got.body)
	}
	close(goOn)
	if got := <-first; got.status != 200 || runs.Load() != 1 {
		t.Errorf("the first request got %+v after %d runs", got, runs.Load())
	}
}

// Refusal and record say why a response is not kept, under encrypt too. A response of exactly the limit is kept.
func TestResponseThatIsNotKeptSaysWhy(t *testing.T) {
	t.Setenv("TEST_KEY", "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=")
	address, _ := startUpstream(t, answers(201, "large"))
	whole := serve(t, "dedup {", "max_response_body 5", "}", "reverse_proxy "+address)
	whole.mustPost("k", "")
	if got := whole.mustPost("k", ""); got.status != 201 || got.body != "large" {
		t.Errorf("of a response of the limit the duplicate got %+v", got)
	}
	whole.stop()
	const why = "larger than max_response_body, 4 bytes"
	for _, encrypt := range []string{"", "encrypt {env.TEST_KEY}"} {
		s := serveWith(t, encrypt+"\nlocal_copies off", "dedup {", "max_response_body 4", "}", "reverse_proxy "+address)
		s.mustPost("k", "")
		if got := s.mustPost("k", ""); got.status != 409 || !strings.Contains(got.body, why) || !strings.Contains(s.only().Reason, why) {
			t.Errorf("%s: the duplicate got %s; the record has %q", encrypt, got.body, s.only().Reason)
		}
		s.stop()
	}
}

// One that waited for a failure too large to keep learns that a retry runs: otherwise it would read the
// refusal as that of a request which is done.
func TestFailureThatIsNotKeptSaysThatARetryRuns(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if n > 1 {
			answers(201, "done")(w, r, n)
			return
		}
		close(arrived)
		<-goOn
		answers(500, "large")(w, r, n)
	})
	s := serve(t, "dedup {", "max_response_body 4", "}", "reverse_proxy "+address)
	first, waited := make(chan answer), make(chan answer)
	go func() { first <- s.serveHTTP("k", "") }()
	<-arrived
	go func() { waited <- s.serveHTTP("k", "") }()
	s.waits()
	close(goOn)
	if got := <-first; got.status != 500 || got.body != "large" {
		t.Errorf("the run's client got %+v", got)
	}
	got := <-waited
	if p := got.problem(t, 409, "response_not_kept"); !strings.Contains(p.Detail, "answered with 500") || !strings.Contains(p.Detail, "released the key") {
		t.Errorf("the detail is %q", p.Detail)
	}
	if got := s.serveHTTP("k", ""); got.status != 201 || got.body != "done" {
		t.Errorf("the retry got %+v", got)
	}
}
