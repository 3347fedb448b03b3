package exchange

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// runAnswered returns a run whose response is this body, with a budget of its own.
func runAnswered(t *testing.T, body string, bytes int64, conditions ...ReleaseIf) (e *execution, end idempotency.End, logs *observer.ObservedLogs) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	h := New(Config{ReleaseIf: conditions, Budget: NewBudget(bytes), Logger: zap.New(core)})
	e = &execution{exchange: &exchange{Handler: h, r: httptest.NewRequest("POST", "/", nil)}}
	e.response.limit = new(runLimit)
	e.response.limit.startTimer(t.Context(), time.Hour)
	t.Cleanup(e.response.limit.stop)
	e.response.init(newClientWriter(httptest.NewRecorder(), nil, writeLimit{}), 8<<20, headerRules{}, h.Budget)
	return e, idempotency.End{How: idempotency.Answered, Response: &idempotency.Response{Status: 200, Body: []byte(body)}}, logs
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
		{`{"errors": {"a": 1}}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": "no"}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": 3}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": true}`, []ReleaseIf{errors}, "/errors"},
		{"\ufeff" + `{"errors": true}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": []}`, []ReleaseIf{errors}, ""},
		{`{"errors": {}}`, []ReleaseIf{errors}, ""},
		{`{"errors": ""}`, []ReleaseIf{errors}, ""},
		{`{"errors": 0.0}`, []ReleaseIf{errors}, ""},
		{`{"errors": false}`, []ReleaseIf{errors}, ""},
		{`{"errors": null}`, []ReleaseIf{errors}, ""},
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
		{`{"errors": 1, "x": "` + strings.Repeat("x", maxFailureBody-len(`{"errors": 1, "x": ""}`)) + `"}`, []ReleaseIf{errors}, "/errors"},
		{`{"errors": 1, "x": "` + strings.Repeat("x", maxFailureBody-len(`{"errors": 1, "x": ""}`)+1) + `"}`, []ReleaseIf{errors}, ""},
	} {
		e, end, logs := runAnswered(t, c.body, 1<<30, c.conditions...)
		want, got := "", ""
		if c.want != "" {
			want = "the response says that the request failed: release_if " + c.want
		}
		if err := e.saidFailure(end); err != nil {
			got = err.Error()
		}
		if used := e.Budget.Used(); got != want || used != 0 || logs.Len() > 0 {
			t.Errorf("%.60s and %v: %q, want %q; %d bytes are in use, %d lines are logged", c.body, c.conditions, got, want, used, logs.Len())
		}
	}
}

// Only a response that is kept whole is read.
func TestResponsesThatAreNotRead(t *testing.T) {
	releaseOn, err := idempotency.ParseStatuses("5xx")
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change func(*idempotency.End)
		read   bool
	}{
		"a whole one":             {func(*idempotency.End) {}, true},
		"of a status that counts": {func(end *idempotency.End) { end.Response.Status = 500 }, false},
		"hidden by a handler":     {func(end *idempotency.End) { end.UpstreamStatus = 503 }, false},
		"of an unknown end":       {func(end *idempotency.End) { end.How = idempotency.Unknown }, false},
		"not sent":                {func(end *idempotency.End) { end.How = idempotency.NotSent }, false},
		"without its body":        {func(end *idempotency.End) { end.Response.Omitted = true }, false},
		"none":                    {func(end *idempotency.End) { end.Response = nil }, false},
	} {
		e, end, _ := runAnswered(t, `{"errors": 1}`, 1<<30, ReleaseIf{Pointer: "/errors"})
		e.request.Policy.ReleaseOn = releaseOn
		c.change(&end)
		if read := e.saidFailure(end) != nil; read != c.read {
			t.Errorf("%s: read: %v", name, read)
		}
	}
}

// What a response is parsed into waits for room. Without any the response is kept, and a line says
// so, without the body.
func TestParsingAResponseWaitsForRoom(t *testing.T) {
	large := `{"errors": 1, "secret": [` + strings.Repeat("0,", smallBody) + `0]}`
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
				e, end, logs := runAnswered(t, c.body, 1<<20, ReleaseIf{Pointer: "/errors"})
				others := Allowance{Budget: e.Budget}
				others.TryTake(int(c.others) + 1) // it exceeds the limit, and no other may
				done := make(chan error)
				go func() { done <- e.saidFailure(end) }()
				synctest.Wait()
				e.Budget.mu.Lock()
				waits := len(e.Budget.runs) > 0
				e.Budget.mu.Unlock()
				if waits != c.waits {
					t.Errorf("it waits: %v", waits)
				}
				if c.release {
					others.ReleaseAll()
				}
				if err := <-done; (err != nil) != c.failed {
					t.Errorf("got %v", err)
				}
				others.ReleaseAll()
				if used := e.Budget.Used(); used != 0 {
					t.Errorf("%d bytes are in use", used)
				}
				if lines := logs.FilterMessageSnippet("release_if").All(); len(lines) > 0 == c.failed {
					t.Errorf("%d lines are logged", len(lines))
				}
			})
		})
	}
}

// Under observe a response is read as it goes to its client, and by no more than that.
func TestObserveReadsResponses(t *testing.T) {
	large := strings.Repeat(" ", smallBody)
	for name, c := range map[string]struct {
		parts []string
		full  bool // there is no room
		want  []string
	}{
		"failed":     {[]string{`{"errors"`, `: 1}`}, false, []string{"executed", "executed"}},
		"succeeded":  {[]string{`{"errors"`, `: 0}`}, false, []string{"executed", "replayed"}},
		"large":      {[]string{large, large, `{"errors"`, `: 1}`}, false, []string{"executed", "executed"}},
		"too large":  {[]string{strings.Repeat(" ", maxFailureBody), `{"errors": 1}`}, false, []string{"executed", "replayed"}},
		"no room":    {[]string{large, large, `{"errors": 1}`}, true, []string{"executed", "replayed"}},
		"no content": {nil, false, []string{"executed", "replayed"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObserving(t, func(c *Config) {
					c.ReleaseIf, c.MaxResponseBody, c.Budget = []ReleaseIf{{Pointer: "/errors"}}, 8<<20, NewBudget(8<<20)
				})
				for range c.want {
					o.post(strings.NewReader("body"), func(w http.ResponseWriter, r *http.Request) {
						readAll(w, r)
						others := Allowance{Budget: o.Budget}
						if c.full {
							others.Count(8 << 20)
						}
						for i, part := range c.parts {
							if i%2 == 0 {
								_, _ = io.WriteString(w, part)
							} else {
								_, _ = io.Copy(w, io.LimitReader(strings.NewReader(part), 1<<20)) // by ReadFrom
							}
						}
						synctest.Wait()
						others.ReleaseAll()
					})
					synctest.Wait()
				}
				o.want(c.want...)
				if lines := o.logs.FilterMessageSnippet("release_if").Len(); lines > 0 != c.full {
					t.Errorf("%d lines say that a response was not read", lines)
				}
			})
		})
	}
}
