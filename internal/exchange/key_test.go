package exchange

import (
	"bufio"
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

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
		"two lines":          func(_ *caddy.Replacer, h map[string][]string) { h["Authorization"] = []string{"a", "b"} },
	}
	for _, name := range []string{
		"x-api-key", "api-key", "apikey", "x-auth-token", "x-access-token", "private-token", "x-goog-api-key", "ocp-apim-subscription-key",
		"x-vault-token", "x-shopify-access-token", "stripe-account", "x-tenant-id", "remote-user", "x-forwarded-user", "x-auth-request-user",
		"x-amzn-oidc-identity", "cf-access-authenticated-user-email", "x-auth-request-email", "x-authentik-username", "x-authentik-uid",
		"x-consumer-id", "x-goog-authenticated-user-id", "x-ms-client-principal-id", "tailscale-user-login", "x-webauth-user", "x-functions-key",
		"x-rapidapi-user",
	} {
		says[name] = func(_ *caddy.Replacer, h map[string][]string) { http.Header(h).Set(name, "a") }
	}
	for _, mode := range []delivery.Mode{delivery.ModeAPI, delivery.ModeWebhook} {
		handler := New(Config{Mode: mode, Logger: zap.NewNop()})
		var seen [][]string
		for name, say := range says {
			r, repl := httptest.NewRequest("POST", "/", nil), caddy.NewReplacer()
			r.TLS = new(tls.ConnectionState) // without it nobody has a certificate
			say(repl, r.Header)
			scope := defaultScope(t, handler, r, "/", repl)
			same := slices.ContainsFunc(seen, func(other []string) bool { return slices.Equal(scope, other) })
			if wantSame := mode == delivery.ModeWebhook && len(seen) > 0; same != wantSame {
				t.Errorf("%s, %s: the scope %q was seen before: %v, want %v", mode, name, scope, same, wantSame)
			}
			seen = append(seen, scope)
		}
	}
}

// defaultScope returns the default scope of a request.
func defaultScope(t *testing.T, h *Handler, r *http.Request, path string, repl *caddy.Replacer) []string {
	t.Helper()
	r = r.WithContext(context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl))
	scope, err := (&exchange{Handler: h, r: r}).appendScope(nil, r, path)
	if err != nil {
		t.Fatal(err)
	}
	return scope
}

// Requests that differ only in how they write one host and path, or in empty fields, have
// one scope; no others have it. Each request is its target and its header.
func TestTargetsHaveScopes(t *testing.T) {
	handler := New(Config{Mode: delivery.ModeAPI, Logger: zap.NewNop()})
	seen := map[string]string{}
	for _, equal := range [][]string{
		{
			"/|Host: shop.test", "/|Host: SHOP.test", "/|Host: shop.test.", "/|Host: shop.test:", "/|Host: shop.test:80", "/|Host: shop.test.:80",
			"http://shop.test|Host: shop.test", "http://shop.test.:80?a=b|Host: other.test", "http://user:secret@shop.test/|Host: shop.test",
			"/|Host: shop.test|Authorization:", "/|Host: shop.test|X-Api-Key: |Remote-User:|Authorization:|Authorization:",
			"TLS /|Host: shop.test:443", "TLS /|Host: shop.test.:443",
		},
		{"/|Host: shop.test:443", "http://shop.test.:443|Host: shop.test"},
		{"TLS /|Host: shop.test:80"},
		{"/|Host: [2001:db8::1]", "/|Host: [2001:DB8::1]:80", "http://[2001:db8::1]|Host: shop.test"},
		{"/|Host: [2001:db8::1]:8080"},
		{"/|Host: [2001:db8::1:8080]"},
		{"/|Host: shop.test|Authorization: a", "/|Host: shop.test|Authorization:|Authorization: a|X-Api-Key:"},
		{"//|Host: shop.test", "http://shop.test//|Host: shop.test"},
		{"/a%2Fb?x=/|Host: shop.test", "http://shop.test/a%2Fb|Host: shop.test"},
		{"/a/b|Host: shop.test"},
		{"/a\"b%2Fc|Host: shop.test"}, // of which url.EscapedPath makes the next one
		{"/a\"b/c|Host: shop.test"},
		{"*|Host: shop.test"},
		{"shop:transfer|Host: shop.test", "shop:transfer?x|Host: shop.test"},
		{"shop:refund|Host: shop.test"},
	} {
		var first string
		for i, text := range equal {
			text, overTLS := strings.CutPrefix(text, "TLS ")
			target, header, _ := strings.Cut(text, "|")
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + target + " HTTP/1.1\r\n" + strings.ReplaceAll(header, "|", "\r\n") + "\r\n\r\n")))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if overTLS {
				r.TLS = new(tls.ConnectionState)
			}
			path, _ := originalPath(r)
			scope := strings.Join(defaultScope(t, handler, r, path, caddy.NewReplacer()), "\n")
			if i == 0 {
				first = scope
			}
			if other, ok := seen[scope]; scope != first || ok && i == 0 {
				t.Errorf("%s has the scope %q, %s has %q; seen before with %q", equal[i], scope, equal[0], first, other)
			}
			seen[scope] = text
		}
	}
}

// A rewrite in front of the handler changes neither path nor query.
func TestTargetsAsSent(t *testing.T) {
	for target, want := range map[string][2]string{
		"/orders/a%2Fb?x=/":  {"/orders/a%2Fb", "x=/"},
		"http://shop.test?y": {"/", "y"},
		"shop:transfer":      {"transfer", ""},
	} {
		r := httptest.NewRequest("POST", target, nil)
		if path, query := originalPath(r); path != want[0] || query != want[1] {
			t.Errorf("%s: %q and %q, want %q", target, path, query, want)
		}
		original := http.Request{URL: r.URL, RequestURI: r.RequestURI}
		rewritten := httptest.NewRequest("POST", "/rewritten?z", nil)
		rewritten = rewritten.WithContext(context.WithValue(rewritten.Context(), caddyhttp.OriginalRequestCtxKey, original))
		if path, query := originalPath(rewritten); path != want[0] || query != want[1] {
			t.Errorf("%s, rewritten: %q and %q, want %q", target, path, query, want)
		}
	}
}

// Parameters are compared decoded, and those that are left are as they were sent.
func TestQueryWithoutExcludedParameters(t *testing.T) {
	for _, c := range []struct{ exclude, query, want string }{
		{"?ts ?sig", "a=1&ts=1&b=%20&sig=x", "a=1&b=%20"},
		{"?ts ?sig", "t%73=3&ts=4&ts&a=1&b=%20", "a=1&b=%20"},
		{"?t%73", "ts=1&a=1", "a=1"},
		{"?a+b", "a%20b=1&a+b=2&a%2Bb=3", "a%2Bb=3"},
		{"?ts", "TS=1&b=+&%zz=1&&", "TS=1&b=+&%zz=1&&"},
		{"?*", "a=1&ts=1", ""},
		{"?*", "", ""},
		{"/ts /sig", "ts=1&sig=x", "ts=1&sig=x"},
		{"", "ts=1", "ts=1"},
	} {
		h := New(Config{Exclude: strings.Fields(c.exclude)})
		if got := withoutParameters(c.query, h.excludedParameters); got != c.want {
			t.Errorf("%s without %s is %q, want %q", c.query, c.exclude, got, c.want)
		}
	}
}
