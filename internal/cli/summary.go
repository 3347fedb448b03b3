package cli

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/caddy-dedup/caddy-dedup/caddymodule"
	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// summary describes what the proxy protects, how to try it, and where it keeps its state.
func (p *proxy) summary() string {
	what, try := "requests with the header "+delivery.IdempotencyKeyHeader, p.request(delivery.IdempotencyKeyHeader)
	switch {
	case len(p.handler.Verify) > 0: // a command cannot sign
		what, try = "signed requests", "have the sender deliver again"
	case len(p.handler.Providers) > 0:
		what, try = "webhooks of "+strings.Join(p.handler.Providers, ", "), p.delivery(p.handler.Providers[0])
	case len(p.handler.Keys) > 0:
		what, try = "requests with the keys of --dedup", p.url()
	}
	state := filepath.Join(p.data, directoryOf(p.site.port))
	switch flag, _ := p.storeLine(); flag {
	case "--redis":
		state = "Redis at " + p.redisURLs()
	case "--file":
		state = p.file
	case "--dedup":
		state = "as --dedup says"
	}
	does := "caddy-dedup protects " + strings.Join(p.to, ", ")
	if p.handler.Observe {
		does = "caddy-dedup observes " + strings.Join(p.to, ", ") + ", and every request passes"
	}
	if len(p.protected) > 0 {
		what += " at " + strings.Join(p.protected, ", ")
	}
	lines := []string{
		does,
		fmt.Sprintf("  %s (%s)", what, strings.Join(p.methods(), ", ")),
		"  try:    " + try,
		"  state:  " + state,
		"  admin:  " + strings.TrimSuffix(p.admin, admin.SocketMode),
	}
	if note := p.unsignedNote(); note != "" {
		lines = append(lines, "  verify: "+note)
	}
	if len(p.redis) > 0 && len(p.handler.Scope) == 0 { // the scope contains the host with its port
		lines = append(lines, "  shared: with replicas that clients reach under the same host and port, or write --dedup 'scope ...'")
	}
	if p.health != "" {
		lines = append(lines, "  health: "+p.probes.url()+"/ready")
	}
	return strings.Join(lines, "\n")
}

// methods returns the deduplicated methods.
func (p *proxy) methods() []string {
	if len(p.handler.Methods) > 0 {
		return p.handler.Methods
	}
	return caddymodule.DefaultMethods()
}

// request returns a command that sends a request with a key in a header field.
func (p *proxy) request(field string) string {
	insecure := ""
	if p.internalCA() {
		insecure = "-k " // curl does not trust its CA
	}
	return fmt.Sprintf("curl %s-i -X %s -H '%s: try-1' -d hello %s", insecure, p.methods()[0], field, p.url())
}

// url returns a protected URL.
func (p *proxy) url() string {
	if len(p.protected) > 0 {
		return p.site.url() + strings.ReplaceAll(p.protected[0], "*", "try")
	}
	return p.site.url() + "/"
}

// delivery returns a command that sends a delivery of a provider, or the URL alone if that needs more than
// one header field.
func (p *proxy) delivery(name string) string {
	of, _ := delivery.ProviderNamed(name)
	if len(of.Sources) == 0 || of.Sources[0].Kind != delivery.KindHeader || len(of.Signs.AnyOf) > 0 {
		return p.url()
	}
	return p.request(of.Sources[0].Header)
}
