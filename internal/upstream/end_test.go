package upstream

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The ways in which the handlers behind can end: what they return, what they have
// written by then, and what was observed of the way to an upstream.
var (
	err500, err502 = errors.New("no"), caddyhttp.Error(502, errors.New("connection refused"))
	returned       = map[string]error{"nothing": nil, "an error": err500, "502": err502, "an abort": ErrAborted, "a panic": ErrPanicked}
	wrote          = map[string]Ended{
		"nothing":         {},
		"a response":      {Status: 201},
		"a cut response":  {Status: 201, Broken: true},
		"499":             {Status: StatusClientGone},
		"too much":        {Status: 201, Early: true},
		"too much, cut":   {Status: 201, Early: true, Broken: true},
		"an upgrade":      {Status: http.StatusSwitchingProtocols, Upgraded: true},
		"to a connection": {Upgraded: true},
	}
	ways = map[string]Way{
		"none":                       {},
		"sought":                     {Sought: true},
		"sent":                       {MaybeSent: true},
		"sent, answered 500":         {MaybeSent: true, Status: 500, Answered: true},
		"sent, answered 499":         {MaybeSent: true, Status: 499, Answered: true},
		"sent, a 500 of another":     {MaybeSent: true, Status: 500},
		"a 503 that was not sent":    {Status: 503},
		"error routes":               {Failed: err500},
		"sent, error routes":         {MaybeSent: true, Failed: err500},
		"answered 500, error routes": {MaybeSent: true, Status: 500, Answered: true, Failed: err500},
		"sent, and again":            {MaybeSent: true, Resent: true},
	}
)

// end is how a run ends: releases reports whether its key is released whatever the response says.
type end struct {
	how      idempotency.How
	share    Share
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
	{wrote: of("an upgrade", "to a connection"), want: end{how: idempotency.Unknown, share: ShareNone}},
	{wrote: of("too much", "too much, cut"), want: end{how: idempotency.Answered, share: ShareResponse}},

	// An error: what was written of a response is none.
	{returned: failures, wrote: of("nothing"), way: answered, releases: yes, want: end{how: idempotency.Answered, share: ShareError}},
	{returned: failures, wrote: of("nothing"), way: answered, releases: no, want: end{how: idempotency.Unknown, share: ShareError}},
	{returned: failures, wrote: of("nothing"), way: of("sent", "sent, a 500 of another", "sent, error routes"), want: end{how: idempotency.Unknown, share: ShareError}},
	{returned: of("a panic"), wrote: of("nothing"), way: notSent, want: end{how: idempotency.Unknown, share: ShareError}},
	{returned: of("an error", "502", "an abort"), wrote: of("nothing"), way: notSent, want: end{how: idempotency.NotSent, share: ShareError}},
	{returned: failures, wrote: written, way: except(again), want: end{how: idempotency.Unknown, share: ShareError}},

	// The run was cancelled before its request was sent again.
	{wrote: of("nothing", "a response", "a cut response", "499"), way: again, want: end{how: idempotency.Unknown, share: ShareError, err: errSentTwice}},

	// No error.
	{returned: of("nothing"), wrote: of("a cut response"), way: except(again), want: end{how: idempotency.Unknown, share: ShareError, err: errCutOff}},
	{returned: of("nothing"), wrote: of("a response", "499"), way: of("error routes"), want: end{how: idempotency.NotSent, share: ShareResponse}},
	{returned: of("nothing"), wrote: of("a response", "499"), way: of("sent, error routes"), want: end{how: idempotency.Unknown, share: ShareResponse}},
	{returned: of("nothing"), wrote: of("499"), way: of("sent", "sent, answered 500", "sent, a 500 of another", "answered 500, error routes"), want: end{how: idempotency.Unknown, share: ShareError}},
	{returned: of("nothing"), wrote: of("499"), way: of("sought"), want: end{how: idempotency.NotSent, share: ShareError}},
	{returned: of("nothing"), wrote: of("499"), way: of("none", "sent, answered 499", "a 503 that was not sent"), want: end{how: idempotency.Answered, share: ShareResponse}},
	{returned: of("nothing"), wrote: of("a response"), way: except(of("error routes", "sent, error routes", "sent, and again")), want: end{how: idempotency.Answered, share: ShareResponse}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("sent, answered 500", "sent, answered 499", "sent, a 500 of another", "answered 500, error routes"), want: end{how: idempotency.Answered, share: ShareEmpty}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("a 503 that was not sent"), want: end{how: idempotency.Answered, share: ShareEmpty, releases: true}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("sent", "sent, error routes"), want: end{how: idempotency.Unknown, share: ShareError, err: errNoResponse}},
	{returned: of("nothing"), wrote: of("nothing"), way: of("none", "sought", "error routes"), want: end{how: idempotency.NotSent, share: ShareNone, err: ErrNoHandler}},
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

// What a mode says of an answer counts only where the upstream has given one.
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
					o.Err, o.Way, o.Releases = err, way, releases
					for _, verdict := range []Verdict{{}, {Failed: true}, {Asked: true}, {Unknown: true}} {
						o.Verdict = verdict
						want, wantFailed := endTable[row].want, false
						if want.how == idempotency.Answered {
							if wantFailed = verdict.Failed; verdict.Unknown {
								want.how, want.share = idempotency.Unknown, ShareError
							} else if verdict.Asked {
								want.how = idempotency.NotSent
							}
						}
						settled, share, clientErr := o.End()
						got := end{settled.How, share, clientErr, settled.Retention != nil && *settled.Retention == 0}
						if got.how != want.how || got.share != want.share || got.releases != want.releases || settled.UpstreamStatus != way.Status || settled.SaysFailed != wantFailed {
							t.Errorf("%s, %+v: got %+v, says failed: %v, want %+v", name, verdict, got, settled.SaysFailed, want)
						}
						switch { // an error is the client's in place of the response
						case want.err != nil && !errors.Is(got.err, want.err),
							err != nil && !way.Resent && !errors.Is(got.err, err),
							want.share == ShareResponse && !o.Early && got.err != nil,
							o.Early && (got.err != nil) != (err != nil || o.Broken || way.Resent):
							t.Errorf("%s, %+v: the client gets the error %v", name, verdict, got.err)
						}
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
