package caddymodule

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Every way in which a chain with a real reverse_proxy ends, and what the store
// then says, under both settings of `on_unknown`.
func TestEndsOfARealChain(t *testing.T) {
	const complete, released, held = idempotency.Complete, idempotency.Released, idempotency.Held
	hangs := func(w http.ResponseWriter, r *http.Request, _ int) { <-r.Context().Done() }
	cut := func(w http.ResponseWriter, _ *http.Request, _ int) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "cut off")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	dies := func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) }
	// A proxy flushes it in a goroutine of a timer, where a panic would end the process.
	start := func(w http.ResponseWriter, _ *http.Request, _ int) {
		_ = http.NewResponseController(w).Flush()
		time.Sleep(50 * time.Millisecond)
	}
	h2c := []string{"reverse_proxy h2c://{to}"}
	caught := func(page int, lines ...string) []string {
		return slices.Concat([]string{fmt.Sprint("vars page ", page), "caught {"}, lines, []string{"}"})
	}
	php := []string{"reverse_proxy {to} {", "transport fastcgi {", "root /", "}", "}"}
	accel := []string{"reverse_proxy {to} {", "transport fastcgi {", "root /", "}", "@accel header X-Accel-Redirect *",
		"handle_response @accel {", "reverse_proxy {refused}", "}", "}"}
	intercepted := slices.Concat([]string{"intercept {", "@accel header X-Accel-Redirect *", "handle_response @accel {", "reverse_proxy {refused}", "}", "}"}, php)
	errorOf := []string{"reverse_proxy {to} {", "@failed status 4xx 5xx", "handle_response @failed {", "error failed {rp.status_code}", "}", "}"}
	twice := []string{"reverse_proxy {to} {", "lb_retries 1", "request_buffers 1KiB", "lb_retry_match `{rp.status_code} == 503`", "}"}
	const tooLong = "longer than timeout"
	const page = "Status: 201 Created\r\nContent-Type: application/json\r\n"
	for name, c := range map[string]struct {
		upstream any      // func(http.ResponseWriter, *http.Request, int), http.HandlerFunc over HTTP/2, or func(net.Conn)
		lines    []string // in place of reverse_proxy; {to} is the upstream
		status   int      // that the client gets, 0 for a connection that is cut
		counted  bool
		release  idempotency.State
		hold     idempotency.State
	}{
		"answered 201":          {answers(201, "created"), nil, 201, true, complete, complete},
		"answered 500":          {answers(500, "broken"), nil, 500, true, released, released},
		"answered 502":          {answers(502, "bad gateway"), nil, 502, true, released, held},
		"no content":            {answers(204, ""), nil, 204, true, complete, complete},
		"refused connection":    {nil, []string{"reverse_proxy {refused}"}, 502, false, released, released},
		"no upstream":           {nil, []string{"reverse_proxy {", "dynamic a {", "name nothing.invalid", "port 80", "}", "}"}, 503, false, released, released},
		"no answer":             {dies, nil, 502, true, released, held},
		"answer too late":       {hangs, []string{"reverse_proxy {to} {", "transport http {", "response_header_timeout 50ms", "}", "}"}, 504, true, released, held},
		tooLong:                 {hangs, nil, 504, true, released, held},
		"cut in mid-body":       {cut, nil, 0, true, released, held},
		"masked 500":            {answers(500, "broken"), []string{"reverse_proxy {to} {", "@broken status 500", "handle_response @broken {", "respond masked 200", "}", "}"}, 200, true, released, released},
		"swallowed 500":         {answers(500, "broken"), []string{"reverse_proxy {to} {", "@broken status 500", "handle_response @broken {", "vars x y", "}", "}"}, 200, true, released, released},
		"swallowed 201":         {answers(201, "created"), []string{"reverse_proxy {to} {", "handle_response {", "vars x y", "}", "}"}, 200, true, complete, complete},
		"another protocol":      {afterRequest("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n"), nil, 502, true, released, held},
		"error page of a 500":   {answers(500, "broken"), errorOf, 500, true, released, released},
		"error page of a 402":   {answers(402, "declined"), errorOf, 402, true, released, held}, // which is not to run again, and cannot be kept
		"tried twice, both 503": {answers(503, "busy"), twice, 503, true, released, released},
		"tried twice, no second answer": {func(w http.ResponseWriter, _ *http.Request, n int) {
			if n%2 == 0 {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(503)
		}, twice, 502, true, released, held},
		"another handler's 401": {answers(201, ""), []string{"error 401", "reverse_proxy {to}"}, 401, false, released, released},
		"nothing handled it":    {nil, []string{"vars x y"}, 500, false, released, released},
		"another handler's 200": {nil, []string{"respond done 200"}, 200, true, complete, complete},
		"aborted before":        {nil, []string{"abort"}, 0, false, released, released},
		"retried elsewhere":     {answers(201, "created"), []string{"reverse_proxy {refused} {to} {", "lb_policy first", "lb_retries 3", "lb_try_interval 1ms", "fail_duration 1m", "}"}, 201, true, complete, complete},
		"retried after a death": {dies, []string{"reverse_proxy {to} {refused} {", "lb_policy first", "lb_retries 3", "lb_try_interval 1ms", "fail_duration 1m", "}"}, 502, true, released, held},
		"upstream wishes no key": {func(w http.ResponseWriter, _ *http.Request, _ int) {
			w.Header().Set("Dedup-Retention", "0")
			w.WriteHeader(201)
		}, nil, 201, true, released, released},
		"HTTP/2, " + tooLong: {http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), h2c, 504, true, released, held},
		"HTTP/2, no answer":  {http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), h2c, 502, true, released, held},
		// Its length is reached, and its end does not come.
		"HTTP/2, cut behind the last byte": {http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "7")
			_, _ = io.WriteString(w, "created")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}), h2c, 0, true, released, held},
		// A page that error routes behind make of an error is no answer: the error says how the run has ended.
		"refused, shown as success":               {nil, caught(200, "reverse_proxy {refused}"), 200, false, released, released},
		"refused, shown as a 502":                 {nil, caught(502, "reverse_proxy {refused}"), 502, false, released, released},
		"no answer, shown as a 422":               {dies, caught(422, "reverse_proxy {to}"), 422, true, released, held},
		"a 401, shown as a 400":                   {nil, caught(400, "error 401"), 400, false, released, released},
		"an answer of 500, shown":                 {answers(500, "broken"), caught(500, errorOf...), 500, true, released, released},
		"an answer of 402, shown":                 {answers(402, "declined"), caught(402, errorOf...), 402, true, complete, complete},
		"no error, and error routes":              {answers(201, "created"), caught(200, "reverse_proxy {to}"), 201, true, complete, complete},
		"FastCGI, a length":                       {fastCGI(page+"Content-Length: 2\r\n\r\n{}", 0, true), php, 201, true, complete, complete},
		"FastCGI, cut from its length":            {fastCGI(page+"Content-Length: 9\r\n\r\n{}", 0, true), php, 0, true, released, held},
		"FastCGI, no content":                     {fastCGI("Status: 204 No Content\r\n\r\n", 0, true), php, 204, true, complete, complete},
		"FastCGI, no content, and some":           {fastCGI("Status: 204 No Content\r\n\r\n{}", 0, true), php, 204, true, complete, complete},
		"a body that becomes no content":          {answers(201, "created"), []string{"reverse_proxy {to} {", "replace_status 204", "}"}, 204, true, complete, complete},
		"a body that becomes no change":           {answers(201, "created"), []string{"intercept {", "replace_status 304", "}", "reverse_proxy {to}"}, 304, true, complete, complete},
		"FastCGI, no length":                      {fastCGI(page+"\r\n{}", 0, true), php, 201, true, complete, complete},
		"FastCGI, no end":                         {fastCGI(page+"\r\n{\"half\":", 0, false), php, 201, true, complete, complete},
		"no status of HTTP":                       {start, []string{"reverse_proxy {to} {", "@any status 2xx", "replace_status @any 1000", "}"}, 0, true, released, held},
		"FastCGI, no status of HTTP":              {fastCGI("Status: 1000 x\r\nContent-Length: 2\r\n\r\n{}", 0, true), php, 0, true, released, held},
		"FastCGI, then a refused connection":      {fastCGI("Status: 200 OK\r\nX-Accel-Redirect: /next\r\n\r\n", 0, true), accel, 502, true, released, held},
		"FastCGI, around it a refused connection": {fastCGI("Status: 200 OK\r\nX-Accel-Redirect: /next\r\n\r\n", 0, true), intercepted, 502, true, released, held},
		"FastCGI, nothing":                        {fastCGI("", 0, false), php, 502, true, released, held},
		"FastCGI, no end of a record":             {fastCGI(page+"\r\n{\"half\":  ", 2, false), php, 201, true, complete, complete},
	} {
		for unknown, want := range map[string]idempotency.State{"release": c.release, "hold": c.hold} {
			t.Run(name+" under "+unknown, func(t *testing.T) {
				address, runs := "", new(atomic.Int64)
				switch serve := c.upstream.(type) {
				case func(http.ResponseWriter, *http.Request, int):
					address, runs = startUpstream(t, serve)
				case http.HandlerFunc:
					address, runs = http2Upstream(t, serve)
				case func(net.Conn):
					address, runs = rawUpstream(t, serve)
				}
				behind := c.lines
				if behind == nil {
					behind = []string{"reverse_proxy {to}"}
				}
				timeout := "1m" // which a slow machine does not reach
				if strings.HasSuffix(name, tooLong) {
					timeout = "300ms"
				}
				lines := []string{"route {", "header >X-Run {http.dedup.execution_id}", "dedup {", "on_unknown " + unknown, "timeout " + timeout, "}"}
				for _, line := range behind {
					line = strings.ReplaceAll(line, "{to}", address)
					lines = append(lines, strings.ReplaceAll(line, "{refused}", nothing))
				}
				s := serve(t, append(lines, "}")...)
				got, err := s.post("k", "body")
				if err == nil && got.status != c.status || err != nil && c.status != 0 {
					t.Fatalf("the client got %+v, %v; want %d", got, err, c.status)
				}
				record := s.only()
				attempt := 0
				if c.counted {
					attempt = 1
				}
				if record.State != want || record.Attempt != attempt {
					t.Errorf("the record is %s with attempt %d; want %s with attempt %d", record.State, record.Attempt, want, attempt)
				}
				ran := runs.Load()
				again, err := s.post("k", "body")
				if want == complete && (err != nil || again.header.Get("Idempotent-Replayed") != "true" || runs.Load() != ran) {
					t.Errorf("the duplicate of a kept answer got %+v, %v after %d runs", again, err, runs.Load())
				}
				if want == held && (again.status != 409 || runs.Load() != ran) {
					t.Errorf("the duplicate of a held run got %+v, %v after %d runs", again, err, runs.Load())
				}
				if want == released && err == nil && again.header.Get("Idempotent-Replayed") != "" {
					t.Errorf("a released answer was replayed: %+v", again)
				}
			})
		}
	}
}

// An error that a handler makes of the last attempt's response is not kept in its place.
func TestErrorOfTheLastAttempt(t *testing.T) {
	address, runs := startUpstream(t, answers(500, "broken"))
	s := serve(t, "route {", "dedup {", "max_attempts 1", "}", "reverse_proxy "+address+" {", "@failed status 5xx", "handle_response @failed {", "error failed 500", "}", "}", "}")
	if got := s.mustPost("k", "body"); got.status != 500 {
		t.Errorf("the run's client got %+v", got)
	}
	s.mustPost("k", "body").problem(t, 409, "attempts_exhausted")
	if runs.Load() != 1 {
		t.Errorf("it ran %d times", runs.Load())
	}
}

// What has reached an upstream stays unknown even if a dedup behind it sends nothing.
func TestDedupBehindTakesNoEvidenceBack(t *testing.T) {
	for name, inner := range map[string]string{"that runs": "scope shared inner", "that does not claim": "key header X-Absent"} {
		t.Run(name, func(t *testing.T) {
			address, runs := rawUpstream(t, fastCGI("Status: 200 OK\r\nX-Accel-Redirect: /next\r\n\r\n", 0, true))
			s := serve(t, "route {", "dedup {", "on_unknown hold", "}", "reverse_proxy "+address+" {", "transport fastcgi {", "root /", "}",
				"@accel header X-Accel-Redirect *", "handle_response @accel {", "route {", "dedup {", inner, "}", "reverse_proxy "+nothing, "}", "}", "}", "}")
			if got := s.mustPost("k", ""); got.status != 502 {
				t.Fatalf("the client got %+v", got)
			}
			if got := s.mustPost("k", ""); got.status != 409 || runs.Load() != 1 {
				t.Errorf("the duplicate got %+v after %d runs", got, runs.Load())
			}
		})
	}
}

// A run continues after its client has disconnected.
func TestEndWithoutItsClient(t *testing.T) {
	arrived, leave := make(chan struct{}), make(chan struct{})
	address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		close(arrived)
		<-leave
		_, _ = io.WriteString(w, "done")
	})
	s := serve(t, "dedup", "reverse_proxy "+address)
	client, disconnect := context.WithCancel(t.Context())
	go s.Config.Handler.ServeHTTP(httptest.NewRecorder(), with("body", "Host: "+s.Listener.Addr().String(), "Idempotency-Key: k").http().WithContext(client))
	<-arrived
	disconnect()
	close(leave)
	deduptest.Eventually(t, "the run has ended with its answer", func() bool { return s.only().State == idempotency.Complete })
	if got := s.mustPost("k", "body"); got.status != 200 || got.body != "done" || got.header.Get("Idempotent-Replayed") != "true" || runs.Load() != 1 {
		t.Errorf("the duplicate got %+v after %d runs", got, runs.Load())
	}
}

// While a run waits for room its own time stands still: what others hold does not cut an
// answer that the upstream has given.
func TestWaitingForRoomCostsNoTimeout(t *testing.T) {
	others, released := &budget.Allowance{Budget: buffered}, make(chan struct{})
	address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		others.Count(400 << 10) // from here on there is no room
		go func() {
			defer close(released)
			for range 20 { // as long as some is released now and then, no run may exceed the limit
				time.Sleep(100 * time.Millisecond)
				others.Release(1)
			}
			others.ReleaseAll()
		}()
		answers(201, strings.Repeat("x", 50_000))(w, r, n)
	})
	s := serveWith(t, "limits {\nbuffered 400KiB\n}", "dedup {\ntimeout 1s\n}", "reverse_proxy "+address)
	if got := s.mustPost("k", ""); got.status != 201 || len(got.body) != 50_000 || runs.Load() != 1 {
		t.Errorf("got %d with %d bytes after %d runs", got.status, len(got.body), runs.Load())
	}
	<-released
}

// While nine tenths of buffered are taken no new run starts, with a body or without. What is kept is replayed.
func TestNoNewRunWithoutRoom(t *testing.T) {
	address, runs := startUpstream(t, answers(201, "created"))
	s := serveWith(t, "limits {\nbuffered 1MiB\n}", "dedup", "reverse_proxy "+address)
	kept := s.mustPost("kept", "")
	others := &budget.Allowance{Budget: buffered}
	others.Count(1 << 20)
	for _, body := range []string{"", "body"} {
		if got := s.mustPost("new", body); got.problem(t, 503, "overloaded").ExecutionID != "" || got.header.Get("Retry-After") == "" {
			t.Errorf("it got %+v", got)
		}
	}
	s.mustPost("kept", "").replays(t, kept)
	others.ReleaseAll()
	if got := s.mustPost("new", "body"); got.status != 201 || runs.Load() != 2 {
		t.Errorf("with room it got %+v after %d runs", got, runs.Load())
	}
}

// The upstream gets the number of the attempt from the second one on: that of the last dedup, never
// that of a dedup in front or of a client.
func TestAttemptsThatTheUpstreamGets(t *testing.T) {
	var got []string
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		got = append(got, r.Header.Get("Dedup-Attempt")+" of "+r.Header.Get("Idempotency-Key"))
		if n < 5 {
			w.WriteHeader(500)
		}
	})
	inner := "dedup {\nkey value {http.request.header.X-Inner} inner\n}"
	s := serve(t, "route {", "dedup", inner, "reverse_proxy "+address, "}")
	for _, header := range [][]string{nil, nil, {"X-Inner", "1"}, {"X-Inner", "1"}, nil} {
		s.mustPost("k", "body", append(header, "Dedup-Attempt", "9")...)
	}
	if want := []string{" of k", "2 of k", " of k", "2 of k", "5 of k"}; !slices.Equal(got, want) {
		t.Errorf("the upstream got the attempts %q, want %q", got, want)
	}
}
