package caddydedup_test

import (
	"fmt"

	"github.com/caddyserver/caddy/v2/caddyconfig"

	_ "github.com/caddy-dedup/caddy-dedup"
)

// A request with an Idempotency-Key runs once. It may take 30 seconds, and duplicates get its
// response for a day. The program prints the JSON of this Caddyfile.
func Example() {
	const caddyfile = `
:8080 {
	dedup {
		timeout 30s
		retention 1d
	}
	respond "done"
}`
	config, _, err := caddyconfig.GetAdapter("caddyfile").Adapt([]byte(caddyfile), map[string]any{"filename": "Caddyfile"})
	if err != nil {
		panic(err)
	}
	fmt.Println(string(config))
	// Output: {"apps":{"http":{"servers":{"srv0":{"listen":[":8080"],"routes":[{"handle":[{"handler":"dedup","retention":86400000000000,"timeout":30000000000},{"body":"done","handler":"static_response"}]}]}}}}}
}
