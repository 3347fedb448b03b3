package delivery_test

import (
	"os/exec"
	"strings"
	"testing"
)

// The package stays usable without Caddy, and reads requests without asking
// anybody: it reaches neither Caddy nor a store.
func TestReachesNeitherCaddyNorAStore(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("go list -deps: %v\n%s", err, out)
	}
	self := false
	for dependency := range strings.Lines(string(out)) {
		dependency = strings.TrimSpace(dependency)
		self = self || strings.HasSuffix(dependency, "/caddy-dedup/internal/delivery")
		for _, forbidden := range []string{
			"github.com/caddyserver/",
			"github.com/caddy-dedup/caddy-dedup/caddymodule",
			"github.com/caddy-dedup/caddy-dedup/internal/store",
			"github.com/redis/",
			"go.etcd.io/bbolt",
		} {
			if strings.HasPrefix(dependency, forbidden) {
				t.Errorf("it reaches %s", dependency)
			}
		}
	}
	if !self {
		t.Fatalf("go list did not list the package itself:\n%s", out)
	}
}
