package caddymodule

import (
	"fmt"
	"io"
	"net/http"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// endings are ways in which an upstream ends a request, and those of statuses.
var endings = map[int]func(http.ResponseWriter, *http.Request){
	noAnswer: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	cutBody: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		cut(w)
	},
	cutStream: func(w http.ResponseWriter, _ *http.Request) { cut(w) },
	tooSlow:   func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
}

const (
	noAnswer = -1 - iota
	cutBody
	cutStream
	tooSlow
)

func cut(w http.ResponseWriter) {
	_, _ = io.WriteString(w, "cut off")
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// inTurn is a service that ends its requests in turn, the last way once and again: with a status,
// or in one of endings.
func inTurn(turns ...int) func(http.ResponseWriter, *http.Request, int) {
	return func(w http.ResponseWriter, r *http.Request, n int) {
		turn := turns[min(n, len(turns))-1]
		if end, ok := endings[turn]; ok {
			end(w, r)
		} else {
			w.WriteHeader(turn)
			fmt.Fprint(w, "run ", n)
		}
	}
}

// As many runs reach the upstream as `max_attempts` allows. The response of the last one is kept,
// whatever its status is. An unknown end leaves nothing to keep: it exhausts the attempts, and under
// hold it is an operator's matter, whatever attempt it was of.
func TestEndOfTheLastAttempt(t *testing.T) {
	const kept, held, exhausted = "", "outcome_unknown", "attempts_exhausted"
	for _, c := range []struct {
		dedup string
		turns []int
		code  string // that duplicates are refused with
	}{
		{"max_attempts 1", []int{500}, kept},
		{"max_attempts 3", []int{503, 500, 500}, kept},
		{"max_attempts 3", []int{503, 500, 503}, kept},
		{"max_attempts 3", []int{503, 500, 429}, kept},
		{"max_attempts 3", []int{503, 500, 401}, kept},
		{"max_attempts 3", []int{503, 500, 404}, kept},
		{"max_attempts 3", []int{503, 500, 201}, kept},
		{"max_attempts 2", []int{500, noAnswer}, exhausted},
		{"max_attempts 2", []int{500, cutBody}, exhausted},
		{"max_attempts 2", []int{500, cutStream}, exhausted},
		{"max_attempts 2\ntimeout 300ms", []int{500, tooSlow}, exhausted},
		{"max_attempts 5\non_unknown hold", []int{500, noAnswer}, held},
		{"max_attempts 1\non_unknown hold", []int{noAnswer}, held},
		{"max_attempts 1\non_unknown hold", []int{504}, held},
		{"max_attempts 1\non_unknown hold", []int{500}, kept},
	} {
		for mode, refused := range map[string]int{"api": 409, "webhook": 503} {
			t.Run(fmt.Sprintf("%s, %s, %v", mode, c.dedup, c.turns), func(t *testing.T) {
				address, runs := startUpstream(t, inTurn(c.turns...))
				s := serve(t, "dedup {", "mode "+mode, "key header Idempotency-Key", c.dedup, "}", "reverse_proxy "+address)
				var last answer
				for range c.turns {
					last, _ = s.post("k", "body") // it may be cut
				}
				execution := s.only().ExecutionID
				for range 2 {
					switch got := s.mustPost("k", "body"); {
					case c.code != kept:
						if p := got.problem(t, refused, c.code); p.ExecutionID != execution {
							t.Errorf("the refusal names the execution %q, want %q", p.ExecutionID, execution)
						}
					case got.status != last.status || got.body != last.body || got.header.Get("Idempotent-Replayed") != "true":
						t.Errorf("the duplicate got %+v, want a replay of %+v", got, last)
					}
				}
				if n := runs.Load(); n != int64(len(c.turns)) || s.only().Attempt != len(c.turns) {
					t.Errorf("the upstream ran %d times, in %d attempts; want %d", n, s.only().Attempt, len(c.turns))
				}
			})
		}
	}
}

// A run that never reached the upstream is no attempt.
func TestNotSentIsNoAttempt(t *testing.T) {
	address, runs := startUpstream(t, inTurn(500))
	s := serve(t, "@away header X-Away *", "route {", "dedup {", "max_attempts 2", "}", "reverse_proxy @away "+nothing, "reverse_proxy "+address, "}")
	for attempt := range 2 {
		for range 3 {
			if got := s.mustPost("k", "body", "X-Away", "1"); got.status != 502 || got.header.Get("Idempotent-Replayed") != "" || s.only().Attempt != attempt {
				t.Fatalf("got %+v at attempt %d; want a 502 at %d", got, s.only().Attempt, attempt)
			}
		}
		if got := s.mustPost("k", "body"); got.status != 500 || s.only().Attempt != attempt+1 {
			t.Errorf("got %+v at attempt %d", got, s.only().Attempt)
		}
	}
	if got := s.mustPost("k", "body", "X-Away", "1"); got.body != "run 2" || got.header.Get("Idempotent-Replayed") != "true" || runs.Load() != 2 {
		t.Errorf("got %+v after %d runs, want the last response", got, runs.Load())
	}
}

// `on_unknown hold` with `release_on off` is strict at-most-once: whatever the first run's end, the
// upstream never gets the key again. Only a request that was never sent may be sent.
func TestStrictAtMostOnce(t *testing.T) {
	for _, c := range []struct {
		end   int
		state idempotency.State
	}{
		{201, idempotency.Complete},
		{409, idempotency.Complete},
		{500, idempotency.Complete},
		{503, idempotency.Complete},
		{502, idempotency.Held},
		{504, idempotency.Held},
		{noAnswer, idempotency.Held},
		{cutBody, idempotency.Held},
		{cutStream, idempotency.Held},
		{tooSlow, idempotency.Held},
	} {
		t.Run(fmt.Sprint(c.end), func(t *testing.T) {
			address, runs := startUpstream(t, inTurn(c.end, 201))
			timeout := "1m" // which a slow machine does not reach
			if c.end == tooSlow {
				timeout = "300ms"
			}
			s := serve(t, "dedup {", "on_unknown hold", "release_on off", "timeout "+timeout, "}", "reverse_proxy "+address)
			_, _ = s.post("k", "body") // it may be cut
			for range 3 {
				got := s.mustPost("k", "body")
				if c.state == idempotency.Held {
					got.problem(t, 409, "outcome_unknown")
				} else if got.status != c.end || got.header.Get("Idempotent-Replayed") != "true" {
					t.Errorf("the duplicate got %+v, want a replay", got)
				}
			}
			if state := s.only().State; state != c.state || runs.Load() != 1 {
				t.Errorf("the key is %s after %d runs, want %s after 1", state, runs.Load(), c.state)
			}
		})
	}
}
