package caddymodule

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A stream reaches the client as it comes, and a client that leaves ends the upstream's request.
func TestObserveStreamsAndCancels(t *testing.T) {
	goOn, cancelled := make(chan struct{}), make(chan error, 1)
	address, _ := startUpstream(t, func(w http.ResponseWriter, r *http.Request, _ int) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
		cancelled <- r.Context().Err()
	})
	s := serve(t, "dedup {", "observe", "on_unknown hold", "}", "reverse_proxy "+address)
	counts := s.counted()
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	got, err := oneRequest.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	if _, err := io.ReadFull(got.Body, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("the upstream's request ended with %v", err)
	}
	close(goOn)
	counts.want(t, "executed")
	if state := s.only().State; state != idempotency.Held {
		t.Errorf("the key is %s, want it held: the end is unknown", state)
	}
}

// Request and response stream at the same time, whatever the key needs of the body.
func TestObserveStreamsBothWays(t *testing.T) {
	up := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for word := make([]byte, 4); ; {
			if _, err := io.ReadFull(r.Body, word); err != nil {
				return
			}
			_, _ = w.Write(word)
			_ = http.NewResponseController(w).Flush()
		}
	}))
	startHTTP2(up)
	defer up.Close()
	s := serve(t, "dedup {", "observe", "}", "reverse_proxy h2c://"+up.Listener.Addr().String())
	counts, front := s.counted(), httptest.NewUnstartedServer(s.Config.Handler)
	startHTTP2(front)
	defer front.Close()
	body, client := io.Pipe()
	defer client.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", "k")
	go func() { _, _ = io.WriteString(client, "ping") }()
	got, err := (&http.Transport{Protocols: front.Config.Protocols}).RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	for range 2 {
		word := make([]byte, 4)
		if _, err := io.ReadFull(got.Body, word); err != nil || string(word) != "ping" {
			t.Fatalf("the client got %q, %v", word, err)
		}
		go func() { _, _ = io.WriteString(client, "ping") }()
	}
	if _, err := io.ReadFull(got.Body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_ = client.Close()
	if tail, err := io.ReadAll(got.Body); len(tail) > 0 || err != nil {
		t.Errorf("after the end the client got %q, %v", tail, err)
	}
	counts.want(t, "executed")
	if state := s.only().State; state != idempotency.Complete {
		t.Errorf("the key is %s", state)
	}
}
