// Package caddydedup adds the handler dedup to Caddy: it runs a request with an idempotency
// key, or a webhook delivery, once, and answers duplicates with the response of that run.
//
// With xcaddy:
//
//	xcaddy build --with github.com/caddy-dedup/caddy-dedup
//
// In a program of your own, import it beside Caddy's modules:
//
//	import (
//		caddycmd "github.com/caddyserver/caddy/v2/cmd"
//		_ "github.com/caddyserver/caddy/v2/modules/standard"
//
//		_ "github.com/caddy-dedup/caddy-dedup"
//	)
//
//	func main() { caddycmd.Main() }
//
// Importing it registers the modules http.handlers.dedup, http.handlers.dedup_health and
// http.handlers.dedup_dashboard, the app dedup with its stores, their Caddyfile directives, and
// the command dedup. The documentation is at
// https://github.com/caddy-dedup/caddy-dedup/tree/main/docs.
package caddydedup

import (
	// These register Caddy's modules, and the command dedup.
	_ "github.com/caddy-dedup/caddy-dedup/caddymodule"
	_ "github.com/caddy-dedup/caddy-dedup/internal/cli"
)
