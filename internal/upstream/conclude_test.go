package upstream

import (
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/deduptest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// answeredRun is a run with its response, which has room of its own, and what is logged of it.
type answeredRun struct {
	Rules
	policy   idempotency.Policy
	response *idempotency.Response
	room     budget.Allowance
	report   report.Report
	logs     *observer.ObservedLogs
}

// newRun returns a run whose response has this body. There is room for so many bytes.
func newRun(body string, bytes int64, conditions ...ReleaseIf) *answeredRun {
	core, logs := observer.New(zap.InfoLevel)
	r := &answeredRun{
		Rules: Rules{conditions}, response: &idempotency.Response{Status: 200, Body: []byte(body)},
		room: budget.Allowance{Budget: budget.New(bytes)}, logs: logs,
	}
	r.report.Init(&report.Reporter{Logger: zap.New(core)}, httptest.NewRequest("POST", "/", nil), new(report.Info))
	return r
}

func (r *answeredRun) Shared(Share, error) *idempotency.Response  { return r.response }
func (r *answeredRun) Body(*idempotency.Response) ([]byte, error) { return r.response.Body, nil }
func (r *answeredRun) Take(n int) bool                            { return r.room.Take(n) }
func (r *answeredRun) Room() *budget.Allowance                    { return &r.room }

func (r *answeredRun) conclude(o Ended) Conclusion {
	return r.Conclude(o, &r.policy, r, caddy.NewReplacer(), &r.report)
}

// The conditions of release_if, and what meets them.
func TestResponsesThatSayThatTheyFailed(t *testing.T) {
	errors, retry, ok := ReleaseIf{Pointer: "/errors"}, ReleaseIf{"/status", []string{"RETRY", "DROP"}}, ReleaseIf{"/ok", []string{"false", "0", "null"}}
	for _, c := range []struct {
		body       string
		conditions []ReleaseIf
		want       string // condition that is met
	}{
		{`{"errors": [{"message": "no"}]}`, []ReleaseIf{errors}, "/errors"},
		{"\ufeff" + `{"errors": true}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": []}`, []ReleaseIf{errors}, ""},
		{`{"data": {"errors": [1]}}`, []ReleaseIf{errors}, ""},
		{`[{"errors": [1]}]`, []ReleaseIf{errors}, ""},
		{`[{"errors": [1]}]`, []ReleaseIf{{Pointer: "/0/errors"}}, "/0/errors"},

		{`{"status": "RETRY"}`, []ReleaseIf{retry}, "/status RETRY"},
		{`{"status": "D\u0052OP"}`, []ReleaseIf{retry}, "/status DROP"},
		{`{"status": "SUCCESS"}`, []ReleaseIf{retry}, ""},
		{`{"status": "retry"}`, []ReleaseIf{retry}, ""},
		{`{"status": ["RETRY"]}`, []ReleaseIf{retry}, ""},
		{`{"status": "\ud83d"}`, []ReleaseIf{retry}, ""},
		{`{}`, []ReleaseIf{retry}, ""},
		{`{"ok": false}`, []ReleaseIf{ok}, "/ok false"},
		{`{"ok": 0}`, []ReleaseIf{ok}, "/ok 0"},
		{`{"ok": null}`, []ReleaseIf{ok}, "/ok null"},
		{`{"ok": true}`, []ReleaseIf{ok}, ""},
		{`{"ok": {}}`, []ReleaseIf{ok}, ""},

		{`{"status": "RETRY", "errors": 1}`, []ReleaseIf{ok, errors, retry}, "/errors"},
		{`{"status": "RETRY", "errors": 0}`, []ReleaseIf{ok, errors, retry}, "/status RETRY"},
		{`{"errors": 1}`, nil, ""},

		{``, []ReleaseIf{errors}, ""},
		{`{"errors": 1`, []ReleaseIf{errors}, ""},
		{`{"errors": 1, "errors": 1}`, []ReleaseIf{errors}, ""},
		{"\x1f\x8b\x08", []ReleaseIf{errors}, ""},
		{`{"errors": 1, "x": "` + strings.Repeat("x", MaxReleaseBody-len(`{"errors": 1, "x": ""}`)) + `"}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": 1, "x": "` + strings.Repeat("x", MaxReleaseBody-len(`{"errors": 1, "x": ""}`)+1) + `"}`, []ReleaseIf{errors}, ""},
	} {
		of := newRun(c.body, 1<<30, c.conditions...)
		got, want := of.conclude(Ended{Status: 200}), ""
		if c.want != "" {
			want = "the response says that the request failed: release_if " + c.want
		}
		if used := of.room.Budget.Used(); got.End.SaysFailed != (want != "") || got.End.Reason != want || used != 0 || of.logs.Len() > 0 {
			t.Errorf("%.60s and %v: %+v, want %q; %d bytes are in use, %d lines are logged", c.body, c.conditions, got.End, want, used, of.logs.Len())
		}
	}
}

// Only a response that is kept whole is read.
func TestResponsesThatAreNotRead(t *testing.T) {
	releaseOn, err := idempotency.ParseStatuses("5xx")
	if err != nil {
		t.Fatal(err)
	}
	whole := idempotency.Response{Status: 200, Body: []byte(`{"errors": 1}`)}
	failed, omitted := whole, whole
	failed.Status, omitted.Omitted = 500, true
	for name, c := range map[string]struct {
		ended    Ended
		response *idempotency.Response
		read     bool
	}{
		"a whole one":             {Ended{Status: 200}, &whole, true},
		"of a status that counts": {Ended{Status: 500}, &failed, false},
		"hidden by a handler":     {Ended{Status: 200, Way: Way{MaybeSent: true, Status: 503, Answered: true}}, &whole, false},
		"of an unknown end":       {Ended{Status: 200, Broken: true}, &whole, false},
		"not sent":                {Ended{Status: 200, Way: Way{Failed: err502}}, &whole, false},
		"without its body":        {Ended{Status: 200}, &omitted, false},
		"none":                    {Ended{Status: 200}, nil, false},
	} {
		of := newRun("", 1<<30, ReleaseIf{Pointer: "/errors"})
		of.policy.ReleaseOn, of.response = releaseOn, c.response
		if got := of.conclude(c.ended); got.End.SaysFailed != c.read {
			t.Errorf("%s: read: %v", name, got.End.SaysFailed)
		}
	}
}

// The reason of an end is the error that ended it, also behind an error page, and else what the upstream or
// the service says.
func TestReasonOfAnEnd(t *testing.T) {
	says := Verdict{Failed: true, Why: errors.New("the tool failed")}
	for want, ended := range map[string]Ended{
		"":                               {Status: 201},
		"connection refused":             {Status: 502, Way: Way{Failed: err502}},
		"it failed":                      {Status: 502, Err: errors.New("it failed"), Way: Way{Failed: err502}},
		"the upstream answered with 503": {Status: 503, Way: Way{MaybeSent: true, Answered: true, Status: 503}},
		"the tool failed":                {Status: 200, Way: Way{MaybeSent: true, Answered: true, Status: 200}, Verdict: says},
	} {
		if got := newRun("", 1<<30).conclude(ended).End.Reason; got != want {
			t.Errorf("%+v: the reason is %q, want %q", ended, got, want)
		}
	}
}

// What a response is parsed into waits for room. Without any the response is kept, and a line says
// so, without the body.
func TestParsingAResponseWaitsForRoom(t *testing.T) {
	large := `{"errors": 1, "secret": [` + strings.Repeat("0,", budget.SmallBody) + `0]}`
	for name, c := range map[string]struct {
		body    string
		others  int64
		waits   bool
		release bool // the others release their room while it waits
		failed  bool
	}{
		"room":       {large, 0, false, false, true},
		"room later": {large, 1 << 20, true, true, true},
		"no room":    {large, 1 << 20, true, false, false},
		"small":      {`{"errors": 1}`, 1 << 20, false, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				of := newRun(c.body, 1<<20, ReleaseIf{Pointer: "/errors"})
				others := budget.Allowance{Budget: of.room.Budget}
				others.Count(int(c.others))
				deduptest.KeepBusy(t, &others)
				done := make(chan bool, 1)
				go func() { done <- of.conclude(Ended{Status: 200}).End.SaysFailed }()
				synctest.Wait()
				if waits := len(done) == 0; waits != c.waits {
					t.Errorf("it waits: %v", waits)
				}
				if c.release {
					others.ReleaseAll()
				}
				if failed := <-done; failed != c.failed {
					t.Errorf("it says that it failed: %v", failed)
				}
				others.ReleaseAll()
				if used := of.room.Budget.Used(); used != 0 {
					t.Errorf("%d bytes are in use", used)
				}
				if lines := of.logs.FilterMessageSnippet("release_if").All(); len(lines) > 0 == c.failed {
					t.Errorf("%d lines are logged", len(lines))
				}
			})
		})
	}
}
