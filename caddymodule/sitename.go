package caddymodule

import (
	"cmp"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// siteOf names the site whose handler is being provisioned, "" outside of a server: by the innermost
// hosts that lead to it, else by the addresses of the server.
func siteOf(ctx caddy.Context) string {
	server, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if !ok {
		return ""
	}
	site := cmp.Or(loadingHosts(server.Routes, server.Errors), addresses(server))
	for _, module := range ctx.Modules() {
		if subroute, ok := module.(*caddyhttp.Subroute); ok {
			site = cmp.Or(loadingHosts(subroute.Routes, subroute.Errors), site)
		}
	}
	return site
}

// loadingHosts returns the hosts of the route whose handlers Caddy is loading. It loads the routes in
// their order, those of errors last, and forgets the JSON of each handler that it has loaded.
func loadingHosts(routes caddyhttp.RouteList, errors *caddyhttp.HTTPErrorConfig) string {
	if errors != nil {
		routes = slices.Concat(routes, errors.Routes)
	}
	i := slices.IndexFunc(routes, func(route caddyhttp.Route) bool { return route.HandlersRaw != nil })
	if i < 0 {
		return "" // a named route
	}
	return hosts(routes[i])
}

// addresses names a site without hosts by where its server listens.
func addresses(server *caddyhttp.Server) string { return strings.Join(server.Listen, ", ") }

// hosts returns the hosts that a route matches, "" for any.
func hosts(route caddyhttp.Route) string {
	var all []string
	for _, set := range route.MatcherSets {
		for _, matcher := range set {
			if names, ok := matcher.(*caddyhttp.MatchHost); ok {
				all = append(all, *names...)
			}
		}
	}
	return strings.Join(all, ", ")
}
