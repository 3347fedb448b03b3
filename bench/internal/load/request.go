// Package load sends requests and keeps what came back: in a closed loop, where each
// connection sends its next request when it has its answer, and at a fixed rate, where the
// schedule does not wait for answers.
package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// patience is how long a request waits for its answer. Every way of the proxy ends
// much earlier; this one only bounds the run.
const patience = 30 * time.Second

// Request is what is sent, again and again, and what has to come back.
type Request struct {
	URL string
	// Key returns the idempotency key of the n-th request; "" is none.
	Key  func(n int64) string
	Body []byte
	// Header is sent with each request.
	Header func() http.Header
	// Size is how many bytes an answer has. An answer of another size is a failure, and
	// so is one with another status than 201.
	Size int64
	// Replayed says whether answers must be marked as replays; nil if nobody marks them.
	Replayed *bool
}

// Result is what came of a load.
type Result struct {
	// Latencies has one for each answer that was as it had to be, and at a fixed rate also
	// one for each request that had none: how long it had waited when the load ended.
	Latencies []time.Duration
	// Failed counts all other answers, by what they were.
	Failed map[string]int
	// Unanswered is how many requests of a fixed rate had no answer when the load ended.
	Unanswered int
	Took       time.Duration
}

// Good is how many answers were as they had to be.
func (r Result) Good() int { return len(r.Latencies) - r.Unanswered }

// PerSecond is how many of those came in a second.
func (r Result) PerSecond() float64 { return float64(r.Good()) / r.Took.Seconds() }

// refusal begins the failures that are refusals: the proxy has no room, or its store does
// not answer.
const refusal = "503 "

// Refused is how many requests were refused with 503.
func (r Result) Refused() (n int) {
	for what, times := range r.Failed {
		if strings.HasPrefix(what, refusal) {
			n += times
		}
	}
	return n
}

// Err is an error if any answer was neither as it had to be nor a refusal.
func (r Result) Err() error {
	var said []string
	for what, n := range r.Failed {
		if !strings.HasPrefix(what, refusal) {
			said = append(said, fmt.Sprintf("%d times %s", n, what))
		}
	}
	if said == nil {
		return nil
	}
	return fmt.Errorf("beside %d answers that were as they had to be: %s", r.Good(), strings.Join(said, "; "))
}

// Strict is an error if any answer was not as it had to be.
func (r Result) Strict() error {
	if n := r.Refused(); n > 0 {
		return errors.Join(fmt.Errorf("%d requests were refused with 503", n), r.Err())
	}
	return r.Err()
}

func (r *Result) add(latency time.Duration, failure string) {
	if failure == "" {
		r.Latencies = append(r.Latencies, latency)
		return
	}
	if r.Failed == nil {
		r.Failed = make(map[string]int)
	}
	r.Failed[failure]++
}

// sender sends the requests of one load over connections of its own.
type sender struct {
	request Request
	client  *http.Client
	sent    atomic.Int64
}

func newSender(r Request, connections int) *sender {
	return &sender{request: r, client: &http.Client{
		Timeout: patience,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: patience}).DialContext,
			MaxIdleConnsPerHost: connections,
			DisableCompression:  true, // nothing here is compressed, and nobody is asked to
		},
	}}
}

func (s *sender) close() { s.client.CloseIdleConnections() }

// send sends the next request and says what was wrong with the answer, "" if nothing.
func (s *sender) send(ctx context.Context) (failure string) {
	n := s.sent.Add(1) - 1
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.request.URL, bytes.NewReader(s.request.Body))
	if err != nil {
		return err.Error()
	}
	if s.request.Header != nil {
		r.Header = s.request.Header()
	}
	r.Header["Content-Type"] = jsonType
	if key := s.request.Key(n); key != "" {
		r.Header["Idempotency-Key"] = []string{key}
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return wordsOf(err)
	}
	defer answer.Body.Close()
	return s.judge(answer)
}

var jsonType = []string{"application/json"}

func (s *sender) judge(answer *http.Response) (failure string) {
	if answer.StatusCode != http.StatusCreated {
		said, _ := io.ReadAll(io.LimitReader(answer.Body, 300)) // what there is of it is enough
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.Status + ": " + codeIn(string(said))
	}
	size, err := io.Copy(io.Discard, answer.Body)
	if err != nil {
		return wordsOf(err)
	}
	if size != s.request.Size {
		return fmt.Sprintf("an answer of %d bytes, not %d", size, s.request.Size)
	}
	if marked := answer.Header.Get("Idempotent-Replayed") == "true"; s.request.Replayed != nil && marked != *s.request.Replayed {
		return fmt.Sprintf("an answer that is marked as a replay: %v", marked)
	}
	return ""
}

// wordsOf leaves out what differs from one connection to the next, so that equal
// failures are counted as one.
func wordsOf(err error) string {
	said := err.Error()
	if at := strings.LastIndex(said, ": "); at >= 0 {
		said = said[at+2:]
	}
	return said
}

// codeIn returns the code of a problem document, else the text.
func codeIn(said string) string {
	if _, rest, found := strings.Cut(said, `"code":"`); found {
		code, _, _ := strings.Cut(rest, `"`)
		return code
	}
	return strings.TrimSpace(said)
}
