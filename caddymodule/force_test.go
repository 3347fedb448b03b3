package caddymodule

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"

	"go.uber.org/zap"
)

func TestForcedRunNamesTheClientBehindTrustedProxies(t *testing.T) {
	address, _ := startUpstream(t, answers(201, "done"))
	s := serveWith(t, "}\nservers {\ntrusted_proxies static private_ranges", "dedup {", "force X-Force", "}", "reverse_proxy "+address)
	logged := s.logged(zap.InfoLevel)
	s.mustPost("k", "body")
	s.mustPost("k", "body", "X-Force", "true", "X-Forwarded-For", "192.0.2.7")
	lines := logged.FilterMessageSnippet("forced: ").All()
	if len(lines) != 1 || lines[0].ContextMap()["client_ip"] != "192.0.2.7" {
		t.Errorf("the audit lines are %v", lines)
	}
}

// A forced run replaces what is kept if it keeps a response, and else leaves it. Each story is of one
// key.
func TestForcedRuns(t *testing.T) {
	type step struct {
		force     bool
		body, end string // how its run ends, if it is one: a status, "" for 201
		want      string // status, outcome and run that the client gets, and the run's parent
	}
	const force, plain = true, false
	type story struct {
		dedup string
		steps []step
	}
	stories := map[string]story{
		"replaces": {"", []step{
			{plain, "body", "", "201 executed 1"},
			{force, "other", "", "201 forced 2 of 1"},
			{plain, "other", "", "201 replayed 2 of 1"},
			{plain, "body", "", "422 reused 2"},
			{force, "other", "", "201 forced 3 of 2"}, // a retry of a forced request forces again
			{plain, "other", "", "201 replayed 3 of 2"},
		}},
		"nothing to replace": {"", []step{
			{force, "body", "500", "500 executed 1"},
			{force, "body", "", "201 executed 2"},
		}},
		// The last attempt's failure is kept where nothing else is. A forced run may fail beyond all attempts.
		"beyond the last attempt": {"max_attempts 2", []step{
			{plain, "body", "500", "500 executed 1"},
			{plain, "body", "500", "500 executed 2"},
			{plain, "body", "", "500 replayed 2"},
			{force, "body", "503", "503 forced 3 of 2"},
			{plain, "body", "", "500 replayed 2"},
			{force, "body", "", "201 forced 4 of 2"},
			{force, "body", "500", "500 forced 5 of 4"},
			{plain, "body", "", "201 replayed 4 of 2"},
		}},
		"a held key": {"on_unknown hold", []step{
			{plain, "body", "dead", "502 executed 1"},
			{force, "body", "", "409 held 1"},
			{plain, "body", "", "409 held 1"},
			{force, "body", "", "409 held 1"},
		}},
	}
	for name, c := range stories {
		t.Run(name, func(t *testing.T) {
			var executions []string
			got := make(chan http.Header, 10)
			address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
				got <- r.Header
				switch end := r.Header.Get("X-End"); end {
				case "":
					w.WriteHeader(201)
				case "dead":
					panic(http.ErrAbortHandler)
				default:
					status, _ := strconv.Atoi(end)
					w.WriteHeader(status)
				}
			})
			s := serve(t, "header >X-Outcome {http.dedup.outcome}", "dedup {", "force X-Force", c.dedup, "}", "reverse_proxy "+address)
			for i, step := range c.steps {
				header := []string{"X-End", step.end}
				if step.force {
					header = append(header, "X-Force", "true")
				}
				answer := s.mustPost("k", step.body, header...)
				parent := answer.header.Get("Dedup-Parent-Id")
				if len(got) > 0 {
					run := <-got
					executions = append(executions, run.Get("Dedup-Execution-Id"))
					if run.Get("Dedup-Parent-Id") != parent {
						t.Errorf("step %d: the upstream got the parent %q, and the client %q", i+1, run.Get("Dedup-Parent-Id"), parent)
					}
				}
				text := fmt.Sprintf("%d %s %d", answer.status, answer.header.Get("X-Outcome"), slices.Index(executions, answer.header.Get("Dedup-Execution-Id"))+1)
				if parent != "" {
					text += fmt.Sprintf(" of %d", slices.Index(executions, parent)+1)
				}
				if text != step.want {
					t.Errorf("step %d: got %s, want %s", i+1, text, step.want)
				}
			}
		})
	}
}

// The field goes no further, whatever it says and whether the request has a key.
func TestForceHeaderIsRemoved(t *testing.T) {
	ran := make(chan string, 20)
	address, _ := startUpstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		ran <- fmt.Sprintf("%s %q", r.Method, r.Header["X-Force"])
	})
	s := serve(t, "dedup {", "force X-Force", "}", "reverse_proxy "+address)
	s.send(with("body", "Idempotency-Key: k"))
	for i, value := range []string{"", "false", "1", "yes", "TRUE", "true, true"} {
		if again := s.send(with("body", "Idempotency-Key: k", "x-force: "+value)); again.header.Get("Idempotent-Replayed") == "" {
			t.Errorf("%q has forced a run", value)
		}
		s.send(with("body", fmt.Sprint("Idempotency-Key: ", i), "X-Force: "+value))
	}
	s.send(with("body", "Idempotency-Key: fresh", "X-Force: true"))
	s.send(with("body", "X-Force: true"))
	s.send(with("", "GET", "X-Force: true"))
	want := append(slices.Repeat([]string{"POST []"}, 9), "GET []")
	s.stop()
	s = serve(t, "dedup", "reverse_proxy "+address)
	s.send(with("body", "Idempotency-Key: k", "X-Force: true")) // where it is not named, it is a field like any other
	close(ran)
	var got []string
	for run := range ran {
		got = append(got, run)
	}
	if want = append(want, `POST ["true"]`); !slices.Equal(got, want) {
		t.Errorf("the upstream got %q, want %q", got, want)
	}
}

// A forced request that is no run on purpose leaves a line in the log all the same.
func TestForceInFlight(t *testing.T) {
	arrived, goOn := make(chan string, 2), make(chan struct{})
	finish := sync.OnceFunc(func() { close(goOn) })
	defer finish()
	address, runs := startUpstream(t, func(_ http.ResponseWriter, r *http.Request, _ int) {
		arrived <- r.Header.Get("Dedup-Execution-Id")
		<-goOn
	})
	s := serveLogged(t, "", "", "@off header X-Off *", "route {", "dedup @off {", "force X-Force", "wait off", "}", "@on not header X-Off *",
		"dedup @on {", "force X-Force", "}", "reverse_proxy "+address, "}")
	answered := make(chan answer, 2)
	later := func(lines ...string) {
		go func() { answered <- s.send(with("body", append(lines, "Idempotency-Key: k")...)) }()
	}
	later("X-Force: true")
	id := <-arrived
	for _, c := range []struct{ body, code string }{{"body", "request_in_flight"}, {"other", "idempotency_key_reused"}} {
		if got := s.send(with(c.body, "Idempotency-Key: k", "X-Off: 1", "X-Force: true")); got.status < 400 {
			t.Errorf("%s: got %+v", c.code, got)
		}
		book.only(t, "force: the request was refused", "code", c.code, "execution_id", id)
	}
	later("X-Force: true")
	s.waits()
	finish()
	first, second := <-answered, <-answered
	if first.header.Get("Dedup-Execution-Id") != id || second.header.Get("Dedup-Execution-Id") != id || runs.Load() != 1 {
		t.Errorf("got %+v and %+v after %d runs", first, second, runs.Load())
	}
	for _, message := range []string{"force: no response is kept", "force: the request got the response of the run"} {
		book.only(t, message, "level", "info", "method", "POST", "client_ip", "192.0.2.1", "execution_id", id)
	}
}
