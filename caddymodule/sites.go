package caddymodule

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/fileserver"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
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

// warnUnreachable logs the sites with a dedup that no request can reach, each once. Such a site
// works, and its duplicates run.
func (a *App) warnUnreachable() {
	app, err := a.ctx.AppIfConfigured("http")
	if err != nil {
		return
	}
	servers := app.(*caddyhttp.App).Servers
	for _, name := range slices.Sorted(maps.Keys(servers)) {
		server := servers[name]
		found := make(unreachable)
		found.search(server.Routes, addresses(server), "")
		for _, route := range server.NamedRoutes {
			found.search(caddyhttp.RouteList{*route}, addresses(server), "")
		}
		for _, site := range slices.Sorted(maps.Keys(found)) {
			a.logger.Warn("no request reaches dedup: a handler without a matcher before it answers all of them; put dedup in front of that handler, in its route or by the option order",
				zap.String("site", site), zap.String("handler", found[site]))
		}
	}
}

// unreachable has the sites with a dedup that no request can reach, each with the handler that
// answers before it.
type unreachable map[string]string

// search searches routes of a site. It takes and returns the handler that answers every request
// before the routes, and behind them; "" for none.
func (u unreachable) search(routes caddyhttp.RouteList, site, answers string) string {
	passing := make(map[string]bool) // the groups with a route that passes requests on
	for _, route := range routes {
		of, by := cmp.Or(hosts(route), site), answers
		for _, handler := range route.Handlers {
			switch h := handler.(type) {
			case *Handler:
				if by != "" {
					u[of] = by
				}
			case *caddyhttp.Subroute:
				by = u.search(h.Routes, of, by)
			default:
				by = cmp.Or(by, answering(h))
			}
		}
		// A request runs only the first route of a group that matches it.
		if by == "" {
			passing[route.Group] = true
		} else if len(route.MatcherSets) == 0 && (route.Group == "" || !passing[route.Group]) {
			answers = by
		}
	}
	return answers
}

// answering returns the name of a handler that never calls the next one, else "".
func answering(handler caddyhttp.MiddlewareHandler) string {
	switch h := handler.(type) {
	case *reverseproxy.Handler:
		if len(h.HandleResponse) == 0 {
			return "reverse_proxy"
		}
	case *fileserver.FileServer:
		if !h.PassThru {
			return "file_server"
		}
	case *caddyhttp.StaticResponse:
		if h.StatusCode != "103" { // which is not the final response
			return "respond or redir"
		}
	}
	return ""
}
