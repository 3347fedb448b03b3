package caddymodule

import (
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// The runs of one request in a chain of dedups count as one.
func TestChainCountsAsOneRun(t *testing.T) {
	s := serveWith(t, "limits {\nin_flight 1\n}", "route {", "dedup", "dedup {", "scope shared inner", "}", "respond done 201", "}")
	if got := s.mustPost("k", "body"); got.status != 201 {
		t.Errorf("got %d %s", got.status, got.body)
	}
}

// A dedup behind another one says that it has executed nothing. The one in front counts no attempt, keeps
// nothing, and keeps the field to itself.
func TestRefusalsOfADedupBehind(t *testing.T) {
	running, goOn := make(chan struct{}), make(chan struct{})
	address, runs := startUpstream(t, func(w http.ResponseWriter, _ *http.Request, _ int) {
		close(running)
		<-goOn
		w.WriteHeader(http.StatusCreated)
	})
	var behind *url.URL
	relay := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = "/inner"
		httputil.NewSingleHostReverseProxy(behind).ServeHTTP(w, r)
	}))
	defer relay.Close()
	s := serve(t, "handle /inner {", "dedup {", "wait off", "scope shared inner", "}", "reverse_proxy "+address, "}",
		"handle {", "dedup {", "max_attempts 1", "on_unknown hold", "release_on off", "}", "reverse_proxy "+strings.TrimPrefix(relay.URL, "http://"), "}")
	behind, _ = url.Parse(s.URL)
	inner := func() (status int, header http.Header) {
		got, err := s.over(with("body", "/inner", "Idempotency-Key: k"))
		if err != nil {
			t.Error(err)
		}
		return got.status, got.header
	}
	var first sync.WaitGroup
	first.Go(func() { inner() })
	<-running
	for range 3 {
		got := s.mustPost("k", "body")
		if got.status != 409 || !strings.Contains(got.body, "request_in_flight") || got.header.Get("Dedup-Not-Executed") != "" {
			t.Errorf("got %d %s, %v", got.status, got.body, got.header)
		}
	}
	if status, header := inner(); status != 409 || header.Get("Dedup-Not-Executed") != "" {
		t.Errorf("a client that is no dedup got %d and %v", status, header)
	}
	close(goOn)
	first.Wait()
	if got := s.mustPost("k", "body"); got.status != 201 || runs.Load() != 1 {
		t.Errorf("got %d, after %d runs", got.status, runs.Load())
	}
}
