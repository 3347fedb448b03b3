package integration

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
)

// replayed says whether an answer is marked as one.
func (r reply) replayed() bool { return r.Header.Get("Idempotent-Replayed") == "true" }

func (r reply) executionID() string { return r.Header.Get("Dedup-Execution-Id") }

// wantFresh fails unless the answer is that of the request's own run.
func wantFresh(t *testing.T, got reply, status int, body string) {
	t.Helper()
	wantAnswer(t, got, status, body)
	if v, marked := got.Header["Idempotent-Replayed"]; marked {
		t.Errorf("the first answer is marked as replayed: %q", v)
	}
}

// wantReplay fails unless the answer is that of an earlier run.
func wantReplay(t *testing.T, got reply, first reply) {
	t.Helper()
	wantAnswer(t, got, first.Status, first.Body)
	if !got.replayed() {
		t.Errorf("the duplicate is not marked as replayed: %v", got.Header)
	}
	if got.executionID() != first.executionID() {
		t.Errorf("the duplicate names execution %q, the first %q", got.executionID(), first.executionID())
	}
}

func wantAnswer(t *testing.T, got reply, status int, body string) {
	t.Helper()
	if got.Status != status || got.Body != body {
		t.Fatalf("got %d %q, want %d %q", got.Status, shorten(got.Body), status, shorten(body))
	}
}

// problem is the body of a refusal.
type problem struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Status      int    `json:"status"`
	Detail      string `json:"detail"`
	Code        string `json:"code"`
	Key         string `json:"key"`
	ExecutionID string `json:"execution_id"`
}

// keyless are the refusals that may come before the key is known.
var keyless = map[string]bool{
	"idempotency_key_missing": true, "idempotency_key_invalid": true, "request_too_large": true, "overloaded": true,
}

// wantProblem fails unless the answer is a whole refusal with this status and code.
func wantProblem(t *testing.T, got reply, status int, code string) problem {
	t.Helper()
	var p problem
	if err := json.Unmarshal([]byte(got.Body), &p); err != nil {
		t.Fatalf("got %d %q, want the problem %d %s: %v", got.Status, shorten(got.Body), status, code, err)
	}
	if kind := got.Header.Get("Content-Type"); kind != "application/problem+json" {
		t.Errorf("the problem's content type is %q", kind)
	}
	if got.Status != status || p.Status != status || p.Code != code {
		t.Fatalf("got status %d with problem %+v, want %d %s", got.Status, p, status, code)
	}
	if p.Title == "" || p.Detail == "" {
		t.Errorf("the problem says too little: %+v", p)
	}
	if !hexKey.MatchString(p.Key) && (p.Key != "" || !keyless[code]) {
		t.Errorf("the problem %s names the key %q", code, p.Key)
	}
	if got.replayed() {
		t.Error("a refusal is marked as a replay")
	}
	return p
}

// wantRetryAfter fails unless the answer says in whole seconds when to come again.
func wantRetryAfter(t *testing.T, got reply) {
	t.Helper()
	var seconds int
	if _, err := fmt.Sscanf(got.Header.Get("Retry-After"), "%d", &seconds); err != nil || seconds < 1 {
		t.Errorf("Retry-After is %q, want whole seconds from 1", got.Header.Get("Retry-After"))
	}
}

func shorten(s string) string {
	if len(s) > 300 {
		return fmt.Sprintf("%s… (%d bytes)", s[:300], len(s))
	}
	return s
}

// allAlike fails unless all answers are one run's: one of them fresh at most,
// the others replays of it.
func allAlike(t *testing.T, got []reply) {
	t.Helper()
	var once sync.Once
	fresh := 0
	for _, r := range got {
		if !r.replayed() {
			fresh++
		}
		if r.Status != got[0].Status || r.Body != got[0].Body || r.executionID() != got[0].executionID() {
			once.Do(func() {
				t.Errorf("the answers differ: %d %q %s and %d %q %s", got[0].Status, shorten(got[0].Body), got[0].executionID(), r.Status, shorten(r.Body), r.executionID())
			})
		}
	}
	if fresh > 1 {
		t.Errorf("%d answers are not marked as replayed, want 1 at most", fresh)
	}
}
