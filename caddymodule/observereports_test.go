package caddymodule

import (
	"cmp"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/budget"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// counted collects the requests that are counted. A request counts when its claim is settled.
type counted struct {
	report.Observer
	told chan string
}

// counted returns the collector of the site.
func (s *site) counted() *counted {
	c := &counted{s.handler().reporter().Observer, make(chan string, 10)}
	s.handler().reporter().Observer = c
	return c
}

func (c *counted) Request(provider string, o report.Outcome, observed bool) {
	c.Observer.Request(provider, o, observed)
	c.told <- fmt.Sprintf("%s %s %v", provider, o, observed)
}

// want waits for the next outcome, and compares it.
func (c *counted) want(t *testing.T, outcome string) {
	t.Helper()
	select {
	case got := <-c.told:
		if _, what, _ := strings.Cut(got, " "); what != outcome+" true" {
			t.Errorf("it counts as %q, want %s", got, outcome)
		}
	case <-time.After(10 * time.Second):
		t.Errorf("it does not count, want %s", outcome)
	}
}

// TestObserveReports sends requests, which all reach the upstream, and compares what is counted.
func TestObserveReports(t *testing.T) {
	address, runs := startUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		if r.Header.Get("X-Slow") != "" {
			time.Sleep(2 * time.Millisecond)
		}
		if r.Header.Get("X-Cut") != "" {
			panic(http.ErrAbortHandler)
		}
		for _, name := range []string{"Location", "Dedup-Retention", "Payment-Required"} {
			if value := r.Header.Get("X-" + name); value != "" {
				w.Header().Set(name, value)
			}
		}
		status, _ := strconv.Atoi(cmp.Or(r.Header.Get("X-Status"), "201"))
		answers(status, cmp.Or(r.Header.Get("X-Says"), "created"))(w, r, n)
	})
	front := "forward_auth " + address + " {\nuri /\n}"
	type request []string                                 // key, body, header fields
	plain, bare := request{"k", "body"}, request{"k", ""} // what nothing behind reads has no outcome
	with := func(header ...string) request { return append(slices.Clone(plain), header...) }
	for name, c := range map[string]struct {
		block    string
		front    string
		behind   string
		requests []request
		want     string
		state    idempotency.State // of the only key, if it is of interest
	}{
		"a duplicate":         {requests: []request{plain, plain, plain}, want: "executed replayed replayed"},
		"another body":        {requests: []request{plain, {"k", "other"}}, want: "executed reused"},
		"a released key":      {requests: []request{with("X-Status", "500"), plain, plain}, want: "executed executed replayed"},
		"released as wished":  {requests: []request{with("X-Dedup-Retention", "0"), plain}, want: "executed executed"},
		"says it failed":      {block: "release_if /errors", requests: []request{with("X-Says", `{"errors": 1}`), with("X-Says", `{"errors": 0}`), plain}, want: "executed executed replayed"},
		"asked for payment":   {requests: []request{with("X-Status", "402", "X-Payment-Required", "1"), plain}, want: "executed executed"},
		"a kept 402":          {requests: []request{with("X-Status", "402"), plain}, want: "executed replayed"},
		"no key":              {requests: []request{{"", "body"}}, want: "missing"},
		"an unusable key":     {block: "key json /id", requests: []request{{"", `{"id":[]}`}}, want: "unusable"},
		"a key too long":      {requests: []request{{strings.Repeat("k", 256), "body"}}, want: "invalid"},
		"a body too large":    {block: "max_request_body 3", requests: []request{plain}, want: "too_large"},
		"a response too long": {block: "max_response_body 3", requests: []request{plain, plain}, want: "executed not_kept"},
		"an unknown end":      {requests: []request{with("X-Cut", "1"), plain}, want: "executed executed"},
		"held":                {block: "on_unknown hold", requests: []request{with("X-Cut", "1"), plain}, want: "executed held"},
		"over the timeout":    {block: "timeout 1ms\non_unknown hold", requests: []request{with("X-Slow", "1"), plain}, want: "executed held"},
		"not sent":            {block: "on_unknown hold", behind: "reverse_proxy " + nothing, requests: []request{bare, bare}, want: "executed executed"},
		"exhausted":           {block: "max_attempts 1", requests: []request{with("X-Cut", "1"), plain}, want: "executed exhausted"},
		"conflict":            {block: "on_duplicate conflict", requests: []request{plain, plain}, want: "executed conflict"},
		"acknowledge":         {block: "on_duplicate acknowledge", requests: []request{plain, plain}, want: "executed acknowledged"},
		"see other":           {block: "on_duplicate see_other", requests: []request{with("X-Location", "/1"), plain}, want: "executed see_other"},
		"see no other":        {block: "on_duplicate see_other", requests: []request{plain, plain}, want: "executed replayed"},
		"forced":              {block: "force X-Force", requests: []request{plain, with("X-Force", "true")}, want: "executed forced"},
		"no handler":          {behind: "vars a b", requests: []request{bare, bare}, want: "no_handler no_handler"},
		// What a proxy in front has left in the placeholders says nothing of the run.
		"a proxy in front":         {block: "on_unknown hold", front: front, behind: "respond `{http.reverse_proxy.status_code}`", requests: []request{bare}, want: "executed", state: idempotency.Complete},
		"one that fails behind it": {block: "on_unknown hold", front: front, behind: "reverse_proxy " + nothing, requests: []request{bare}, want: "executed", state: idempotency.Released},
		"nothing made of":          {block: "on_unknown hold", front: front, behind: "reverse_proxy " + address + " {\nhandle_response {\nvars a b\n}\n}", requests: []request{bare}, want: "executed", state: idempotency.Complete},
	} {
		t.Run(name, func(t *testing.T) {
			before := runs.Load()
			s := serve(t, "route {", c.front, "dedup {", "observe", c.block, "}", cmp.Or(c.behind, "reverse_proxy "+address), "}")
			counts := s.counted()
			for i, outcome := range strings.Fields(c.want) {
				s.mustPost(c.requests[i][0], c.requests[i][1], c.requests[i][2:]...)
				counts.want(t, outcome)
			}
			if c.state != "" && s.only().State != c.state {
				t.Errorf("the key is %s, want %s", s.only().State, c.state)
			}
			if n := runs.Load() - before; c.behind == "" && n != int64(len(c.requests)) {
				t.Errorf("%d of %d requests reached the upstream", n, len(c.requests))
			}
		})
	}
}

// The access log has the outcome of a request whose handlers end after its claim.
func TestObserveIsInTheAccessLog(t *testing.T) {
	decided := make(chan struct{})
	address, _ := startUpstream(t, func(_ http.ResponseWriter, _ *http.Request, n int) {
		if n > 1 {
			<-decided
		}
	})
	s := serveLogged(t, "", "", "log", "log_append first {http.dedup.first.status}", "dedup {", "observe", "}", "reverse_proxy "+address)
	counts := s.counted()
	s.serveHTTP("k", "body")
	counts.want(t, "executed")
	go func() {
		counts.want(t, "replayed")
		close(decided)
	}()
	s.serveHTTP("k", "body")
	line := book.only(t, "handled request", "dedup_outcome", "replayed")
	if record := s.only(); line.text("dedup_execution_id") != record.ExecutionID || line.text("dedup_key") == "" || line.text("first") != "200" {
		t.Errorf("the access log has %v, the store %+v", line, record)
	}
}

// A request beside a run passes at once.
func TestObserveDoesNotWait(t *testing.T) {
	for line, want := range map[string]string{"wait 30s": "waited", "wait off": "in_flight"} {
		goOn := make(chan struct{})
		address, _ := startUpstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
			if r.Header.Get("X-Slow") != "" {
				<-goOn
			}
		})
		s := serve(t, "dedup {", "observe", line, "}", "reverse_proxy "+address)
		counts, first := s.counted(), make(chan answer)
		go func() { first <- s.mustPost("k", "body", "X-Slow", "1") }()
		for len(s.listed()) == 0 {
			time.Sleep(time.Millisecond)
		}
		s.mustPost("k", "body")
		counts.want(t, want)
		close(goOn)
		<-first
		counts.want(t, "executed")
		s.stop()
	}
}

// What is observed is kept without its body and under a key of its own, and counts as no run.
func TestObserveKeepsApart(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "created"))
	s := serve(t, "@observed header X-Observed *", "route {", "dedup @observed {", "observe", "}",
		"@enforced not header X-Observed *", "dedup @enforced", "reverse_proxy "+address, "}")
	before, onPage := total(t, "runs_total"), processMetrics.byOutcome()["executed"]
	counts := s.counted()
	s.mustPost("k", "body", "X-Observed", "1")
	counts.want(t, "executed")
	kept := s.listed()
	if len(kept) != 1 || kept[0].Record.State != idempotency.Complete || kept[0].Record.Status != 201 {
		t.Fatalf("the store has %+v", kept)
	}
	response, err := s.keys.Response(t.Context(), kept[0].Key, kept[0].Record)
	if err != nil || response == nil || response.Status != 201 || len(response.Body)+len(response.Header) > 0 {
		t.Errorf("the response that is kept is %+v, %v", response, err)
	}
	if n, shown := total(t, "runs_total")-before, processMetrics.byOutcome()["executed"]-onPage; n != 0 || shown != 0 {
		t.Errorf("%v runs are counted, and the page shows %d", n, shown)
	}
	if got := s.mustPost("k", "body"); got.header.Get("Idempotent-Replayed") != "" {
		t.Error("what was only observed is replayed")
	}
	if n := total(t, "runs_total") - before; len(s.listed()) != 2 || n != 1 {
		t.Errorf("there are %d keys, and %v runs; want 2 and 1", len(s.listed()), n)
	}
}

// Without a store, or room, requests pass, and have no outcome.
func TestObservePassesWithoutStoreOrRoom(t *testing.T) {
	body := strings.Repeat("x", 10_000)
	address, _ := echo(t)
	for name, c := range map[string]struct {
		line, global string
		taken        int
	}{
		"no store":             {line: "store redis redis://" + nothing},
		"no room for a body":   {global: "limits {\nbuffered 64KiB\n}", taken: 64 << 10},
		"no room for a record": {global: "limits {\nmemory_store 1KiB\n}"},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveLogged(t, "", c.global, "log", "dedup {", "observe", c.line, "}", "reverse_proxy "+address)
			counts, before := s.counted(), total(t, "overloads_total")
			others := &budget.Allowance{Budget: buffered}
			others.Count(c.taken)
			defer others.ReleaseAll()
			if answered := s.mustPost("k", body); answered.status != 201 || answered.body != body {
				t.Errorf("the client got %d, the upstream %d bytes", answered.status, len(answered.body))
			}
			for len(book.about("unobserved: ")) == 0 {
				time.Sleep(time.Millisecond)
			}
			s.Close()
			if n := len(book.about("handled request")); n != 1 || len(book.about("handled request", "dedup_outcome", "")) != 1 {
				t.Errorf("the access log has %v", book.about("handled request"))
			}
			if len(counts.told) > 0 || total(t, "overloads_total") != before {
				t.Errorf("it counts as %d requests, and %v refusals because of a limit", len(counts.told), total(t, "overloads_total")-before)
			}
		})
	}
}

// total returns the sum of a counter of the process over all its labels.
func total(t *testing.T, counter string) float64 {
	t.Helper()
	_, values := gathered(t, registryOf(t, processMetrics))
	sum := 0.0
	for name, value := range values {
		if strings.HasPrefix(name, "caddy_dedup_"+counter) {
			sum += value
		}
	}
	return sum
}

// What Go's transport sends again, it sends again, and the end of the run is unknown.
func TestObserveLetsTheTransportResend(t *testing.T) {
	var executions []int64
	for _, matcher := range []string{"/never", ""} {
		s, runs := warmed(t, (*httptest.Server).Start, "route {", "dedup "+matcher+" {", "observe", "on_unknown hold", "}", "reverse_proxy {to}", "}")
		counts := s.counted()
		_, _ = s.post("k", "")
		executions = append(executions, runs.Load())
		if matcher == "" {
			counts.want(t, "executed")
			if state := s.only().State; state != idempotency.Held {
				t.Errorf("the key is %s, want held", state)
			}
		}
		s.stop()
	}
	if executions[0] != executions[1] || executions[0] < 2 {
		t.Errorf("the upstream executes %d times without dedup, and %d times under observe", executions[0], executions[1])
	}
}

// A request that comes before the store is open passes, too.
func TestObservePassesBeforeTheStoreIsOpen(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
	app, web := provision(t, "", "dedup {", "observe", "}", "reverse_proxy "+address)
	for _, server := range web.Servers {
		s := &site{t: t, app: app, Server: httptest.NewServer(server)}
		defer s.Close()
		if got := s.mustPost("k", "body"); got.status != 201 {
			t.Errorf("got %+v", got)
		}
	}
}
