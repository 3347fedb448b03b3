package integration

import (
	"net/http"
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// Probes see a store that goes away and comes back, and none of it makes the process less
// alive.
func TestProbesSeeTheStore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	p := start(t, conf{store: storeAt(server.Addr), site: lines("dedup_health /live live", "dedup_health /ready", "dedup", "respond done 201")})
	probe := func(path string) reply { t.Helper(); return p.post(t, path, "", "", method("GET")) }
	if got := probe("/live"); got.Status != 200 || got.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("live is answered %d with %v", got.Status, got.Header)
	}
	eventually(t, "it is ready", func() bool { return probe("/ready").Status == 200 })
	_, same := p.askAdmin(t, "GET", "/dedup/ready", "", "")
	if got := probe("/ready"); got.Body != same {
		t.Errorf("ready is answered %s, the admin API %s", got.Body, same)
	}
	if got := p.post(t, "/ready", "", "", method("HEAD")); got.Status != 200 || got.Body != "" {
		t.Errorf("HEAD is answered %d %q", got.Status, got.Body)
	}
	if got := p.post(t, "/ready", "", "", method("DELETE")); got.Status != 405 || got.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("DELETE is answered %d with Allow %q", got.Status, got.Header.Get("Allow"))
	}
	server.Pause()
	eventually(t, "it is not ready", func() bool { return probe("/ready").Status == http.StatusServiceUnavailable })
	if got := probe("/ready"); got.Header.Get("Content-Type") != "application/problem+json" || !strings.Contains(got.Body, `"stores":[{"store":"redis`) {
		t.Errorf("a store that hangs is answered %v %s", got.Header, got.Body)
	}
	if got := probe("/live"); got.Status != 200 {
		t.Errorf("live is answered %d while the store hangs", got.Status)
	}
	server.Resume()
	eventually(t, "it is ready again", func() bool { return probe("/ready").Status == 200 })
}
