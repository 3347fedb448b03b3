package caddymodule

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// callerHeaders are the request's header fields that say who calls. Cookies are
// not among them: they change without the caller changing.
var callerHeaders = []string{"Authorization", "X-Api-Key", "Remote-User"}

// callerPlaceholders say who calls where Caddy knows.
var callerPlaceholders = []string{"http.auth.user.id", "http.request.tls.client.fingerprint"}

// scopeOf returns the parts that separate the key's route and caller from all
// others. Every part has its label and its number of values before it, so that
// absent and empty differ. The first part says which rule made the scope.
func (h *Handler) scopeOf(r *http.Request, repl *caddy.Replacer, found delivery.Found) []string {
	if len(h.Scope) > 0 {
		scope := []string{"text"}
		for _, text := range h.Scope {
			scope = append(scope, repl.ReplaceAll(text, ""))
		}
		return scope
	}
	path, _ := asSent(r)
	scope := []string{string(h.mode()), "host", hostOf(r), "path", path}
	if h.mode() == delivery.ModeWebhook {
		return append(scope, found.Scope...)
	}
	scope = append(scope, "method", r.Method)
	for _, name := range callerPlaceholders {
		if value, ok := repl.GetString(name); ok && value != "" {
			scope = append(scope, name, "1", value)
		}
	}
	for _, name := range callerHeaders {
		if values := r.Header[name]; len(values) > 0 {
			scope = append(scope, name, strconv.Itoa(len(values)))
			scope = append(scope, values...)
		}
	}
	return append(scope, found.Scope...)
}

// asSent returns path and query as the client sent them, escaped, whatever
// handlers in front have rewritten.
func asSent(r *http.Request) (path, query string) {
	u := r.URL
	if original, ok := r.Context().Value(caddyhttp.OriginalRequestCtxKey).(http.Request); ok && original.URL != nil {
		u = original.URL
	}
	return u.EscapedPath(), u.RawQuery
}

// hostOf returns the host in lower case and without its port.
func hostOf(r *http.Request) string {
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.Trim(host, "[]"))
}
