// Package caddydedup adds caddy-dedup to a Caddy binary: importing it registers
// the handler http.handlers.dedup, its stores, and the Caddyfile's directive and
// global option of the name dedup. It is here so that the module's own path is what
// one builds with:
//
//	xcaddy build --with github.com/caddy-dedup/caddy-dedup
//
// Besides, it says which version of caddy-dedup a build has. What the handler does is
// documented in package caddymodule and in docs/.
package caddydedup

import (
	// These register Caddy's modules, and the command dedup.
	_ "github.com/caddy-dedup/caddy-dedup/caddymodule"
	_ "github.com/caddy-dedup/caddy-dedup/internal/cli"
)
