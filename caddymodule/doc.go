// Package caddymodule has the modules of caddy-dedup for Caddy: the handlers dedup, dedup_health
// and dedup_dashboard, the app dedup, its stores, and their Caddyfile directives. Its types are
// the JSON of these modules. To add them to Caddy, import
// [github.com/caddy-dedup/caddy-dedup], which also has an example.
package caddymodule
