package caddymodule

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

// grown returns what counters have grown by, by their names and labels.
func grown(t *testing.T, registry *prometheus.Registry, before map[string]float64) map[string]float64 {
	t.Helper()
	_, now := gathered(t, registry)
	maps.DeleteFunc(now, func(name string, value float64) bool {
		return value == before[name] || !strings.Contains(name, "_total")
	})
	for name := range now {
		now[name] -= before[name]
	}
	return now
}

// Each request counts once, under its outcome, and what an operator has to know of it is one line
// in the log.
func TestEveryOutcomeIsCountedAndLogged(t *testing.T) {
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		switch r.Header.Get("X-End") {
		case "500":
			w.WriteHeader(500)
		case "cut":
			panic(http.ErrAbortHandler)
		default:
			w.Header().Set("Location", "/made/1")
			answers(201, "created")(w, r, 0)
		}
	})
	type step struct {
		dedup string
		// Header fields of the requests before the last one, and of the last one. "body" is the
		// body, "k" the idempotency key.
		before, last []string
		outcome      string
		result       string   // of the last run, "" for none
		line         []string // message, level, code and attempt of its line in the log, nil for none
		also         string   // another counter
	}
	t.Setenv("TEST_SECRET", "secret")
	key := []string{"k", "k"}
	cut := []string{"k", "k", "X-End", "cut"}
	refused := func(level, code, attempt string) []string {
		return []string{"refused a request", level, code, attempt}
	}
	registry := registryOf(t, processMetrics)
	handler := func(lines string) string { return "dedup {\n" + lines + "\n}" }
	seen := make(map[report.Outcome]bool)
	for name, c := range map[string]step{
		"executed":          {"dedup", nil, key, "executed", "kept", nil, ""},
		"released":          {"dedup", nil, []string{"k", "k", "X-End", "500"}, "executed", "released", []string{"released: ", "info", "", "1"}, ""},
		"not sent":          {"dedup\nreverse_proxy 127.0.0.1:1", nil, key, "executed", "not_sent", []string{"released: ", "info", "", "1"}, ""},
		"becomes held":      {handler("on_unknown hold"), nil, cut, "executed", "held", []string{"held: ", "warn", "", "1"}, ""},
		"becomes exhausted": {handler("max_attempts 1"), nil, cut, "executed", "released", []string{"exhausted: ", "warn", "", "1"}, ""},
		"replayed":          {"dedup", key, key, "replayed", "", nil, ""},
		"reused":            {"dedup", key, []string{"k", "k", "body", "another"}, "reused", "", refused("info", "idempotency_key_reused", "1"), ""},
		"held":              {handler("on_unknown hold"), cut, cut, "held", "", refused("warn", "outcome_unknown", "1"), ""},
		"exhausted":         {handler("max_attempts 1"), cut, cut, "exhausted", "", refused("warn", "attempts_exhausted", "1"), ""},
		"missing":           {"dedup", nil, nil, "missing", "", []string{"missing: ", "info", "", ""}, ""},
		"unusable":          {handler("key json /id"), nil, []string{"body", `{"id":{}}`}, "unusable", "", []string{"unusable: ", "info", "", ""}, ""},
		"unusable, rejected": {handler("key json /id\non_missing reject"), nil, []string{"body", `{"id":[]}`}, "unusable", "",
			refused("info", "idempotency_key_missing", "0"), ""},
		"unusable, webhook": {handler("mode webhook\nkey value {http.request.header.X-Long} own\nmax_key_length 16"), nil, []string{"X-Long", strings.Repeat("x", 17)}, "unusable", "", []string{"unusable: ", "info", "", ""}, ""},
		"missing, rejected": {handler("on_missing reject"), nil, nil, "missing", "", refused("info", "idempotency_key_missing", "0"), ""},
		"passed":            {"dedup sns", nil, []string{"X-Amz-Sns-Message-Type", "SubscriptionConfirmation"}, "passed", "", nil, ""},
		"passed, rejecting": {"dedup sns {\non_missing reject\n}", nil, []string{"X-Amz-Sns-Message-Type", "SubscriptionConfirmation"}, "passed", "", nil, ""},
		"invalid":           {"dedup", nil, []string{"k", `"`}, "invalid", "", refused("info", "idempotency_key_invalid", "0"), ""},
		"too large":         {handler("max_request_body 1"), nil, key, "too_large", "", refused("info", "request_too_large", "0"), ""},
		"unsigned": {handler("verify hmac {\nsecret {env.TEST_SECRET}\nheader X-Signature\n}"), nil, key, "signature_invalid", "",
			refused("warn", "signature_invalid", ""), ""},
		"forced":            {handler("force X-Force"), key, []string{"k", "k", "X-Force", "true"}, "forced", "kept", []string{"forced: ", "info", "", "2"}, ""},
		"conflict":          {handler("on_duplicate conflict"), key, key, "conflict", "", refused("info", "duplicate_request", "1"), ""},
		"acknowledged":      {handler("on_duplicate acknowledge"), key, key, "acknowledged", "", nil, ""},
		"see other":         {handler("on_duplicate see_other"), key, key, "see_other", "", nil, ""},
		"not kept":          {handler("max_response_body 1"), key, key, "not_kept", "", refused("info", "response_not_kept", "1"), ""},
		"not kept, webhook": {handler("mode webhook\nkey header Idempotency-Key\nmax_response_body 1"), key, key, "not_kept", "", nil, ""},
		"unprotected": {handler("on_store_error pass\nstore redis redis://127.0.0.1:1"), nil, key, "unprotected", "",
			[]string{"unprotected: ", "error", "", ""}, "caddy_dedup_store_errors_total claim"},
		"store unavailable": {handler("store redis redis://127.0.0.1:1"), nil, key, "store_unavailable", "",
			refused("error", "store_unavailable", "0"), "caddy_dedup_store_errors_total claim"},
		"no handler": {"dedup\nreverse_proxy /other 127.0.0.1:1", nil, key, "no_handler", "not_sent", refused("error", "no_handler", "1"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			proxy := "reverse_proxy " + address
			if strings.Contains(c.dedup, "reverse_proxy") {
				proxy = ""
			}
			s := serveLogged(t, "", "", "header >X-Outcome {http.dedup.outcome}", c.dedup, proxy)
			send := func(fields []string) {
				id, body, header := "", "body", []string(nil)
				for pair := range slices.Chunk(fields, 2) {
					switch pair[0] {
					case "k":
						id = pair[1]
					case "body":
						body = pair[1]
					default:
						header = append(header, pair...)
					}
				}
				if got := s.serveHTTP(id, body, header...); got.header.Get("X-Outcome") == "" {
					t.Errorf("the client sees no outcome: %+v", got)
				}
			}
			if c.before != nil {
				send(c.before)
			}
			if c.also != "" { // the store is looked at once at the start, which counts
				for len(book.about("the store does not answer")) == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			lines := len(book.about(""))
			_, counters := gathered(t, registry)
			send(c.last)
			label := s.handler().reporter().Label
			want := map[string]float64{"caddy_dedup_requests_total false " + c.outcome + " " + label: 1}
			if c.result != "" {
				want["caddy_dedup_runs_total "+label+" "+c.result] = 1
			}
			if c.also != "" {
				want[c.also] = 1
			}
			got := grown(t, registry, counters)
			maps.DeleteFunc(got, func(name string, _ float64) bool { // of a site before, whose store is down
				return strings.HasPrefix(name, "caddy_dedup_store_errors_total") && name != c.also
			})
			if !maps.Equal(got, want) {
				t.Errorf("the counters grow by %v, want %v", got, want)
			}
			seen[report.Outcome(c.outcome)] = true
			found := slices.DeleteFunc(book.about("")[lines:], func(e entry) bool {
				return !strings.Contains(e.text("logger"), "dedup") || e.text("path") == "" || e.text("msg") == "the request failed" ||
					c.line != nil && !strings.HasPrefix(e.text("msg"), c.line[0])
			})
			switch {
			case c.line == nil && len(found) > 0, c.line != nil && len(found) != 1:
				t.Fatalf("the lines are %v, want one: %v", found, c.line)
			case c.line == nil:
				return
			}
			e := found[0]
			if got := []string{e.text("level"), e.text("code"), e.text("attempt")}; !slices.Equal(got, c.line[1:]) {
				t.Errorf("the line is %v, want %v", e, c.line)
			}
			if e.text("method") != "POST" || e.text("host") == "" {
				t.Errorf("the line does not name the request: %v", e)
			}
			if ran := c.line[3] != "" && c.line[3] != "0"; ran != uuidV7.MatchString(e.text("execution_id")) {
				t.Errorf("the line names the execution %q", e.text("execution_id"))
			}
		})
	}
	// These need more than one request after the other, and have tests of their own.
	for _, o := range []report.Outcome{report.Waited, report.InFlight, report.Overloaded, report.Loop, report.Unreadable} {
		seen[o] = true
	}
	for _, o := range report.Outcomes {
		if !seen[o] {
			t.Errorf("no request has the outcome %s", o)
		}
	}
}

// What is in flight is measured and counted.
func TestRequestsInFlightAreMeasured(t *testing.T) {
	arrived, goOn := make(chan struct{}, 2), make(chan struct{})
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		arrived <- struct{}{}
		<-goOn
		answers(201, "done")(w, r, 0)
	})
	s := serveLogged(t, "", "limits {\nwaiters_per_key 1\n}", "dedup", "reverse_proxy "+address)
	registry := registryOf(t, processMetrics)
	_, before := gathered(t, registry)
	answered := make(chan answer)
	later := func() { go func() { answered <- s.serveHTTP("k", "body") }() }
	later()
	<-arrived
	later()
	s.waits()
	got := s.serveHTTP("k", "body")
	if refused := got.problem(t, 503, "overloaded"); got.header.Get("Retry-After") == "" || refused.ExecutionID != s.only().ExecutionID || strings.Contains(refused.Detail, "not executed") {
		t.Errorf("one too many got %+v", got)
	}
	book.only(t, "refused a request", "code", "overloaded", "level", "warn", "delivery_id", "k")
	gauges := func() (inFlight, waiting float64) {
		_, now := gathered(t, registry)
		return now["caddy_dedup_in_flight"], now["caddy_dedup_waiting"]
	}
	if inFlight, waiting := gauges(); inFlight != 1 || waiting != 1 {
		t.Errorf("%v are in flight and %v wait, want 1 each", inFlight, waiting)
	}
	close(goOn)
	for range 2 {
		if got := <-answered; got.status != 201 {
			t.Errorf("got %+v", got)
		}
	}
	if inFlight, waiting := gauges(); inFlight != 0 || waiting != 0 {
		t.Errorf("%v are in flight and %v wait at the end", inFlight, waiting)
	}
	want := map[string]float64{"caddy_dedup_overloads_total waiters_per_key": 1, "caddy_dedup_runs_total api " + string(engine.ResultKept): 1}
	for _, o := range []string{"executed", "waited", "overloaded"} {
		want[fmt.Sprintf("caddy_dedup_requests_total false %s api", o)] = 1
	}
	if got := grown(t, registry, before); !maps.Equal(got, want) {
		t.Errorf("the counters grow by %v, want %v", got, want)
	}
}

// A request that passes two handlers counts once in each. The second one meets the key of the first,
// which releases it: a refusal of a handler of this process is an answer that was not sent.
func TestTwoHandlersCountARequestEach(t *testing.T) {
	s := serve(t, "route {", "dedup", "dedup", "respond done 201", "}")
	registry := registryOf(t, processMetrics)
	_, before := gathered(t, registry)
	s.serveHTTP("k", "body")
	want := map[string]float64{
		"caddy_dedup_requests_total false executed api": 1, "caddy_dedup_requests_total false loop api": 1, "caddy_dedup_runs_total api not_sent": 1,
	}
	if got := grown(t, registry, before); !maps.Equal(got, want) {
		t.Errorf("the counters grow by %v, want %v", got, want)
	}
}
