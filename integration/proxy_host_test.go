package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/freeport"
)

// docs/proxy.md says which host the service gets: a signature may cover it.
func TestProxyCommandHandsOnTheHost(t *testing.T) {
	t.Parallel()
	hosts := make(chan string, 1)
	says := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hosts <- r.Host + " " + r.Header.Get("X-Forwarded-Host")
		w.WriteHeader(http.StatusCreated)
	})
	plain, secure := httptest.NewServer(says), httptest.NewTLSServer(says)
	defer plain.Close()
	defer secure.Close()
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"over HTTP":                  {[]string{"--to", plain.URL}, "hooks.test"},
		"over HTTP, its own":         {[]string{"--to", plain.URL, "--change-host-header"}, strings.TrimPrefix(plain.URL, "http://")},
		"over HTTPS":                 {[]string{"--to", secure.URL, "--insecure"}, strings.TrimPrefix(secure.URL, "https://")},
		"over HTTPS, the sender's":   {[]string{"--to", secure.URL, "--insecure", "--header-up", "Host: {host}"}, "hooks.test"},
		"over HTTPS, its own, twice": {[]string{"--to", secure.URL, "--insecure", "--change-host-header"}, strings.TrimPrefix(secure.URL, "https://")},
	} {
		addr := fmt.Sprintf("127.0.0.1:%d", freeport.Of(t))
		p := startProcess(t, shortTempDir(t), append([]string{"proxy", "--from", addr}, c.args...)...)
		p.addr = addr
		p.awaitLog(t, "the server runs", func(e entry) bool { return strings.Contains(e.text("msg"), "server running") })
		p.post(t, "/", "", "body", host("hooks.test"))
		if got, want := <-hosts, c.want+" hooks.test"; got != want {
			t.Errorf("%s, the service saw the hosts %q; want %q", name, got, want)
		}
	}
}
