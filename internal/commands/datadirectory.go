package commands

import (
	"os"

	"github.com/caddyserver/caddy/v2"
	"github.com/spf13/cobra"
)

func init() { cobra.OnInitialize(makeDataDirectory) }

// makeDataDirectory makes Caddy's data directory before `run`, which `start` runs too. The
// Caddyfile of `proxy --print` has the admin API on a socket there, and Caddy makes no
// directory for it. It is done here and not in the binary of caddy-dedup, because a Caddy
// that xcaddy builds runs such a Caddyfile, too.
func makeDataDirectory() {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		_ = os.MkdirAll(caddy.AppDataDir(), 0o700) // if it cannot be made, Caddy says so
	}
}
