package exchange

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"testing"
)

// A status that is none ends the run as it would without dedup, and is no informational
// response that is left out.
func TestStatusThatIsNone(t *testing.T) {
	for _, status := range []int{-1, 0, 42, 99, 1000} {
		func() {
			c := executionOn(t, httptest.NewRecorder(), 64)
			defer func() {
				if recover() == nil || c.response.status != 0 {
					t.Errorf("%d: captured %d", status, c.response.status)
				}
			}()
			c.WriteHeader(status)
		}()
	}
}

// 1xx goes to the client at once and is not the answer.
func TestCapturePassesEarlyHints(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		c := executionOn(t, w, 64)
		c.Header().Set("Link", "</style.css>; rel=preload")
		c.WriteHeader(http.StatusEarlyHints)
		c.Header().Del("Link")
		c.WriteHeader(http.StatusCreated)
		if c.response.status != http.StatusCreated || len(c.response.answered["Link"]) > 0 {
			t.Errorf("captured %d %v", c.response.status, c.response.answered)
		}
		end(c)
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
