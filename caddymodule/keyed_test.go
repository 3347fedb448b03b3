package caddymodule

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// request is a request of a table: its body, and the lines in which it differs from POST /: a
// method, a target, header fields.
type request struct {
	body  string
	lines []string
}

func with(body string, lines ...string) request { return request{body, lines} }

// as returns the request with more lines.
func (r request) as(lines ...string) request { return with(r.body, append(r.lines, lines...)...) }

// chunked is the line of a request over a connection whose length is not declared.
const chunked = "chunked"

// bodies are requests that differ in their bodies.
func bodies(texts ...string) (all []request) {
	for _, text := range texts {
		all = append(all, with(text))
	}
	return all
}

// each are requests that differ in one line.
func each(lines ...string) (all []request) {
	for _, line := range lines {
		all = append(all, with("body", line))
	}
	return all
}

func (r request) String() string { return fmt.Sprintf("%q with %.60q", r.lines, r.body) }

// anyHost is the host of requests without a connection.
const anyHost = "dedup.test"

// http parses the request as a server does.
func (r request) http() *http.Request {
	method, target, host, header := "POST", "/", "Host: "+anyHost+"\r\n", ""
	for _, line := range r.lines {
		switch {
		case line == chunked:
		case strings.HasPrefix(line, "/"):
			target = line
		case strings.HasPrefix(line, "Host:"):
			host = line + "\r\n"
		case strings.Contains(line, ":"):
			header += line + "\r\n"
		default:
			method = line
		}
	}
	text := fmt.Sprintf("%s %s HTTP/1.1\r\n%s%sContent-Length: %d\r\n\r\n%s", method, target, host, header, len(r.body), r.body)
	parsed, err := http.ReadRequest(bufio.NewReader(strings.NewReader(text)))
	if err != nil {
		panic(err)
	}
	parsed.RemoteAddr = "192.0.2.1:1234"
	return parsed
}

// send serves a request without a connection.
func (s *site) send(r request) answer {
	w := httptest.NewRecorder()
	s.Config.Handler.ServeHTTP(w, r.http())
	return answer{w.Code, w.Header(), w.Body.String()}
}

// echo is an upstream that answers with the body and the idempotency key that it gets.
func echo(t *testing.T) (address string, runs *atomic.Int64) {
	t.Helper()
	runs = new(atomic.Int64)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Target", r.RequestURI)
		w.Header()["X-Key"] = r.Header["Idempotency-Key"]
		w.WriteHeader(201)
		_, _ = w.Write(body)
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), runs
}

// keyed says what becomes of the requests that a site gets, one after the other.
type keyed struct {
	site    string      // {up} is the upstream; without it, lines of a dedup in front of one
	groups  [][]request // those of one group, and no others, have one key
	pass    []request   // without a key
	refused map[string][]request
}

func (c keyed) check(t *testing.T) {
	t.Helper()
	address, runs := echo(t)
	lines := c.site
	if !strings.Contains(lines, "{up}") {
		lines = "dedup {\n" + lines + "\n}\nreverse_proxy {up}"
	}
	s := serve(t, strings.ReplaceAll(lines, "{up}", address))
	defer s.stop()
	send := func(r request) (got answer, executionID string, replayed bool) {
		got = s.send(r)
		return got, got.header.Get("Dedup-Execution-Id"), got.header.Get("Idempotent-Replayed") != ""
	}
	unchanged := func(r request, got answer) bool {
		return got.status == 201 && got.body == r.body && slices.Equal(got.header["X-Key"], r.http().Header["Idempotency-Key"])
	}
	var firsts []string
	for _, group := range c.groups {
		got, id, replayed := send(group[0])
		if !unchanged(group[0], got) || replayed || id == "" {
			t.Fatalf("%s got %d %.300q, want a run of its own", group[0], got.status, got.body)
		}
		firsts = append(firsts, id)
	}
	for i, group := range c.groups {
		for _, r := range group {
			if got, id, replayed := send(r); !replayed || id != firsts[i] {
				t.Errorf("%s got %d %.300q, want the answer to %s", r, got.status, got.body, group[0])
			}
		}
	}
	for _, r := range slices.Concat(c.pass, c.pass) {
		if got, id, _ := send(r); !unchanged(r, got) || id != "" {
			t.Errorf("%s got %d %.300q, want it passed", r, got.status, got.body)
		}
	}
	for code, requests := range c.refused {
		for _, r := range requests {
			got, _, _ := send(r)
			var problem struct{ Code string }
			if err := json.Unmarshal([]byte(got.body), &problem); err != nil || got.status < 400 || problem.Code != code {
				t.Errorf("%s got %d %.300q, want %s", r, got.status, got.body, code)
			}
		}
	}
	if want := len(c.groups) + 2*len(c.pass); runs.Load() != int64(want) {
		t.Errorf("the upstream ran %d times, want %d", runs.Load(), want)
	}
}

func checkKeys(t *testing.T, table map[string]keyed) {
	t.Helper()
	for name, c := range table {
		t.Run(name, c.check)
	}
}

const (
	missing = "idempotency_key_missing"
	invalid = "idempotency_key_invalid"
	reused  = "idempotency_key_reused"
)

func refuses(code string, requests ...request) map[string][]request {
	return map[string][]request{code: requests}
}
