package idempotency_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/caddy-dedup/caddy-dedup/"

// goList returns what go list prints about the package, line by line.
func goList(t *testing.T, arguments ...string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", append([]string{"list"}, arguments...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("go list %s: %v\n%s", strings.Join(arguments, " "), err, out)
	}
	lines := strings.Fields(string(out))
	if len(lines) == 0 {
		t.Fatalf("go list %s printed nothing", strings.Join(arguments, " "))
	}
	return lines
}

// The rules and the engine know no Caddy and no concrete store, and nothing
// else of this module.
func TestReachesNeitherCaddyNorAStore(t *testing.T) {
	for _, dependency := range goList(t, "-deps", ".") {
		for _, forbidden := range []string{"github.com/caddyserver/", "github.com/redis/", "go.etcd.io/bbolt", module} {
			if strings.HasPrefix(dependency, forbidden) && dependency != module+"internal/idempotency" {
				t.Errorf("it reaches %s", dependency)
			}
		}
	}
}

// They know no network either. Only their own imports count: the logger brings
// an HTTP server with it.
func TestImportsNoNetwork(t *testing.T) {
	for _, imported := range goList(t, "-f", `{{join .Imports "\n"}}`, ".") {
		if imported == "net" || strings.HasPrefix(imported, "net/") {
			t.Errorf("it imports %s", imported)
		}
	}
}
