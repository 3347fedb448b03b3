package caddymodule

import (
	"fmt"
	"slices"
	"time"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

func init() {
	caddy.RegisterModule(new(AdminAPI))
}

// AdminAPI serves operators' requests about keys at Caddy's admin address:
//
//	GET    /dedup/keys                lists records, filtered by state, delivery ID and more, in pages
//	POST   /dedup/lookup              looks up the records of many delivery IDs
//	GET    /dedup/keys/<key>          shows the record of a key; with ?body=true also its response
//	POST   /dedup/keys/<key>/release  releases a held, complete or exhausted key, and keeps its history
//	POST   /dedup/keys/<key>/complete completes a held, lapsed or released key with a response
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
	api := &admin.API{Open: openStores, ParseDuration: caddy.ParseDuration, CheckProvider: checkKnownProvider, MaxRun: maxRun}
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

// maxRun returns the longest timeout of a handler.
func maxRun() (longest time.Duration) {
	for _, app := range activeConfigs.active() {
		longest = max(longest, app.maxRun)
	}
	return longest
}

// limitsAttempts reports whether a handler has `max_attempts`.
func limitsAttempts() bool {
	return slices.ContainsFunc(activeConfigs.active(), func(app *App) bool { return app.limitsAttempts })
}

// checkKnownProvider refuses a provider that is neither in the catalogue nor a prefix of a configuration
// of this process.
func checkKnownProvider(name string) error {
	known := []string{labelAPI, labelCustom}
	processMetrics.providers.Range(func(label, _ any) bool {
		known = append(known, label.(string))
		return true
	})
	if _, ok := delivery.ProviderNamed(name); ok || slices.Contains(known, name) {
		return nil
	}
	slices.Sort(known)
	hint := ""
	if near := append(delivery.NearNames(name), delivery.Nearest(name, known)...); len(near) > 0 {
		slices.Sort(near)
		hint = "did you mean " + delivery.Alternatives(slices.Compact(near)) + "? "
	}
	return fmt.Errorf("%q is not a provider; %saccepted are the names of `caddy-dedup providers` and %s", name, hint, delivery.Alternatives(slices.Compact(known)))
}

var _ caddy.AdminRouter = (*AdminAPI)(nil)
