package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A lease that is shorter than three operations of its store is a mistake that
// `validate` finds, for the common store and for a handler's own.
func TestLeaseAndTimeoutOfTheStoreAreValidated(t *testing.T) {
	t.Parallel()
	redis := func(timeout string) string {
		return lines("store redis redis://localhost:6379 {", "timeout "+timeout, "}")
	}
	for name, c := range map[string]struct {
		conf conf
		says string // nothing, where it is valid
	}{
		"fits":                              {conf{store: storeAt("localhost:6379"), site: dedupBlock("lease 1500ms")}, ""},
		"short for the default timeout":     {conf{store: storeAt("localhost:6379"), site: dedupBlock("lease 1s")}, "at least 1.5s"},
		"default lease":                     {conf{store: redis("10s"), site: "dedup"}, ""},
		"default lease, and a huge timeout": {conf{store: redis("1m"), site: "dedup"}, "at most 10s"},
		"the handler's own store":           {conf{store: "store memory", site: dedupBlock("lease 2s", redis("1s"))}, "at least 3s"},
		"the handler's own store fits":      {conf{store: redis("1m"), site: dedupBlock("lease 300ms", "store memory")}, ""},
		"file":                              {conf{store: "store file", site: dedupBlock("lease 300ms")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := shortTempDir(t)
			file := filepath.Join(dir, "Caddyfile")
			if err := os.WriteFile(file, []byte(c.conf.caddyfile(dir, 8080)), 0o600); err != nil {
				t.Fatal(err)
			}
			out, code := command(t, dir, "validate", "--config", file, "--adapter", "caddyfile")
			if (code == 0) != (c.says == "") || c.says != "" && !(strings.Contains(out, "lease: ") && strings.Contains(out, c.says)) {
				t.Errorf("validate ended with %d; want %q:\n%s", code, c.says, out)
			}
		})
	}
}
