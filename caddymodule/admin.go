package caddymodule

import (
	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/exchange"
)

func init() {
	caddy.RegisterModule(new(AdminAPI))
}

// AdminAPI answers operators' requests about keys at Caddy's admin address:
//
//	GET    /dedup/keys                lists records, filtered by state, delivery ID and more, in pages
//	POST   /dedup/lookup              looks up the records of many delivery IDs
//	GET    /dedup/keys/<key>          shows the record of a key; with ?body=true also its response
//	POST   /dedup/keys/<key>/release  releases a held, complete or exhausted key, and keeps its history
//	DELETE /dedup/keys/<key>          forgets the key
//	GET    /dedup/ready               reports whether the stores answer
type AdminAPI struct{}

// CaddyModule returns the Caddy module information.
func (*AdminAPI) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "admin.api.dedup",
		New: func() caddy.Module { return new(AdminAPI) },
	}
}

// Routes implements [caddy.AdminRouter].
func (*AdminAPI) Routes() []caddy.AdminRoute {
	api := &admin.API{Open: openStores, ParseDuration: caddy.ParseDuration, User: exchange.User}
	var routes []caddy.AdminRoute
	for _, route := range api.Routes() {
		routes = append(routes, caddy.AdminRoute{Pattern: route.Pattern, Handler: caddy.AdminHandlerFunc(route.Serve)})
	}
	return routes
}

// openStores acquires all open stores of the process.
func openStores() (open []admin.Store) {
	for _, store := range stores.All() {
		open = append(open, store)
	}
	return open
}

var _ caddy.AdminRouter = (*AdminAPI)(nil)
