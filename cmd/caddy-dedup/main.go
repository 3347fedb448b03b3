// Command caddy-dedup is Caddy with the dedup handler in it, and the command
// `proxy`, which puts the handler in front of a service without a file.
package main

import (
	"os"
	_ "time/tzdata" // a container may have no zone files

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	caddydedup "github.com/caddy-dedup/caddy-dedup"
)

func main() {
	caddydedup.NameBuild()
	if len(os.Args) > 1 && (os.Args[1] == "run" || os.Args[1] == "start") {
		// The Caddyfile of `proxy --print` has the admin API on a socket there, and Caddy
		// makes no directory for it. If this one cannot be made, Caddy says so.
		_ = os.MkdirAll(caddy.AppDataDir(), 0o700)
	}
	caddycmd.Main()
}
