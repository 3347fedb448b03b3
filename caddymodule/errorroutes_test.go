package caddymodule

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Two directives are subroutes with error routes of their own, which only JSON has: those of `rescued` are
// a proxy to the upstream in the variable `stand_in`, those of `caught` a page with the status in `page`.
func init() {
	for name, handler := range map[string]json.RawMessage{
		"rescued": []byte(`{"handler":"reverse_proxy","upstreams":[{"dial":"{http.vars.stand_in}"}]}`),
		"caught":  []byte(`{"handler":"static_response","status_code":"{http.vars.page}","body":"sorry"}`),
	} {
		httpcaddyfile.RegisterHandlerDirective(name, func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
			subroute, err := httpcaddyfile.ParseSegmentAsSubroute(h)
			if err == nil {
				subroute.(*caddyhttp.Subroute).Errors = &caddyhttp.HTTPErrorConfig{Routes: caddyhttp.RouteList{{HandlersRaw: []json.RawMessage{handler}}}}
			}
			return subroute, err
		})
	}
}

// standIn is an upstream for error routes. It answers with 201, and returns what it has got.
func standIn(t *testing.T) (address string, got func() []string) {
	t.Helper()
	var mu sync.Mutex
	var requests []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if r.URL.Path == "/auth" || err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		requests = append(requests, r.Method+" "+r.URL.Path+" "+string(body)+r.Header.Get("If-Match")+r.Header.Get("Range")+r.Header.Get("Dedup-Key"))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "page")
	}))
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://"), func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(requests)
	}
}

// What error routes get of a request with a key, or of one that was refused, is a GET without a
// body: a proxy among them executes nothing, and its success is not the request's.
func TestErrorRoutesExecuteNothing(t *testing.T) {
	dead, _ := startUpstream(t, func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) })
	proxy := "reverse_proxy " + nothing
	for name, c := range map[string]struct {
		lines  []string // {auth} stands for a forward_auth
		key    string
		status int
	}{
		"not sent":                   {[]string{"dedup", proxy}, "k", 502},
		"no answer":                  {[]string{"dedup", "reverse_proxy " + dead}, "k", 502},
		"an error of a handler":      {[]string{"dedup", "error 401"}, "k", 401},
		"behind a rewrite":           {[]string{"rewrite * /inner", "dedup", proxy}, "k", 502},
		"behind forward_auth":        {[]string{"{auth}", "dedup", proxy}, "k", 502},
		"behind tracing":             {[]string{"tracing", "dedup", proxy}, "k", 502},
		"a key in the body":          {[]string{"dedup {\nkey json /id\n}", proxy}, "", 502},
		"a key in a body in a copy":  {[]string{"{auth}", "dedup {\nkey json /id\n}", proxy}, "", 502},
		"no handler":                 {[]string{"dedup"}, "k", 500},
		"refused":                    {[]string{"dedup {\non_missing reject\n}", proxy}, "", 400},
		"refused behind a rewrite":   {[]string{"rewrite * /inner", "dedup {\nmax_request_body 1\n}", proxy}, "k", 413},
		"the store failed":           {[]string{"dedup {\nstore redis redis://" + nothing + "\n}", proxy}, "k", 503},
		"unprotected":                {[]string{"dedup {\nstore redis redis://" + nothing + "\non_store_error pass\n}", proxy}, "k", 502},
		"in a subroute with its own": {[]string{"rescued {", "dedup", proxy, "}"}, "k", 502},
		"in a run":                   {[]string{"dedup", "dedup {\nscope shared inner\n}", proxy}, "k", 502},
		"no key, in a run":           {[]string{"dedup", "dedup {\nkey json /other\n}", proxy}, "k", 502},
		"in a run, and a subroute":   {[]string{"dedup", "rescued {", "dedup {\nscope shared inner\n}", proxy, "}"}, "k", 502},
		"refused in a run":           {[]string{"dedup", "rescued {", "dedup {\nscope shared inner\nkey header X-Other\non_missing reject\n}", proxy, "}"}, "k", 400},
	} {
		for _, body := range []string{`{"id":"7"}`, ""} {
			if body == "" && c.key == "" {
				continue // without a body there is no key in it
			}
			t.Run(name+" with the body "+body, func(t *testing.T) {
				address, got := standIn(t)
				lines := slices.Concat([]string{"route {", "vars stand_in " + address}, c.lines, []string{"}", "handle_errors {", "reverse_proxy " + address, "}"})
				text := strings.ReplaceAll(strings.Join(lines, "\n"), "{auth}", "forward_auth "+address+" {\nuri /auth\n}")
				status := c.status
				if body == "" && status == 413 {
					status = 502
				}
				if answer := serve(t, text).mustPost(c.key, body, "If-Match", `"v3"`, "Range", "bytes=0-1"); answer.status != status || answer.body != "page" {
					t.Errorf("the client got %d %q; want %d with the page", answer.status, answer.body, status)
				}
				if requests := got(); !slices.Equal(requests, []string{"GET / "}) {
					t.Errorf("the error routes have sent %q", requests)
				}
			})
		}
	}
}

// A request without a key is none of our business: error routes get it as the server gives it to
// them, and whole also where the key was looked for in its body.
func TestErrorRoutesWithoutAKey(t *testing.T) {
	proxy := "reverse_proxy " + nothing
	for name, lines := range map[string][]string{
		"alone":                       {"dedup", proxy},
		"behind a rewrite":            {"rewrite * /inner", "dedup", proxy},
		"no key in the body":          {"dedup {\nkey json /other\n}", proxy},
		"no key in a body in a copy":  {"{auth}", "dedup {\nkey json /other\n}", proxy},
		"a body too large for a key":  {"{auth}", "dedup {\nmode webhook\nkey json /id\nmax_request_body 5\n}", proxy},
		"in a subroute with its own":  {"rescued {", "dedup {\nkey json /other\n}", proxy, "}"},
		"behind tracing, in the body": {"tracing", "dedup {\nkey json /other\n}", proxy},
	} {
		t.Run(name, func(t *testing.T) {
			address, got := standIn(t)
			all := slices.Concat([]string{"route {", "vars stand_in " + address}, lines, []string{"}", "handle_errors {", "reverse_proxy " + address, "}"})
			s := serve(t, strings.ReplaceAll(strings.Join(all, "\n"), "{auth}", "forward_auth "+address+" {\nuri /auth\n}"))
			for _, r := range []request{with(`{"id":"7"}`), with(`{"id":"7"}`, chunked)} {
				if got := s.must(r); got.status != 201 {
					t.Errorf("the client got %+v; want the 201 of the stand-in", got)
				}
			}
			if requests, want := got(), `POST / {"id":"7"}`; !slices.Equal(requests, []string{want, want}) {
				t.Errorf("the error routes have sent %q", requests)
			}
		})
	}
}

// Where no error route answers, the client gets our problem, or the error's status.
func TestNoErrorRouteAnswers(t *testing.T) {
	for name, routes := range map[string][]string{
		"none":          nil,
		"none matches":  {"handle_errors 418 {", "respond page", "}"},
		"a bare status": {"handle_errors {", `respond "" {err.status_code}`, "}"},
		"they fail":     {"handle_errors {", "error failed 500", "}"},
		"write nothing": {"handle_errors {", "header X-A 1", "}"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serve(t, append(routes, "dedup {\nmax_request_body 5\n}", "reverse_proxy "+nothing)...)
			if got := s.mustPost("k", "too large"); got.status != 413 || !strings.Contains(got.body, `"code":"request_too_large"`) {
				t.Errorf("the refused request got %d %q", got.status, got.body)
			}
			if got := s.mustPost("k", "body"); got.status != 502 || got.body != "" {
				t.Errorf("the request that failed got %d %q", got.status, got.body)
			}
		})
	}
}

// What an error page asks an upstream for is not part of the run of a dedup in front.
func TestErrorPageInARunIsNotSent(t *testing.T) {
	address, _ := standIn(t)
	s := serve(t, "route {", "dedup {", "on_unknown hold", "}", "dedup {", "on_unknown hold", "scope shared inner", "}", "reverse_proxy "+nothing, "}",
		"handle_errors {", "reverse_proxy "+address, "}")
	if got := s.mustPost("k", "body"); got.status != 502 {
		t.Errorf("the client got %d", got.status)
	}
	page := s.listed()
	if len(page) != 2 {
		t.Errorf("the site has %d records; want 2", len(page))
	}
	for _, kept := range page {
		if r := kept.Record; r.State != idempotency.Released || r.Attempt != 0 {
			t.Errorf("a key is %s after %d attempts, want it released after none", r.State, r.Attempt)
		}
	}
}

// The requests that waited for a run without an answer get the error of its client, as a page of the error
// routes, which execute nothing for them either.
func TestErrorRoutesOfRequestsThatWaited(t *testing.T) {
	arrived, goOn := make(chan struct{}), make(chan struct{})
	dead, runs := startUpstream(t, func(http.ResponseWriter, *http.Request, int) {
		close(arrived)
		<-goOn
		panic(http.ErrAbortHandler)
	})
	address, got := standIn(t)
	s := serve(t, "dedup", "reverse_proxy "+dead, "handle_errors {", "reverse_proxy "+address, "}")
	ran, waited := make(chan answer), make(chan answer)
	go func() { ran <- s.serveHTTP("k", "body") }()
	<-arrived
	go func() { waited <- s.serveHTTP("k", "body") }()
	s.waits()
	close(goOn)
	first := <-ran
	if first.status != 502 || first.body != "page" || first.header.Get("Idempotent-Replayed") != "" {
		t.Errorf("the run's client got %+v", first)
	}
	(<-waited).replays(t, first)
	if requests := got(); !slices.Equal(requests, []string{"GET / ", "GET / "}) || runs.Load() != 1 {
		t.Errorf("the error routes have sent %q after %d runs", requests, runs.Load())
	}
}

// A handler of ours among the error routes refuses by itself, and does not call its own route.
func TestErrorRouteThatRefuses(t *testing.T) {
	s := serve(t, "route /must {", "dedup {\non_missing reject\n}", "}", "route {", "dedup", "reverse_proxy "+nothing, "}",
		"handle_errors {", "dedup {\non_missing reject\n}", `respond "in error"`, "}")
	for _, body := range []string{"", "body"} {
		s.send(with(body)).problem(t, 400, "idempotency_key_missing")
		for want, requests := range map[int][]request{400: {with(body, "/must"), with(body, `Idempotency-Key: "open`)}, 502: {with(body, "Idempotency-Key: k"+body)}} {
			for _, r := range requests {
				if got := s.send(r); got.status != want || got.body != "in error" {
					t.Errorf("%s got %+v, want %d", r, got, want)
				}
			}
		}
	}
}

// What fails without a key is logged, although its error routes run here.
func TestFailureWithoutAKeyIsLogged(t *testing.T) {
	s := serve(t, "dedup {", "key json /id", "mode api", "}", "reverse_proxy "+nothing, "handle_errors {", "respond page", "}")
	logged := s.logged(zap.ErrorLevel)
	if got := s.mustPost("", "{}"); got.status != 502 || got.body != "page" || logged.FilterMessage("the request failed").Len() != 1 {
		t.Errorf("got %+v, logged %v", got, logged.All())
	}
}

// Within error routes the error is one of before: their answer is a run's like any other.
func TestRunWithinErrorRoutesIsKept(t *testing.T) {
	s := serve(t, "error failed 500", "handle_errors {", "route {", "dedup", "respond made 201", "}", "}")
	if first, again := s.mustPost("k", "body"), s.mustPost("k", "body"); first.status != 201 || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("got %+v, then %+v", first, again)
	}
}
