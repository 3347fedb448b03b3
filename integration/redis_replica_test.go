package integration

import (
	"strings"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/redistest"
)

// Who has set the address of a replica reads so at the start, and beside each refusal.
func TestAddressOfAReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	replica := redistest.StartReplica(t, master)
	up := startUpstream(t, answers201)
	p := start(t, conf{store: storeAt(replica.Addr), site: lines("dedup_health /ready", "dedup", proxyTo(up))})
	p.awaitLog(t, "an error at the start", func(e entry) bool {
		return e.text("level") == "error" && strings.Contains(e.text("msg"), "is a replica") && e.text("address") == replica.Addr
	})
	wantProblem(t, p.post(t, "/", "k", "body"), 503, "store_unavailable")
	p.awaitLog(t, "the refusal's line", func(e entry) bool {
		return strings.HasPrefix(e.text("logger"), "http.handlers.dedup") && strings.Contains(e.text("error"), "the server is a replica; set the address of the master")
	})
	up.wantRuns(t, "k", 0)
	// It answers, and takes no claim: a rollout with this address must not go on.
	probe := p.post(t, "/ready", "", "", method("GET"))
	status, said := p.askAdmin(t, "GET", "/dedup/ready", "", "")
	if probe.Status != 503 || probe.Body != said {
		t.Errorf("dedup_health says %d %s, and the admin API %s", probe.Status, probe.Body, said)
	}
	if status != 503 || !strings.Contains(said, "the server is a replica") {
		t.Errorf("ready is answered %d %s; want 503, and that the server is a replica", status, said)
	}
	replica.Do("REPLICAOF", "NO", "ONE")
	eventually(t, "it is ready without a request", func() bool { return p.post(t, "/ready", "", "", method("GET")).Status == 200 })
}
