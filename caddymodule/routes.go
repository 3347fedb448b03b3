package caddymodule

import (
	"net/http"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/headers"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
	"github.com/caddy-dedup/caddy-dedup/internal/recording"
)

// place is what is known of where a handler stands.
type place struct {
	server      string
	of          *caddyhttp.Server
	listen      []string
	hosts       []string
	paths       []string
	behindOther bool // another dedup handler stands right before it on the same route
	answered    bool // a proxy before it answers all requests
	covered     bool // a dedup handler before it sees all requests
	last        bool // no handler stands behind it, on its route or a later one
	// alike are the header fields that handlers before it make the same in all requests.
	alike []string
}

// surroundings is what is found in the routes.
type surroundings struct {
	handlers map[*Handler]place
	// literal are the places of proxies that send our placeholders, and to which requests may
	// come that no dedup handler has seen. To these a placeholder is its own text.
	literal []place
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
	found := a.surroundings()
	for _, at := range found.literal {
		a.logger.Warn("a reverse_proxy sends a placeholder of dedup, and requests may come to it that no dedup has seen: these have "+
			"the placeholder's own text, one for all of them; put both into one handle block",
			zap.String("server", at.server), zap.Strings("listen", at.listen), zap.Strings("host", at.hosts), zap.Strings("path", at.paths))
	}
	for _, h := range a.handlers {
		at := found.handlers[h] // nothing, for a handler within a module that is not Caddy's own
		facts := []zap.Field{
			zap.String("server", at.server), zap.Strings("listen", at.listen), zap.Strings("host", at.hosts),
			zap.Strings("path", at.paths), zap.Strings("providers", h.Providers),
		}
		if h.StoreErrors == storeErrorsPass {
			a.logger.Warn("store_errors pass: while the store fails, requests pass unprotected and duplicates run",
				append(facts, zap.String("store", h.store.Describe()))...)
		}
		if dropped := h.droppedHeaders(at.of); len(dropped) > 0 {
			a.logger.Warn("dedup reads a header field that no request has here: Caddy removes those with an underscore or a dot unless the "+
				"server's expected_underscore_headers or expected_dot_headers names them, and then the same name with hyphens; and the "+
				"host is {http.request.host}", append(facts, zap.Strings("fields", dropped))...)
		}
		if at.behindOther {
			a.logger.Warn("two dedup handlers follow each other on one route: each request passes both, and the first "+
				"one runs around the second; for several senders or keys one dedup with all of them is enough", facts...)
		}
		if at.answered {
			a.logger.Warn("dedup protects nothing: a reverse_proxy that stands before it on its route answers all requests, and none "+
				"reaches it; put dedup before what it is to protect", facts...)
		}
		if behind := h.behindContent(); len(behind) > 0 {
			a.logger.Warn("keys stand behind one of the content, which every request with a body has: two requests with another key and "+
				"the same body are one; put key content last, and give a provider that is known by its content a dedup of its own",
				append(facts, zap.Strings("keys", behind))...)
		}
		if most := recording.MostForNew(a.Limits.Buffered); h.MaxRequestBody >= most {
			a.logger.Warn("max_request_body is more than limits buffered ever has room for: a request with a larger body is refused as "+
				"overloaded, and so is each retry of it; raise buffered, or lower max_request_body", append(facts,
				zap.Int64("max_request_body", h.MaxRequestBody), zap.Int64("buffered", a.Limits.Buffered), zap.Int64("room", most))...)
		}
		if alike := h.scopeMadeAlike(at); len(alike) > 0 {
			a.logger.Warn("request_header in front of dedup makes fields the same in all requests by which dedup tells callers or hosts "+
				"apart: where nothing else does, one gets the response of another that has the same key; set them with header_up in "+
				"reverse_proxy, or write a scope of what is left", append(facts, zap.Strings("fields", alike))...)
		}
		if names := h.ownPlaceholders(); len(names) > 0 && !at.covered {
			a.logger.Warn("dedup reads placeholders of its own, which are empty until it has found a key: only behind another dedup "+
				"do they have a value", append(facts, zap.Strings("placeholders", names))...)
		}
		if at.last {
			a.logger.Warn("nothing stands behind dedup: Caddy answers each request with an empty 200, which senders take for success, "+
				"and executes and keeps nothing; put reverse_proxy, or what else is to be protected, behind dedup", facts...)
		}
	}
}

// behindContent returns the sources that only requests without a body come to.
func (h *Handler) behindContent() []string {
	takesAll := func(s delivery.Source) bool {
		return s.Kind == delivery.KindContent && len(s.Signs.AnyOf) == 0 && len(s.Signs.NoneOf) == 0
	}
	var behind []string
	if i := slices.IndexFunc(h.sources, takesAll); i >= 0 {
		for _, source := range h.sources[i+1:] {
			behind = append(behind, source.String())
		}
	}
	return behind
}

// surroundings finds the handlers in the routes of Caddy's HTTP servers.
func (a *App) surroundings() *surroundings {
	found := &surroundings{handlers: make(map[*Handler]place)}
	module, err := a.ctx.AppIfConfigured("http")
	if err != nil {
		return found
	}
	for name, server := range module.(*caddyhttp.App).Servers {
		at := place{server: name, of: server, listen: server.Listen, last: true}
		at.find(server.Routes, found)
		at.covered, at.last = true, false // as far as is known here: they are reached from other routes
		if server.Errors != nil {
			at.find(server.Errors.Routes, found)
		}
		for _, route := range server.NamedRoutes {
			at.find(caddyhttp.RouteList{*route}, found)
		}
	}
	return found
}

// find notes the handlers of routes that are reached through this place, and returns the
// place behind them, where nothing is reached if they answer all requests.
func (p place) find(routes caddyhttp.RouteList, found *surroundings) (behind place) {
	letBy := make(map[string]bool) // groups with a route that may be the one, and does not answer
	for i, route := range routes {
		at := p
		for _, set := range route.MatcherSets {
			at = at.narrowedBy(set)
		}
		var before *Handler
		ends := p.last && isLast(routes[i:]) || route.Terminal
		for j, handler := range route.Handlers {
			at.last = ends && j == len(route.Handlers)-1
			if h, ours := handler.(*Handler); ours {
				at.behindOther = before != nil
				before, found.handlers[h] = h, at
				at.covered = true
				continue
			}
			before = nil
			within := at.findIn(handler, found)
			at.answered, at.covered, at.alike = within.answered, within.covered, within.alike
		}
		if route.Group == "" && !route.Terminal {
			p.alike = at.alike // also where only some requests come to it
		}
		if route.Group != "" && !at.answered {
			letBy[route.Group] = true
		}
		if len(route.MatcherSets) == 0 && !letBy[route.Group] {
			p.answered = at.answered
		}
		if len(route.MatcherSets) == 0 && route.Group == "" {
			p.covered = at.covered
		}
	}
	return p
}

// isLast reports whether none of the routes behind the first one has a handler for its
// requests. Of a group one route alone runs.
func isLast(routes caddyhttp.RouteList) bool {
	first := routes[0]
	return !slices.ContainsFunc(routes[1:], func(later caddyhttp.Route) bool {
		return len(later.Handlers) > 0 && (first.Group == "" || later.Group != first.Group)
	})
}

// findIn notes the handlers within a handler, and returns the place behind it.
func (p place) findIn(handler caddyhttp.MiddlewareHandler, found *surroundings) (behind place) {
	switch h := handler.(type) {
	case *caddyhttp.Subroute:
		if h.Errors != nil {
			within := p
			within.covered = true // as those of a server
			within.find(h.Errors.Routes, found)
		}
		return p.find(h.Routes, found)
	case *reverseproxy.Handler:
		if !p.covered && sendsPlaceholders(h) {
			found.literal = append(found.literal, p)
		}
		p.answered = p.answered || len(h.HandleResponse) == 0 // with these, as forward_auth has them, it may go on
	case *headers.Handler:
		p.alike = append(p.alike[:len(p.alike):len(p.alike)], madeAlike(h.Request)...)
	}
	return p
}

// madeAlike returns the fields to which a handler gives one value in all requests.
func madeAlike(request *headers.HeaderOps) []string {
	if request == nil {
		return nil
	}
	differs := func(text string) bool {
		names, _ := placeholdersIn(text)
		return slices.ContainsFunc(names, func(name string) bool { return !ofThisProcess(name) })
	}
	var alike []string
	for name, values := range request.Set {
		if !slices.ContainsFunc(values, differs) {
			alike = append(alike, http.CanonicalHeaderKey(name))
		}
	}
	return alike
}

// scopeMadeAlike returns the fields of the handler's scope that handlers in front make alike.
func (h *Handler) scopeMadeAlike(at place) []string {
	if len(h.Scope) > 0 {
		return nil
	}
	scope := []string{"Host"}
	if h.mode() == delivery.ModeAPI {
		scope = append(scope, callerHeaders...)
	}
	return slices.DeleteFunc(scope, func(name string) bool { return !slices.Contains(at.alike, name) })
}

// ownPlaceholders returns those of ours that the handler's keys and scope are made of.
func (h *Handler) ownPlaceholders() (own []string) {
	_, placeholders := h.reads()
	for _, name := range placeholders {
		if strings.HasPrefix(name, placeholderPrefix) {
			own = append(own, "{"+name+"}")
		}
	}
	return own
}

// sendsPlaceholders reports whether a proxy sets a header field to one of our placeholders.
func sendsPlaceholders(h *reverseproxy.Handler) bool {
	if h.Headers == nil || h.Headers.Request == nil {
		return false
	}
	for _, fields := range []http.Header{h.Headers.Request.Set, h.Headers.Request.Add} {
		for _, values := range fields {
			if slices.ContainsFunc(values, func(text string) bool { return strings.Contains(text, "{"+placeholderPrefix) }) {
				return true
			}
		}
	}
	return false
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
