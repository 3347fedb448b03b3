package caddymodule

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

// Two paths that clients sent apart are two, also with a byte in them that does not
// belong in a path, such as |: Go then forgets which / was sent as %2F.
func TestPathsAsSent(t *testing.T) {
	for target, want := range map[string]string{
		"/orders/a%2Fb?x=/":                   "/orders/a%2Fb x=/",
		"/orders/a/b":                         "/orders/a/b ",
		"/orders/a|b%2Fc":                     "/orders/a%7Cb%2Fc ",
		"/orders/a|b%2fc":                     "/orders/a%7Cb%2fc ",
		"/orders/a|b/c?x=|":                   "/orders/a%7Cb/c x=|",
		"/orders/a%7Cb/c":                     "/orders/a%7Cb/c ",
		"/orders/a%7cb/c":                     "/orders/a%7cb/c ",
		`/"<>\^{|}` + "`/%61~!$&'()*+,;=:@[]": "/%22%3C%3E%5C%5E%7B%7C%7D%60/%61~!$&'()*+,;=:@[] ",
		"/\xc3\xa4|%C3%A4":                    "/%C3%A4%7C%C3%A4 ",
		"//a|%2F":                             "//a%7C%2F ",
		"http://shop.test/a|b%2Fc?y":          "/a%7Cb%2Fc y",
		"http://shop.test":                    "http://shop.test ",
		"shop:transfer|%2F?x":                 "shop:transfer|%2F?x ",
		"*":                                   "* ",
	} {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("POST " + target + " HTTP/1.1\r\nHost: shop.test\r\n\r\n")))
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		if path, query := asSent(r); path+" "+query != want {
			t.Errorf("%s: %q and %q, want %q", target, path, query, want)
		}
		original := http.Request{URL: r.URL, RequestURI: r.RequestURI}
		rewritten := r.WithContext(context.WithValue(r.Context(), caddyhttp.OriginalRequestCtxKey, original))
		rewritten.RequestURI = "/rewritten?z"
		if rewritten.URL, err = r.URL.Parse("/rewritten?z"); err != nil {
			t.Fatal(err)
		}
		if path, query := asSent(rewritten); path+" "+query != want {
			t.Errorf("%s, rewritten: %q and %q, want %q", target, path, query, want)
		}
		r.URL.Path = "/stripped"
		if path, _ := asSent(r); r.URL.Host+r.URL.Opaque == "" && path != "/stripped" {
			t.Errorf("%s, with another path: %q", target, path)
		}
	}
	r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("CONNECT shop.test:443 HTTP/1.1\r\nHost: shop.test:443\r\n\r\n")))
	if err != nil {
		t.Fatal(err)
	}
	if path, query := asSent(r); path != "shop.test:443" || query != "" {
		t.Errorf("CONNECT: %q and %q", path, query)
	}
}
