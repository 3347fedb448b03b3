package caddymodule

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

// The page shows a namespace that is written as it is. One from a placeholder may be secret.
func TestNamespaceThatThePageShows(t *testing.T) {
	t.Setenv("DEDUP_TEST_NAMESPACE", "secret")
	for written, want := range map[string]string{"": "", "orders": "orders", "default": "default", "{env.DEDUP_TEST_NAMESPACE}": "", "a-{env.DEDUP_TEST_NAMESPACE}": ""} {
		app := &App{Namespace: written}
		if err := app.setNamespace(); err != nil || app.shownNamespace != want {
			t.Errorf("%q is shown as %q: %v", written, app.shownNamespace, err)
		}
	}
}

// A held delivery is found by its ID, under whatever path the page is, and released: what the page links to are
// queries, which work where a handler in front has removed the beginning of the path.
func TestDashboardFindsAndReleasesADelivery(t *testing.T) {
	up, _ := startUpstream(t, answers(http.StatusBadGateway, ""))
	for _, route := range []string{"handle_path /ops/* {\n%\n}", "handle /ops/* {\nroute {\n%\n}\n}", "@page path /ops /ops/*\nhandle @page {\n%\n}"} {
		for _, path := range []string{"/ops/", "/ops/deep/er"} {
			t.Run(path+" "+route, func(t *testing.T) {
				s := serve(t, strings.ReplaceAll(route, "%", "dedup_dashboard"), "handle {", "dedup {", "on_unknown hold", "}", "reverse_proxy "+up, "}")
				s.mustPost("a delivery", "body")
				if got := s.must(with("", "GET", path+"?q=a+delivery")); got.status != 200 || !strings.Contains(got.body, "It is unknown whether the service executed it") || strings.Contains(got.body, "Kept response") {
					t.Fatalf("got %d %s", got.status, got.body)
				}
				form := url.Values{"do": {"release"}, "key": {s.listed()[0].Key.String()}, "state": {"held"}, "execution": {s.only().ExecutionID}}
				acted := s.must(with(form.Encode(), path, "Content-Type: application/x-www-form-urlencoded", "Origin: "+s.URL))
				done, _, _ := strings.Cut(acted.header.Get("Location"), "#")
				if got := s.must(with("", "GET", path+done)); acted.status != 303 || got.status != 200 || !strings.Contains(got.body, "The key is released.") || !strings.Contains(got.body, "By an operator, after attempt 1.") {
					t.Errorf("released, it is at %s: %d %s", done, got.status, got.body)
				}
				for _, file := range []string{"page.css", "page.js"} {
					if got := s.must(with("", "GET", path+"?file="+file)); got.status != 200 || len(got.body) < 1000 {
						t.Errorf("%s is %d with %d bytes", file, got.status, len(got.body))
					}
				}
			})
		}
	}
}

// Who acts is named in the log: the user that a handler in front has authenticated, and the
// client's address, behind a trusted proxy that of its client.
func TestOperatorOfARequest(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	repl := caddy.NewReplacer()
	vars := map[string]any{caddyhttp.ClientIPVarKey: "203.0.113.9"}
	ctx := context.WithValue(r.Context(), caddy.ReplacerCtxKey, repl)
	r = r.WithContext(context.WithValue(ctx, caddyhttp.VarsCtxKey, vars))
	if by := operatorOf(r); by.User != "" || by.Remote != r.RemoteAddr {
		t.Errorf("without a proxy and a user: %+v", by)
	}
	vars[caddyhttp.TrustedProxyVarKey] = true
	repl.Set("http.auth.user.id", "carol")
	if by := operatorOf(r); by.User != "carol" || by.Remote != "203.0.113.9" {
		t.Errorf("behind a proxy that names the user: %+v", by)
	}
}

// Whom a certificate names counts only where it was verified.
func TestOperatorByCertificate(t *testing.T) {
	alice := &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}
	r := httptest.NewRequest(http.MethodGet, "https://ops.test/", nil)
	r.TLS.PeerCertificates = []*x509.Certificate{alice}
	if by := operatorOf(r); by.User != "" || by.Remote != r.RemoteAddr {
		t.Errorf("a certificate that nobody verified: %+v", by)
	}
	r.TLS.VerifiedChains = [][]*x509.Certificate{{alice}}
	if by := operatorOf(r); by.User != "CN=alice" {
		t.Errorf("a verified one: %+v", by)
	}
}

// Without a host in the site's address and without authentication, a page of another origin could let
// its own name point here (DNS rebinding).
func TestPageRefusesForeignHosts(t *testing.T) {
	for lines, c := range map[string]struct {
		authorization string
		hosts         map[string]int
	}{
		"dedup_dashboard": {"", map[string]int{
			"localhost:9000": 200, "127.0.0.1": 200, "[::1]:9000": 200, "192.168.1.2:9000": 200, "LOCALHOST": 200,
			"evil.test": 403, "evil.test:9000": 403, "localhost.evil.test": 403, "0x7f000001": 403, "127.0.0.1.evil.test": 403,
		}},
		"@ops host ops.test\nhandle @ops {\ndedup_dashboard\n}":      {"", map[string]int{"ops.test": 200}},
		"basic_auth {\nali " + passwordHash + "\n}\ndedup_dashboard": {basicAuth("ali"), map[string]int{"any.test": 200}},
	} {
		s := serve(t, lines, "dedup /elsewhere")
		for host, want := range c.hosts {
			got := s.send(with("", "GET", "Host: "+host, "Authorization: "+c.authorization))
			if got.status != want || want == 403 && !strings.Contains(got.body, "Write this host into the site") {
				t.Errorf("%q, %q: got %d %.300s; want %d", lines, host, got.status, got.body, want)
			}
		}
		s.stop()
	}
}

// The page mentions exhausted attempts where a handler of any site limits them.
func TestPageKnowsOfMaxAttempts(t *testing.T) {
	for limit, want := range map[string]bool{"": false, "max_attempts 2": true} {
		s := serve(t, "handle /orders {", "dedup {", limit, "}", "}", "respond ok")
		if got := limitsAttempts(); got != want {
			t.Errorf("%q: got %v", limit, got)
		}
		s.stop()
		if limitsAttempts() {
			t.Errorf("%q: a configuration that has stopped counts", limit)
		}
	}
}
