package caddymodule

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The directive `caught` is a subroute with error routes of its own, which only JSON has. They
// have a page, with the status in the variable `page`.
func init() {
	httpcaddyfile.RegisterHandlerDirective("caught", func(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
		handler, err := httpcaddyfile.ParseSegmentAsSubroute(h)
		if err != nil {
			return nil, err
		}
		page := caddyhttp.StaticResponse{StatusCode: "{http.vars.page}", Body: "sorry"}
		handler.(*caddyhttp.Subroute).Errors = &caddyhttp.HTTPErrorConfig{Routes: caddyhttp.RouteList{{
			HandlersRaw: []json.RawMessage{caddyconfig.JSONModuleObject(page, "handler", "static_response", nil)},
		}}}
		return handler, nil
	})
}

// A page that error routes behind make of an error is no answer of the upstream's: the error
// says how the run has ended.
func TestErrorPageOfASubrouteIsNoAnswer(t *testing.T) {
	const complete, released, held = idempotency.Complete, idempotency.Released, idempotency.Held
	dies := func(http.ResponseWriter, *http.Request, int) { panic(http.ErrAbortHandler) }
	failed := []string{"reverse_proxy {to} {", "@failed status 4xx 5xx", "handle_response @failed {", "error failed 500", "}", "}"}
	for name, c := range map[string]struct {
		upstream      any
		lines         []string // in place of reverse_proxy; {to} is the upstream
		page          int
		counted       bool
		release, hold idempotency.State
	}{
		"refused, shown as success":  {nil, nil, 200, false, released, released},
		"refused, shown as a 422":    {nil, nil, 422, false, released, released},
		"refused, shown as a 502":    {nil, nil, 502, false, released, released},
		"no answer, shown as a 503":  {dies, nil, 503, true, released, held},
		"no answer, shown as a 422":  {dies, nil, 422, true, released, held},
		"a 401 of another handler's": {nil, []string{"error 401"}, 400, false, released, released},
		"an answer of 500":           {answers(500, "broken"), failed, 500, true, released, released},
		"an answer of 402":           {answers(402, "declined"), failed, 402, true, complete, complete},
		"no error":                   {answers(201, "created"), nil, 201, true, complete, complete},
	} {
		for unknown, want := range map[string]idempotency.State{"release": c.release, "hold": c.hold} {
			t.Run(name+" under "+unknown, func(t *testing.T) {
				address, runs := nothing, new(atomic.Int64)
				if serve, ok := c.upstream.(func(http.ResponseWriter, *http.Request, int)); ok {
					address, runs = startUpstream(t, serve)
				}
				lines := []string{"route {", "dedup {", "on_unknown " + unknown, "}", "vars page " + strconv.Itoa(c.page), "caught {"}
				behind := c.lines
				if behind == nil {
					behind = []string{"reverse_proxy {to}"}
				}
				lines = append(lines, strings.Split(strings.ReplaceAll(strings.Join(behind, "\n"), "{to}", address), "\n")...)
				s := serve(t, append(lines, "}", "}")...)
				if got := s.mustPost("k", "body"); got.status != c.page {
					t.Fatalf("the client got %+v; want %d", got, c.page)
				}
				record := s.only()
				if counted := record.Attempt != 0; record.State != want || counted != c.counted {
					t.Errorf("the record is %s with attempt %d; want %s, counted %v", record.State, record.Attempt, want, c.counted)
				}
				ran := runs.Load()
				again := s.mustPost("k", "body")
				if replayed := again.header.Get("Idempotent-Replayed") != ""; replayed != (want == complete) || want != released && runs.Load() != ran {
					t.Errorf("the duplicate got %+v after %d runs", again, runs.Load())
				}
			})
		}
	}
}

// Within error routes the error is one of before: their answer is a run's like any other.
func TestRunWithinErrorRoutesIsKept(t *testing.T) {
	s := serve(t, "error failed 500", "handle_errors {", "route {", "dedup", "respond made 201", "}", "}")
	if first, again := s.mustPost("k", "body"), s.mustPost("k", "body"); first.status != 201 || again.header.Get("Idempotent-Replayed") != "true" {
		t.Errorf("got %+v, then %+v", first, again)
	}
}
