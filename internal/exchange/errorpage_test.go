package exchange

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/recording"
	"github.com/caddy-dedup/caddy-dedup/internal/upstream"
)

// newErrorPage returns a page for a 503, and the client that gets it. A handler in front has set a
// header.
func newErrorPage() (*errorPage, *httptest.ResponseRecorder) {
	client := httptest.NewRecorder()
	client.Header().Set("X-Front", "1")
	return &errorPage{to: recording.NewWriter(client, nil, recording.WriteLimit{}), header: client.Header().Clone(), errorStatus: 503, repl: caddy.NewReplacer()}, client
}

// Status and header are held back until the first byte, or a status of the page's own. From then on
// the client has each byte as it is written.
func TestErrorPageStreams(t *testing.T) {
	page, client := newErrorPage()
	page.Header().Set("Content-Type", "text/html")
	page.WriteHeader(http.StatusEarlyHints)
	page.WriteHeader(503)
	page.WriteHeader(200) // the first counts
	if n, err := page.Write(nil); n != 0 || err != nil || len(client.Header()) != 1 {
		t.Errorf("before the first byte the client has %v, %v", client.Header(), err)
	}
	for _, want := range []string{"o", "on", "one"} {
		if _, err := io.WriteString(page, want[len(want)-1:]); err != nil || client.Body.String() != want {
			t.Errorf("the client has %q, %v; want %q", client.Body, err, want)
		}
	}
	page.Flush()
	if got := client.Result(); !page.answered() || got.StatusCode != 503 || got.Header.Get("Content-Type") != "text/html" || !client.Flushed {
		t.Errorf("it got %d %v", got.StatusCode, got.Header)
	}
}

// What is a page, and with which status. Without one, the client gets what the routes have set in the
// header, with another body.
func TestErrorPagesOfAnyStatus(t *testing.T) {
	for name, c := range map[string]struct {
		status, proxied int
		body            string
		want            int // 0 for no page
	}{
		"no route":              {0, 0, "", 0},
		"the error's status":    {503, 0, "", 0},
		"a page":                {503, 0, "sorry", 503},
		"a page without status": {0, 0, "sorry", 200},
		"a redirection":         {302, 0, "", 302},
		"a proxied page":        {201, 201, "sorry", 503},
		"proxied and empty":     {204, 204, "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			page, client := newErrorPage()
			page.Header().Set("X-Route", "1")
			page.Header().Set("Content-Encoding", "br")
			if c.proxied != 0 {
				page.repl.Set(upstream.Status, c.proxied)
			}
			if c.status != 0 {
				page.WriteHeader(c.status)
			}
			if _, err := io.WriteString(page, c.body); err != nil {
				t.Fatal(err)
			}
			isPage := page.answered()
			header := client.Header()
			if isPage != (c.want != 0) || isPage && client.Code != c.want || client.Body.String() != c.body {
				t.Errorf("a page: %v, with %d %q; want %d", isPage, client.Code, client.Body, c.want)
			}
			if header.Get("X-Front") != "1" || header.Get("X-Route") != "1" || (header.Get("Content-Encoding") != "") != isPage {
				t.Errorf("the header is %v", header)
			}
		})
	}
}
