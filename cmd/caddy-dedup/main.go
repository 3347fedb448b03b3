// Command caddy-dedup is Caddy with the dedup handler in it, and the command
// `proxy`, which puts the handler in front of a service without a file.
package main

import (
	_ "time/tzdata" // a container may have no zone files

	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	caddydedup "github.com/caddy-dedup/caddy-dedup"
)

func main() {
	caddydedup.NameBuild()
	caddycmd.Main()
}
