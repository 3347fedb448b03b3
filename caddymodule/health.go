package caddymodule

import (
	"fmt"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

func init() {
	caddy.RegisterModule(new(Health))
	httpcaddyfile.RegisterHandlerDirective("dedup_health", parseHealth)
	// Next to dedup, and before it: Caddy puts what is registered later nearer to templates,
	// and Go initializes files in the order of their names.
	httpcaddyfile.RegisterDirectiveOrder("dedup_health", httpcaddyfile.After, "templates")
}

// The probes.
const (
	probeReady = "ready"
	probeLive  = "live"
)

// health is shared by all handlers, as the stores are.
var health = &admin.Health{Open: probedStores}

// Health answers probes, such as those of Kubernetes. `live` gets 200 while the process serves.
// `ready` gets 200 if every store in use answers within its timeout, else 503 with the reason.
// Results are cached for half a second, so frequent probes do not load the stores.
type Health struct {
	// The probe: `ready` or `live`. Default: `ready`.
	Probe string `json:"probe,omitempty"`
}

// CaddyModule returns the Caddy module information.
func (*Health) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{
		ID:  "http.handlers.dedup_health",
		New: func() caddy.Module { return new(Health) },
	}
}

// Provision fills in the default.
func (h *Health) Provision(caddy.Context) error {
	setDefault(&h.Probe, probeReady)
	return checkProbe(h.Probe)
}

func checkProbe(probe string) error {
	if probe != probeReady && probe != probeLive {
		return fmt.Errorf("dedup_health: unknown probe %q; use ready or live", probe)
	}
	return nil
}

// ServeHTTP answers a probe.
func (h *Health) ServeHTTP(w http.ResponseWriter, r *http.Request, _ caddyhttp.Handler) error {
	if h.Probe == probeLive {
		return health.ServeLive(w, r)
	}
	return health.ServeReady(w, r)
}

// probedStores returns the open stores, acquired, and the longest timeout of those that a configuration
// uses. The others get no requests.
func probedStores() (open []admin.Store, timeout time.Duration) {
	for _, store := range stores.All() {
		open = append(open, store)
		if store.InUse() {
			timeout = max(timeout, store.Timeout())
		}
	}
	return open, timeout + time.Second/10 // so that a store reports its own error first
}

func parseHealth(h httpcaddyfile.Helper) (caddyhttp.MiddlewareHandler, error) {
	handler := new(Health)
	err := handler.UnmarshalCaddyfile(h.Dispenser)
	return handler, hidePasswords(*h.Dispenser, err)
}

// UnmarshalCaddyfile reads the directive. Syntax:
//
//	dedup_health [<matcher>] [ready|live]
func (h *Health) UnmarshalCaddyfile(d *caddyfile.Dispenser) error {
	d.Next() // the directive's name
	switch args := d.RemainingArgs(); len(args) {
	case 0:
	case 1:
		if err := checkProbe(args[0]); err != nil {
			return errorAt(d, "%w", err)
		}
		h.Probe = args[0]
	default:
		return errorAt(d, "dedup_health takes one argument, ready or live; it has %d: %q", len(args), args)
	}
	return noBlock(d, "dedup_health")
}

var (
	_ caddy.Provisioner           = (*Health)(nil)
	_ caddyfile.Unmarshaler       = (*Health)(nil)
	_ caddyhttp.MiddlewareHandler = (*Health)(nil)
)
