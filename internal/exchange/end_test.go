package exchange

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The ways in which the handlers behind can end: what they return, what they have
// written by then, and what was observed of the way to an upstream.
var (
	err500, err502 = errors.New("no"), caddyhttp.Error(502, errors.New("connection refused"))
	returned       = map[string]error{"nothing": nil, "an error": err500, "502": err502, "an abort": errAborted, "a panic": errPanicked}
	wrote          = map[string]observation{
		"nothing":         {},
		"a response":      {status: 201},
		"a cut response":  {status: 201, broken: true},
		"499":             {status: statusClientGone},
		"too much":        {status: 201, early: true},
		"too much, cut":   {status: 201, early: true, broken: true},
		"an upgrade":      {status: http.StatusSwitchingProtocols, upgraded: true},
		"to a connection": {upgraded: true},
	}
	ways = map[string]upstreamObservation{
		"none":                       {},
		"sought":                     {sought: true},
		"sent":                       {maybeSent: true},
		"sent, answered 500":         {maybeSent: true, status: 500, answered: true},
		"sent, answered 499":         {maybeSent: true, status: 499, answered: true},
		"sent, a 500 of another":     {maybeSent: true, status: 500},
		"a 503 that was not sent":    {status: 503},
		"error routes":               {failed: err500},
		"sent, error routes":         {maybeSent: true, failed: err500},
		"answered 500, error routes": {maybeSent: true, status: 500, answered: true, failed: err500},
		"sent, and again":            {maybeSent: true, resent: true},
	}
)

// end is how a run ends: releases reports whether its key is released whatever the response says.
type end struct {
	how      idempotency.How
	share    sharedAnswer
	err      error
	releases bool
}

// endTable is what the contract says of "How a run ends" (section 4), for what a
// handler can see. An empty field stands for any value. Every case is in exactly one row.
var endTable = []struct {
	returned, wrote, way []string
	releases             []bool
	want                 end // err is only compared where it is one of ours
}{
	{wrote: of("an upgrade", "to a connection"), want: end{how: idempotency.Unknown, share: shareNone}},
	{wrote: of("too much", "too much, cut"), want: end{how: idempotency.Answered, share: shareResponse}},

	// An error: what was written of a response is none.
	{returned: failures, wrote: of("nothing"), way: answered, releases: yes, want: end{how: idempotency.Answered, share: shareError}},
	{returned: failures, wrote: of("nothing"), way: answered, releases: no, want: end{how: idempotency.Unknown, share: shareError}},
	{returned: failures, wrote: of("nothing"), way: of("sent", "sent, a 500 of another", "sent, error routes"), want: end{how: idempotency.Unknown, share: shareError}},
	{returned: of("a panic"), wrote: of("nothing"), way: notSent, want: end{how: idempotency.Unknown, share: shareError}},
	{returned: of("an error", "502", "an abort"), wrote: of("nothing"), way: notSent, want: end{how: idempotency.NotSent, share: shareError}},
	{returned: failures, wrote: written, way: except(again), want: end{how: idempotency.Unknown, share: shareError}},

	// The run was cancelled before its request was sent again.
	{wrote: of("nothing", "a response", "a cut response", "499"), way: again, want: end{how: idempotency.Unknown, share: shareError, err: errSentTwice}},

	// No error.
	{returned: of("nothing"), wrote: of("a cut response"), way: except(again), want: end{how: idempotency.Unknown, share: shareError, err: errCutOff}},
	{returned: of("nothing"), wrote: of("a response", "499"), way: of("error routes"), want: end{how: idempotency.NotSent, share: shareResponse}},
	{returned: of("nothing"), wrote: of("a response", "499"), way: of("sent, error routes"), want: end{how: idempotency.Unknown, share: shareResponse}},
	{returned: of("nothing"), wrote: of("499"), way: of("sent", "sent, answered 500", "sent, a 500 of another", "answered 500, error routes"), want: end{how: idempotency.Unknown, share: shareError}},
	{returned: of("nothing"), wrote: of("499"), way: of("sought"), want: end{how: idempotency.NotSent, share: shareError}},
	{returned: of("nothing"), wrote: of("499"), way: of("none", "sent, answered 499", "a 503 that was not sent"), want: end{how: idempotency.Answered, share: shareResponse}},
	{returned: of("nothing"), wrote: of("a response"), way: except(of("error routes", "sent, error routes", "sent, and again")), want: end{how: idempotency.Answered, share: shareResponse}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("sent, answered 500", "sent, answered 499", "sent, a 500 of another", "answered 500, error routes"), want: end{how: idempotency.Answered, share: shareEmpty}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("a 503 that was not sent"), want: end{how: idempotency.Answered, share: shareEmpty, releases: true}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("sent", "sent, error routes"), want: end{how: idempotency.Unknown, share: shareError, err: errNoResponse}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("none", "sought", "error routes"), want: end{how: idempotency.NotSent, share: shareNone, err: errNoHandler}},
}

var (
	failures = of("an error", "502", "an abort", "a panic")
	written  = of("a response", "a cut response", "499")
	answered = of("sent, answered 500", "sent, answered 499", "answered 500, error routes")
	notSent  = of("none", "sought", "a 503 that was not sent", "error routes")
	again    = of("sent, and again")
	yes, no  = []bool{true}, []bool{false}
)

func of(names ...string) []string { return names }

// except returns all ways to an upstream but some.
func except(names []string) (others []string) {
	for name := range ways {
		if !slices.Contains(names, name) {
			others = append(others, name)
		}
	}
	return others
}

func fits[T comparable](names []T, name T) bool {
	return len(names) == 0 || slices.Contains(names, name)
}

func TestEndingOverItsWholeDomain(t *testing.T) {
	used := make([]int, len(endTable))
	for what, err := range returned {
		for how, o := range wrote {
			for path, way := range ways {
				for _, releases := range []bool{false, true} {
					name := fmt.Sprintf("returned %s, wrote %s, way %s, releases %v", what, how, path, releases)
					row := -1
					for i, r := range endTable {
						if !fits(r.returned, what) || !fits(r.wrote, how) || !fits(r.way, path) || !fits(r.releases, releases) {
							continue
						}
						if row >= 0 {
							t.Fatalf("%s: rows %d and %d of the table both have it", name, row, i)
						}
						row = i
					}
					if row < 0 {
						t.Fatalf("%s: no row of the table has it", name)
					}
					used[row]++
					want := endTable[row].want
					o.err, o.upstream, o.releases = err, way, releases
					settled, share, clientErr := o.end()
					got := end{settled.How, share, clientErr, settled.Retention != nil && *settled.Retention == 0}
					if got.how != want.how || got.share != want.share || got.releases != want.releases || settled.UpstreamStatus != way.status {
						t.Errorf("%s: got %+v, want %+v", name, got, want)
					}
					switch { // an error is the client's in place of the response
					case want.err != nil && !errors.Is(got.err, want.err),
						err != nil && !way.resent && !errors.Is(got.err, err),
						want.share == shareResponse && !o.early && got.err != nil,
						o.early && (got.err != nil) != (err != nil || o.broken || way.resent):
						t.Errorf("%s: the client gets the error %v", name, got.err)
					}
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

// What requests get that wait for a run.
func TestSharedResponse(t *testing.T) {
	for name, c := range map[string]struct {
		status int // that was written
		share  sharedAnswer
		err    error
		want   *idempotency.Response
	}{
		"nothing":                    {0, shareNone, nil, nil},
		"the response":               {201, shareResponse, nil, &idempotency.Response{Status: 201}},
		"an empty 200":               {0, shareEmpty, nil, &idempotency.Response{Status: 200}},
		"an error":                   {0, shareError, err500, &idempotency.Response{Status: 500, Failed: true}},
		"an error of Caddy's":        {0, shareError, caddyhttp.Error(504, nil), &idempotency.Response{Status: 504, Failed: true}},
		"a panic":                    {0, shareError, errAborted, &idempotency.Response{Status: 502, Failed: true}},
		"an error behind a response": {201, shareError, err500, &idempotency.Response{Status: 500, Failed: true}},
		"a 499 that is no response":  {499, shareError, nil, &idempotency.Response{Status: 502, Failed: true}},
	} {
		response := recorderOn(httptest.NewRecorder(), 1<<20)
		response.Header().Set("X-Own", "1")
		if c.status != 0 {
			response.WriteHeader(c.status)
		}
		got := response.shared(c.share, c.err)
		if (got == nil) != (c.want == nil) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
		if got == nil || c.want == nil {
			continue
		}
		// The header is kept with a response, and with an error in place of none.
		if hasHeader := len(got.Header["X-Own"]) == 1; got.Status != c.want.Status || got.Failed != c.want.Failed || hasHeader != (c.status == 0 || !got.Failed) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}
