package caddymodule

import (
	"crypto/tls"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/caddyserver/caddy/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/delivery"
)

// Everything that says who calls an API makes another scope, each for itself and
// also beside the others; a webhook's caller is its provider.
func TestCallersHaveScopesOfTheirOwn(t *testing.T) {
	says := map[string]func(*caddy.Replacer, map[string][]string){
		"nobody":             func(*caddy.Replacer, map[string][]string) {},
		"user":               func(r *caddy.Replacer, _ map[string][]string) { r.Set("http.auth.user.id", "a") },
		"client certificate": func(r *caddy.Replacer, _ map[string][]string) { r.Set("http.request.tls.client.fingerprint", "a") },
		"other certificate":  func(r *caddy.Replacer, _ map[string][]string) { r.Set("http.request.tls.client.fingerprint", "b") },
		"Authorization":      func(_ *caddy.Replacer, h map[string][]string) { h["Authorization"] = []string{"a"} },
		"X-Api-Key":          func(_ *caddy.Replacer, h map[string][]string) { h["X-Api-Key"] = []string{"a"} },
		"Remote-User":        func(_ *caddy.Replacer, h map[string][]string) { h["Remote-User"] = []string{"a"} },
		"empty Remote-User":  func(_ *caddy.Replacer, h map[string][]string) { h["Remote-User"] = []string{""} },
	}
	for _, mode := range []delivery.Mode{delivery.ModeAPI, delivery.ModeWebhook} {
		handler := &Handler{Settings: Settings{Mode: string(mode)}}
		var seen [][]string
		for name, say := range says {
			r, repl := httptest.NewRequest("POST", "/", nil), caddy.NewReplacer()
			r.TLS = new(tls.ConnectionState) // without it nobody has a certificate
			say(repl, r.Header)
			scope := handler.appendScope(nil, r, "/", repl, delivery.Found{})
			same := slices.ContainsFunc(seen, func(other []string) bool { return slices.Equal(scope, other) })
			if wantSame := mode == delivery.ModeWebhook && len(seen) > 0; same != wantSame {
				t.Errorf("%s, %s: the scope %q was seen before: %v, want %v", mode, name, scope, same, wantSame)
			}
			seen = append(seen, scope)
		}
	}
}
