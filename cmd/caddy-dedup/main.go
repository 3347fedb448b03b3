// Command caddy-dedup is Caddy with the dedup handler in it, and the command
// `proxy`, which puts the handler in front of a service without a file.
package main

import (
	"runtime/debug"
	_ "time/tzdata" // a container may have no zone files

	"github.com/caddyserver/caddy/v2"
	caddycmd "github.com/caddyserver/caddy/v2/cmd"
	_ "github.com/caddyserver/caddy/v2/modules/standard"

	_ "github.com/caddy-dedup/caddy-dedup"
)

// version is the version of this build where Go does not know it, as in a folder
// without its git repository:
//
//	go build -ldflags '-X main.version=v0.1.0' ./cmd/caddy-dedup
var version string

func main() {
	// Both can be set by -ldflags too, which then wins.
	if caddy.CustomBinaryName == "" {
		caddy.CustomBinaryName = "caddy-dedup"
	}
	if caddy.CustomVersion == "" {
		info, _ := debug.ReadBuildInfo() // nil if the binary has none
		caddy.CustomVersion = beforeCaddysVersion(version, info)
	}
	caddycmd.Main()
}
