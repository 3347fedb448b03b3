package exchange

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// The ways in which the handlers behind can end: what they return, what they have
// written by then, and what was seen of the way to an upstream.
var (
	returned = map[string]error{
		"nothing":  nil,
		"an error": errors.New("no"),
		"502":      caddyhttp.Error(502, errors.New("connection refused")),
		"504":      caddyhttp.Error(504, errors.New("timed out")),
		"a panic":  errAborted,
	}
	wrote = map[string]func(c *capture){
		"nothing":        func(*capture) {},
		"a header alone": func(c *capture) { c.Header().Set("X-Own", "1") },
		"a whole answer": func(c *capture) {
			c.WriteHeader(201)
			_, _ = io.WriteString(c, "created")
		},
		"no content": func(c *capture) { c.WriteHeader(204) },
		"a cut answer": func(c *capture) {
			c.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(c, "cut")
		},
		"499":        func(c *capture) { c.WriteHeader(statusClientGone) },
		"an upgrade": func(c *capture) { c.WriteHeader(http.StatusSwitchingProtocols) },
	}
	ways = map[string]upstreamWay{
		"none":                    {},
		"sought":                  {sought: true},
		"sent":                    {maybeSent: true},
		"sent, answered 500":      {maybeSent: true, status: 500},
		"sent, answered 499":      {maybeSent: true, status: 499},
		"a 503 that was not sent": {status: 503},
		"shown":                   {failed: errors.New("no")},
		"sent, shown":             {maybeSent: true, failed: errors.New("no")},
		"answered 500, shown":     {maybeSent: true, status: 500, failed: errors.New("no")},
	}
)

// endTable is what the contract says of "How a run ends" (section 4), for what a
// handler can see. An empty field stands for any value. Every case must be in
// exactly one row.
var endTable = []struct {
	returned, wrote, way []string
	how                  idempotency.How
	status               int // of what those get who wait; 0: that of the error
	failed, frees        bool
	none                 bool // nothing: those who wait run
}{
	{wrote: of("an upgrade"), how: idempotency.Unknown, none: true},
	{returned: of("a panic"), wrote: but("an upgrade"), how: idempotency.Unknown, failed: true},

	// An error: what was written of an answer is none.
	{returned: of("an error", "502", "504"), wrote: of("nothing", "a header alone"), way: of("none", "sought", "a 503 that was not sent", "shown"), how: idempotency.NotSent, failed: true},
	{returned: of("an error", "502", "504"), wrote: of("nothing", "a header alone"), way: of("sent", "sent, answered 500", "sent, answered 499", "sent, shown", "answered 500, shown"), how: idempotency.Unknown, failed: true},
	{returned: of("an error", "502", "504"), wrote: but("nothing", "a header alone", "an upgrade"), how: idempotency.Unknown, failed: true},

	// No error.
	{returned: of("nothing"), wrote: of("a whole answer"), way: exceptShown, how: idempotency.Answered, status: 201},
	{returned: of("nothing"), wrote: of("no content"), way: exceptShown, how: idempotency.Answered, status: 204},
	{returned: of("nothing"), wrote: of("a whole answer"), way: of("shown"), how: idempotency.NotSent, status: 201},
	{returned: of("nothing"), wrote: of("no content"), way: of("shown"), how: idempotency.NotSent, status: 204},
	{returned: of("nothing"), wrote: of("499"), way: of("shown"), how: idempotency.NotSent, status: 499},
	{returned: of("nothing"), wrote: of("a whole answer"), way: of("sent, shown"), how: idempotency.Unknown, status: 201},
	{returned: of("nothing"), wrote: of("no content"), way: of("sent, shown"), how: idempotency.Unknown, status: 204},
	{returned: of("nothing"), wrote: of("499"), way: of("sent, shown"), how: idempotency.Unknown, status: 499},
	{returned: of("nothing"), wrote: of("a cut answer"), how: idempotency.Unknown, failed: true},
	{returned: of("nothing"), wrote: of("499"), way: of("sent", "sent, answered 500", "answered 500, shown"), how: idempotency.Unknown, failed: true},
	{returned: of("nothing"), wrote: of("499"), way: of("sought"), how: idempotency.NotSent, failed: true},
	{returned: of("nothing"), wrote: of("499"), way: of("none", "a 503 that was not sent", "sent, answered 499"), how: idempotency.Answered, status: 499},
	{returned: of("nothing"), wrote: of("nothing", "a header alone"), way: of("none", "sought", "shown"), how: idempotency.NotSent, status: 200},
	{returned: of("nothing"), wrote: of("nothing", "a header alone"), way: of("sent", "sent, shown"), how: idempotency.Unknown, failed: true},
	{returned: of("nothing"), wrote: of("nothing", "a header alone"), way: of("a 503 that was not sent"), how: idempotency.Answered, status: 200, frees: true},
	{returned: of("nothing"), wrote: of("nothing", "a header alone"), way: of("sent, answered 500", "sent, answered 499", "answered 500, shown"), how: idempotency.Answered, status: 200},
}

var exceptShown = of("none", "sought", "sent", "sent, answered 500", "sent, answered 499", "a 503 that was not sent", "answered 500, shown")

func of(names ...string) []string { return names }

// but returns all the ways of writing except some.
func but(names ...string) []string {
	var others []string
	for name := range wrote {
		if !contains(names, name) {
			others = append(others, name)
		}
	}
	return others
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func fits(names []string, name string) bool { return len(names) == 0 || contains(names, name) }

func TestConcludeOverItsWholeDomain(t *testing.T) {
	used := make([]int, len(endTable))
	for what, err := range returned {
		for how, write := range wrote {
			for path, way := range ways {
				name := fmt.Sprintf("returned %s, wrote %s, way %s", what, how, path)
				row := -1
				for i, r := range endTable {
					if !fits(r.returned, what) || !fits(r.wrote, how) || !fits(r.way, path) {
						continue
					}
					if row >= 0 {
						t.Fatalf("%s: rows %d and %d of the table both say what is right", name, row, i)
					}
					row = i
				}
				if row < 0 {
					t.Fatalf("%s: no row of the table says what is right", name)
				}
				used[row]++
				want := endTable[row]
				answer := captureOn(httptest.NewRecorder(), 1<<20)
				write(answer)
				end := conclude(err, answer, way)
				if want.none {
					if end.How != want.how || end.Response != nil {
						t.Errorf("%s: got %+v with %+v; want %v with nothing", name, end, end.Response, want.how)
					}
					continue
				}
				status := want.status
				var handlerError caddyhttp.HandlerError
				switch {
				case !want.failed:
				case errors.As(err, &handlerError):
					status = handlerError.StatusCode
				case err == nil || errors.Is(err, errAborted):
					status = 502
				default:
					status = 500
				}
				if end.How != want.how || end.UpstreamStatus != way.status || end.Response.Status != status || end.Response.Failed != want.failed {
					t.Errorf("%s: got %+v with %+v; want %v with %d, failed %v", name, end, end.Response, want.how, status, want.failed)
				}
				if want.frees != (end.Retention != nil && *end.Retention == 0) {
					t.Errorf("%s: its retention is %v", name, end.Retention)
				}
				if end.How == idempotency.Answered && how == "a whole answer" && string(end.Response.Body) != "created" {
					t.Errorf("%s: the body is %q", name, end.Response.Body)
				}
				if how == "a header alone" && end.How != idempotency.Unknown && len(end.Response.Header["X-Own"]) != 1 {
					t.Errorf("%s: the header is %v", name, end.Response.Header)
				}
			}
		}
	}
	for row, n := range used {
		if n == 0 {
			t.Errorf("no case is in row %d of the table", row)
		}
	}
}
