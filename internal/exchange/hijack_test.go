package exchange

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A run is settled as upgraded when it has the connection. One that does not get it,
// as over HTTP/2, goes on, and its answer is kept like any other.
func TestRunIsUpgradedWhenItHasTheConnection(t *testing.T) {
	upgrades := 0
	watched := func(w http.ResponseWriter, r *http.Request) *execution {
		return newExecution(t, w, r, Config{MaxResponseBody: 1000}, func(idempotency.Settlement) { upgrades++ })
	}
	c := watched(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/", nil)) // it has no connection to hand over
	if _, _, err := http.NewResponseController(c).Hijack(); err == nil || upgrades != 0 || c.response.upgraded {
		t.Errorf("without a connection: %v, upgraded %d times", err, upgrades)
	}
	if _, err := c.Write([]byte("an answer")); err != nil || c.ended(nil).Broken || upgrades != 0 {
		t.Errorf("the answer after that: %v, broken: %v, upgraded %d times", err, c.ended(nil).Broken, upgrades)
	}

	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(watched(w, r)).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = conn.Write([]byte("HTTP/1.1 204 No Content\r\n\r\n"))
		_ = conn.Close()
	}))
	defer server.Close()
	got, err := http.Post(server.URL, "text/plain", strings.NewReader("request"))
	if err != nil {
		t.Fatal(err)
	}
	_ = got.Body.Close()
	if got.StatusCode != http.StatusNoContent || upgrades != 1 {
		t.Errorf("with a connection: %d, upgraded %d times", got.StatusCode, upgrades)
	}
}
