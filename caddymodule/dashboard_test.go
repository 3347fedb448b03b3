package caddymodule

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
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

// browser asks for pages as a browser does.
type browser struct {
	t *testing.T
	*http.Client
	at      *url.URL
	headers map[string]string // that what is in front of the page adds
}

func (b *browser) do(method, target string, form url.Values) (int, string) {
	b.t.Helper()
	to, err := b.at.Parse(target)
	if err != nil {
		b.t.Fatal(err)
	}
	r, err := http.NewRequest(method, to.String(), strings.NewReader(form.Encode()))
	if err != nil {
		b.t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", to.Scheme+"://"+to.Host)
	}
	for name, value := range b.headers {
		r.Header.Set(name, value)
	}
	got, err := b.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer got.Body.Close()
	b.at = got.Request.URL
	text, err := io.ReadAll(got.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return got.StatusCode, string(text)
}

var (
	hiddenField = regexp.MustCompile(`<input type="hidden" name="(do|key|state|execution)" value="([^"]*)">`)
	releaseLink = regexp.MustCompile(`href="(\?[^"]*do=release[^"]*)#confirm"`)
)

// A held delivery is found by its ID, under whatever path the page is, and released. The forms
// work where a handler in front has removed the beginning of the path.
func TestDashboardFindsAndReleasesADelivery(t *testing.T) {
	for _, route := range []string{"handle_path /ops/* {\n%\n}", "handle /ops/* {\nroute {\n%\n}\n}", "@page path /ops /ops/*\nhandle @page {\n%\n}"} {
		for _, path := range []string{"/ops/", "/ops/deep/er"} {
			t.Run(path+" "+route, func(t *testing.T) {
				up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(http.StatusBadGateway)
				}))
				defer up.Close()
				s := serve(t, strings.ReplaceAll(route, "%", "dedup_dashboard"), "handle {", "dedup {", "on_unknown hold", "}", "reverse_proxy "+strings.TrimPrefix(up.URL, "http://"), "}")
				if _, err := s.post("a delivery", "body"); err != nil {
					t.Fatal(err)
				}
				if got, err := s.post("a delivery", "body"); err != nil || got.status != 409 {
					t.Fatalf("got %v, %v; it is to be held", got, err)
				}
				at, _ := url.Parse(s.URL + path)
				jar, _ := cookiejar.New(nil)
				b := &browser{t: t, Client: &http.Client{Jar: jar}, at: at}
				status, page := b.do(http.MethodGet, "?q=a+delivery", nil)
				link := releaseLink.FindStringSubmatch(page)
				if status != 200 || link == nil || !strings.Contains(page, "It is unknown whether the service executed it") {
					t.Fatalf("%s %s: got %d %s", route, path, status, page)
				}
				if strings.Contains(page, "Kept response") {
					t.Error("a response is shown without bodies")
				}
				_, page = b.do(http.MethodGet, html.UnescapeString(link[1]), nil)
				form := make(url.Values)
				for _, field := range hiddenField.FindAllStringSubmatch(page, -1) {
					form.Set(field[1], field[2])
				}
				status, page = b.do(http.MethodPost, "", form)
				if status != 200 || b.at.Path != path || !strings.Contains(page, "The key is released.") || !strings.Contains(page, "By an operator, after attempt 1.") {
					t.Errorf("%s %s: released, it is at %s: %d %s", route, path, b.at, status, page)
				}
				for _, file := range []string{"page.css", "page.js"} {
					if status, text := b.do(http.MethodGet, "?file="+file, nil); status != 200 || len(text) < 1000 {
						t.Errorf("%s is %d with %d bytes", file, status, len(text))
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
	get := func(s *site, host, authorization string) (int, string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		if authorization != "" {
			r.Header.Set("Authorization", authorization)
		}
		w := httptest.NewRecorder()
		s.Config.Handler.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	ali := new(http.Request)
	ali.Header = make(http.Header)
	ali.SetBasicAuth("ali", "open sesame")
	for lines, c := range map[string]struct {
		authorization string
		hosts         map[string]int
	}{
		"dedup_dashboard": {"", map[string]int{
			"localhost:9000": 200, "127.0.0.1": 200, "[::1]:9000": 200, "192.168.1.2:9000": 200, "LOCALHOST": 200,
			"evil.test": 403, "evil.test:9000": 403, "localhost.evil.test": 403, "0x7f000001": 403, "127.0.0.1.evil.test": 403,
		}},
		"@ops host ops.test\nhandle @ops {\ndedup_dashboard\n}":      {"", map[string]int{"ops.test": 200}},
		"basic_auth {\nali " + passwordHash + "\n}\ndedup_dashboard": {ali.Header.Get("Authorization"), map[string]int{"any.test": 200}},
	} {
		s := serve(t, lines, "dedup /elsewhere")
		for host, want := range c.hosts {
			if status, body := get(s, host, c.authorization); status != want || want == 403 && !strings.Contains(body, "Write this host into the site") {
				t.Errorf("%q, %q: got %d %.300s; want %d", lines, host, status, body, want)
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
