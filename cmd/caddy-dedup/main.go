// Command caddy-dedup is Caddy with the dedup handler in it. The subcommands of `dedup`, such
// as `proxy`, which puts the handler in front of a service without a file, are commands of
// their own here.
package main

import (
	"fmt"
	"os"
	_ "time/tzdata" // a container may have no zone files

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	caddydedup "github.com/caddy-dedup/caddy-dedup"
)

func main() {
	caddydedup.NameBuild()
	registerCommands()
	command := ""
	if len(os.Args) > 1 {
		command = os.Args[1]
	}
	switch command {
	case "", "-h", "--help", "help":
		if len(os.Args) < 3 {
			os.Args = []string{os.Args[0], helpCommand}
		}
	case "upgrade", "add-package", "remove-package":
		// What they download is a Caddy without this program; and they do not know of a binary
		// whose packages are partly its own, and end in a panic.
		fmt.Fprintf(os.Stderr, "Error: %s replaces the binary by a build of caddyserver.com, which has none of caddy-dedup. Nothing was changed. Take a release, or build Caddy with the packages that you want: https://github.com/caddy-dedup/caddy-dedup/blob/main/docs/install.md\n", command)
		os.Exit(caddy.ExitCodeFailedStartup)
	}
	caddycmd.Main()
}
