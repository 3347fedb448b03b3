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
	p := start(t, conf{store: storeAt(replica.Addr), site: lines("dedup", proxyTo(up))})
	p.awaitLog(t, "an error at the start", func(e entry) bool {
		return e.text("level") == "error" && strings.Contains(e.text("msg"), "is a replica") && e.text("address") == replica.Addr
	})
	wantProblem(t, p.post(t, "/", "k", "body"), 503, "store_unavailable")
	p.awaitLog(t, "the refusal's line", func(e entry) bool {
		return strings.HasPrefix(e.text("logger"), "http.handlers.dedup") && strings.Contains(e.text("error"), "the server is a replica; set the address of the master")
	})
	up.wantRuns(t, "k", 0)
}
