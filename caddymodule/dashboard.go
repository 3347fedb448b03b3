package caddymodule

import (
	"cmp"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/dashboard"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/report"
)

func init() {
	caddy.RegisterModule(new(Dashboard))
	httpcaddyfile.RegisterHandlerDirective("dedup_dashboard", parseDashboard)
	// After authentication, like other directives that respond.
	httpcaddyfile.RegisterDirectiveOrder("dedup_dashboard", httpcaddyfile.Before, "respond")
}

// Dashboard is a page for operators: which deliveries need attention, one delivery by its ID,
// and buttons that release, complete or forget its key. It shows the keys of all stores that are open in
// the process. It has no access control of its own: put it behind authentication.
//
// It answers every request that reaches it, whatever its path.
type Dashboard struct {
	// Also show the headers and bodies of kept responses. Default: false.
	Bodies bool `json:"bodies,omitempty"`
	// Names the installation, in the title of the page and of its window. The title also has the
	// host of the request and the namespace, unless that has a placeholder. Default: none.
	Title string `json:"title,omitempty"`

	page *dashboard.Page
}

// history records the last hour of this process. All pages share it; the first one starts it.
var history = sync.OnceValue(func() *dashboard.History {
	h := dashboard.NewHistory(processMetrics.byOutcome)
	go h.Run()
	return h
})

// CaddyModule returns the Caddy module information.
func (*Dashboard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.dedup_dashboard",
		New: func() caddy.Module { return new(Dashboard) },
	}
}

// Provision implements [caddy.Provisioner].
func (d *Dashboard) Provision(ctx caddy.Context) error {
	d.page = &dashboard.Page{
		Open: openStores, History: history(), Title: d.Title, Bodies: d.Bodies, CopyBound: engine.CopyBound, LimitsAttempts: limitsAttempts, MaxRun: maxRun,
	}
	if app, err := ctx.AppIfConfigured("dedup"); err == nil { // without it, no namespace is written
		d.page.Namespace = app.(*App).shownNamespace
	}
	return nil
}

// ServeHTTP answers with the page.
func (d *Dashboard) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	operator := operatorOf(r)
	server, _ := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server)
	if operator.User == "" && !isAddress(r.Host) && (server == nil || !namesHost(server.Routes, r)) {
		// A page of another origin could let its own name point here, and would read the keys.
		d.page.Refuse(w, r, http.StatusForbidden, "This page has neither a host in its site's address nor authentication, so it answers only requests for localhost or an IP address. Write this host into the site's address, or put authentication in front.")
		return nil
	}
	d.page.ServeHTTP(w, r.WithContext(engine.ByOperator(r.Context(), operator)))
	return nil
}

// namesHost reports whether routes name the host of a request.
func namesHost(routes caddyhttp.RouteList, r *http.Request) bool {
	for _, route := range routes {
		for _, set := range route.MatcherSets {
			for _, matcher := range set {
				if hosts, ok := matcher.(*caddyhttp.MatchHost); ok {
					if matches, err := hosts.MatchWithError(r); err == nil && matches {
						return true
					}
				}
			}
		}
		for _, handler := range route.Handlers {
			if subroute, ok := handler.(*caddyhttp.Subroute); ok && namesHost(subroute.Routes, r) {
				return true
			}
		}
	}
	return false
}

// isAddress reports whether a host is localhost or an IP address, with a port or without one.
func isAddress(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if strings.EqualFold(host, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil
}

// operatorOf identifies the sender of a request: as the admin API does, or by the user that a handler in
// front authenticated. Behind one of the trusted_proxies of the server, the address is the one that
// the proxy reports.
func operatorOf(r *http.Request) engine.Operator {
	by := admin.OperatorOf(r)
	by.User = cmp.Or(report.User(r), by.User)
	trusted, _ := caddyhttp.GetVar(r.Context(), caddyhttp.TrustedProxyVarKey).(bool)
	if client, ok := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string); ok && trusted {
		by.Remote = client
	}
	return by
}

func parseDashboard(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	page := new(Dashboard)
	err := page.UnmarshalCaddyfile(h.Dispenser)
	return page, hidePasswords(*h.Dispenser, err)
}

// UnmarshalCaddyfile reads the directive: dedup_dashboard [<matcher>] [bodies] [title <text>].
func (d *Dashboard) UnmarshalCaddyfile(of *caddyfile.Dispenser) error {
	of.Next() // the directive's name
	for of.NextArg() {
		switch word := of.Val(); {
		case word == "bodies" && d.Bodies, word == "title" && d.Title != "":
			return errorAt(of, "dedup_dashboard: %s is repeated", word)
		case word == "bodies":
			d.Bodies = true
		case word == "title" && (!of.NextArg() || of.Val() == ""):
			return errorAt(of, "dedup_dashboard: title takes a text, such as title production")
		case word == "title":
			d.Title = of.Val()
		default:
			return errorAt(of, "dedup_dashboard: unknown word %q; it takes bodies and title <text>, or nothing", word)
		}
	}
	return noBlock(of, "dedup_dashboard")
}

var (
	_ caddy.Provisioner           = (*Dashboard)(nil)
	_ caddyhttp.MiddlewareHandler = (*Dashboard)(nil)
	_ caddyfile.Unmarshaler       = (*Dashboard)(nil)
)
