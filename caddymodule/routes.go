package caddymodule

import (
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"
)

// place is what is known of where a handler stands.
type place struct {
	server      string
	listen      []string
	hosts       []string
	paths       []string
	behindOther bool // another dedup handler stands right before it on the same route
	answered    bool // a proxy before it answers all requests
}

// know notes a handler of the configuration.
func (a *App) know(h *Handler) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handlers = append(a.handlers, h)
}

// warn logs what an operator has to know of the configuration's handlers before the
// first request, and before a store fails.
func (a *App) warn() {
	places := a.places()
	for _, h := range a.handlers {
		at := places[h] // nothing, for a handler within a module that is not Caddy's own
		facts := []zap.Field{
			zap.String("server", at.server), zap.Strings("listen", at.listen), zap.Strings("host", at.hosts),
			zap.Strings("path", at.paths), zap.Strings("providers", h.Providers),
		}
		if h.StoreErrors == storeErrorsPass {
			a.logger.Warn("store_errors pass: while the store fails, requests pass unprotected and duplicates run",
				append(facts, zap.String("store", h.store.Describe()))...)
		}
		if at.behindOther {
			a.logger.Warn("two dedup handlers follow each other on one route: each request passes both, and the first "+
				"one runs around the second; for several senders or keys one dedup with all of them is enough", facts...)
		}
		if at.answered {
			a.logger.Warn("dedup protects nothing: a reverse_proxy that stands before it on its route answers all requests, and none "+
				"reaches it; put dedup before what it is to protect", facts...)
		}
	}
}

// places finds the handlers in the routes of Caddy's HTTP servers.
func (a *App) places() map[*Handler]place {
	found := make(map[*Handler]place)
	module, err := a.ctx.AppIfConfigured("http")
	if err != nil {
		return found
	}
	for name, server := range module.(*caddyhttp.App).Servers {
		at := place{server: name, listen: server.Listen}
		at.find(server.Routes, found)
		if server.Errors != nil {
			at.find(server.Errors.Routes, found)
		}
		for _, route := range server.NamedRoutes {
			at.find(caddyhttp.RouteList{*route}, found)
		}
	}
	return found
}

// find notes the handlers of routes that are reached through this place, and reports
// whether they answer all requests, so that nothing that follows is reached.
func (p place) find(routes caddyhttp.RouteList, found map[*Handler]place) (answers bool) {
	letBy := make(map[string]bool) // groups with a route that may be the one, and does not answer
	for _, route := range routes {
		at := p
		for _, set := range route.MatcherSets {
			at = at.narrowedBy(set)
		}
		var before *Handler
		for _, handler := range route.Handlers {
			if h, ours := handler.(*Handler); ours {
				at.behindOther = before != nil
				before, found[h] = h, at
				continue
			}
			before = nil
			at.answered = at.findIn(handler, found) || at.answered
		}
		if route.Group != "" && !at.answered {
			letBy[route.Group] = true
		}
		if len(route.MatcherSets) == 0 && !letBy[route.Group] {
			p.answered = at.answered
		}
	}
	return p.answered
}

// findIn notes the handlers within a handler, and reports whether that answers all requests.
func (p place) findIn(handler caddyhttp.MiddlewareHandler, found map[*Handler]place) (answers bool) {
	switch h := handler.(type) {
	case *caddyhttp.Subroute:
		if h.Errors != nil {
			p.find(h.Errors.Routes, found)
		}
		return p.find(h.Routes, found)
	case *reverseproxy.Handler:
		return len(h.HandleResponse) == 0 // with these, as forward_auth has them, it may go on
	default:
		return false
	}
}

// narrowedBy adds the hosts and paths that a matcher names; of others nothing is known.
func (p place) narrowedBy(set caddyhttp.MatcherSet) place {
	p.hosts, p.paths = p.hosts[:len(p.hosts):len(p.hosts)], p.paths[:len(p.paths):len(p.paths)]
	for _, matcher := range set {
		switch m := matcher.(type) {
		case *caddyhttp.MatchHost:
			p.hosts = append(p.hosts, *m...)
		case *caddyhttp.MatchPath:
			p.paths = append(p.paths, *m...)
		}
	}
	return p
}
