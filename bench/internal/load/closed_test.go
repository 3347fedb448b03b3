package load

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// recording is a server that notes the keys of requests, and answers as a test wants.
type recording struct {
	*httptest.Server
	mu   sync.Mutex
	keys map[string]int
}

func startRecording(t *testing.T, answer http.HandlerFunc) *recording {
	t.Helper()
	s := &recording{keys: make(map[string]int)}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		s.mu.Lock()
		s.keys[r.Header.Get("Idempotency-Key")]++
		s.mu.Unlock()
		answer(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

func created(w http.ResponseWriter, _ *http.Request) {
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, "four")
}

func requestTo(s *recording) Request {
	return Request{URL: s.URL, Key: func(n int64) string { return fmt.Sprint("k", n) }, Body: []byte("{}"), Size: 4}
}

func TestClosedLoopSendsEachRequestOnce(t *testing.T) {
	s := startRecording(t, created)
	got := Closed(t.Context(), requestTo(s), 8, Until{Requests: 100})
	if got.Good() != 100 || got.Err() != nil || len(s.keys) != 100 {
		t.Errorf("%d answers for %d keys: %v", got.Good(), len(s.keys), got.Err())
	}
	for key, n := range s.keys {
		if n != 1 {
			t.Errorf("the key %q was sent %d times", key, n)
		}
	}
}

func TestAClosedLoopThatIsOverAtOnceHasItsAnswers(t *testing.T) {
	s := startRecording(t, created)
	if got := Closed(t.Context(), requestTo(s), 8, Until{For: 1}); got.Good() != 8 || got.Err() != nil {
		t.Errorf("%d answers on 8 connections: %v", got.Good(), got.Err())
	}
}

// An answer that is not what it had to be is never counted as one.
func TestWrongAnswersAreFailures(t *testing.T) {
	yes, no := true, false
	for name, c := range map[string]struct {
		answer   http.HandlerFunc
		replayed *bool
		want     string
	}{
		"a refusal": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			_, _ = io.WriteString(w, `{"status":503,"code":"store_unavailable"}`)
		}, nil, "503 Service Unavailable: store_unavailable"},
		"an error without a code": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no upstream", http.StatusBadGateway) }, nil, "502 Bad Gateway: no upstream"},
		"another size":            {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); _, _ = io.WriteString(w, "five5") }, nil, "5 bytes, not 4"},
		"a cut body": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "4")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "cut")
		}, nil, "unexpected EOF"},
		"a run where a replay was due": {created, &yes, "marked as a replay: false"},
		"a replay where a run was due": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Idempotent-Replayed", "true")
			created(w, r)
		}, &no, "marked as a replay: true"},
	} {
		t.Run(name, func(t *testing.T) {
			s := startRecording(t, c.answer)
			r := requestTo(s)
			r.Replayed = c.replayed
			got := Closed(t.Context(), r, 2, Until{Requests: 6})
			if got.Good() != 0 || len(got.Failed) != 1 || got.Strict() == nil {
				t.Errorf("%d good answers, failed: %v, %v", got.Good(), got.Failed, got.Strict())
			}
			for what, n := range got.Failed {
				if n != 6 || !strings.Contains(what, c.want) {
					t.Errorf("%d times %q", n, what)
				}
			}
			if refused := strings.HasPrefix(c.want, "503"); refused != (got.Err() == nil) || refused != (got.Refused() == 6) {
				t.Errorf("%d refused, and the error %v", got.Refused(), got.Err())
			}
		})
	}
}
