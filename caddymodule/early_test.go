package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/recording"
)

// deafClient takes no informational response until it is let go.
type deafClient struct {
	*httptest.ResponseRecorder
	letGo    chan struct{}
	informed atomic.Int64
}

func (d *deafClient) WriteHeader(status int) {
	if status < 200 {
		d.informed.Add(1)
		<-d.letGo
		return
	}
	d.ResponseRecorder.WriteHeader(status)
}

// A run waits for no client that takes no informational response, and its client gets the
// answer when it has taken those that were kept for it.
func TestEarlyResponsesHoldNoRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &deafClient{ResponseRecorder: httptest.NewRecorder(), letGo: make(chan struct{})}
		client.Header().Set("X-Front", "of a handler in front")
		c := captureOn(client, 64)
		c.Header().Set("Link", "</style.css>")
		for range 2 * mostEarly {
			c.WriteHeader(http.StatusEarlyHints)
		}
		c.Header().Del("Link")
		c.Header().Set("Via", "1.0 Caddy")
		c.WriteHeader(http.StatusCreated)
		if _, err := c.Write([]byte("answer")); err != nil || !c.whole() || !c.endless {
			t.Errorf("captured %d, %v", c.status, err)
		}
		if got := c.response(); got.Header["X-Front"] != nil || string(got.Body) != "answer" {
			t.Errorf("kept %+v", got)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.finish()
			c.close()
		}()
		synctest.Wait()
		if n := client.informed.Load(); n != 1 {
			t.Errorf("the client is written to %d times at once", n)
		}
		close(client.letGo)
		<-ended
		if n := client.informed.Load(); n != mostEarly {
			t.Errorf("the client got %d informational responses, want %d", n, mostEarly)
		}
		if got := client.Result(); got.StatusCode != 201 || client.Body.String() != "answer" || got.Header.Get("Link") != "" || got.Header.Get("X-Front") == "" {
			t.Errorf("the client got %d %v %q", got.StatusCode, got.Header, client.Body)
		}
	})
}

// Where the answer becomes a stream the run waits for a second, and goes on without the client.
func TestStreamGoesOnWithoutAClientThatIsDeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := &deafClient{ResponseRecorder: httptest.NewRecorder(), letGo: make(chan struct{})}
		c := captureOn(client, 64)
		c.WriteHeader(http.StatusEarlyHints)
		c.Header().Set("Content-Type", "text/event-stream")
		began := time.Now()
		c.WriteHeader(http.StatusOK)
		if took := time.Since(began); took > earlyPatience {
			t.Errorf("the run waited for its client for %s", took)
		}
		if _, err := c.Write([]byte("data: 1\n\n")); err != nil || string(c.response().Body) != "data: 1\n\n" {
			t.Errorf("captured %q, %v", c.response().Body, err)
		}
		follower := new(recording.Reader)
		follower.Begin(&c.record)
		ended := make(chan any)
		go func() {
			defer func() { ended <- recover() }()
			defer c.close()
			c.finish()
		}()
		synctest.Wait()
		duplicate := httptest.NewRecorder()
		to := recording.NewClientWriter(duplicate, nil, 0)
		if end := to.Follow(t.Context(), follower); end != recording.Whole || duplicate.Body.String() != "data: 1\n\n" {
			t.Errorf("a duplicate that follows the stream got %q, and its end %v", duplicate.Body, end)
		}
		close(client.letGo)
		if got, _ := (<-ended).(error); !errors.Is(got, http.ErrAbortHandler) {
			t.Errorf("it ended with %v: a client that got nothing must not take it for the whole", got)
		}
	})
}

// A status that is none ends the run as it would without dedup, and is no informational
// response that is left out.
func TestStatusThatIsNone(t *testing.T) {
	for _, status := range []int{-1, 0, 42, 99, 1000} {
		func() {
			c := captureOn(httptest.NewRecorder(), 64)
			defer c.close()
			defer func() {
				if recover() == nil || c.status != 0 {
					t.Errorf("%d: captured %d", status, c.status)
				}
			}()
			c.WriteHeader(status)
		}()
	}
}

// What a client's writer panics with, in a handler in front, is the request's own, also where
// nothing else is written.
func TestPanicOverAnEarlyResponse(t *testing.T) {
	for name, write := range map[string]func(c *capture){
		"nothing":  func(*capture) {},
		"whole":    func(c *capture) { _, _ = c.Write([]byte("answer")) },
		"a stream": func(c *capture) { _, _ = c.Write([]byte("answer")); c.Flush() },
	} {
		t.Run(name, func(t *testing.T) {
			c := captureOn(panicking{httptest.NewRecorder()}, 64)
			defer c.close()
			c.WriteHeader(http.StatusEarlyHints)
			write(c)
			defer func() {
				if got := recover(); got != "in front" {
					t.Errorf("it ended with %v", got)
				}
			}()
			c.finish()
		})
	}
}

type panicking struct{ *httptest.ResponseRecorder }

func (p panicking) WriteHeader(status int) {
	if status < 200 {
		panic("in front")
	}
	p.ResponseRecorder.WriteHeader(status)
}

// 1xx goes to the client at once and is not the answer.
func TestCapturePassesEarlyHints(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := captureOn(w, 64)
		c.Header().Set("Link", "</style.css>; rel=preload")
		c.WriteHeader(http.StatusEarlyHints)
		c.Header().Del("Link")
		c.WriteHeader(http.StatusCreated)
		if c.status != http.StatusCreated || len(c.answered["Link"]) > 0 {
			t.Errorf("captured %d %v", c.status, c.answered)
		}
		c.finish()
	}))
	defer server.Close()
	var hinted string
	trace := &httptrace.ClientTrace{Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
		hinted = header.Get("Link")
		return nil
	}}
	r, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodPost, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if hinted == "" || response.StatusCode != http.StatusCreated || response.Header.Get("Link") != "" {
		t.Errorf("hinted %q, then %d %v", hinted, response.StatusCode, response.Header)
	}
}
