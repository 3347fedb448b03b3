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
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/caddy-dedup/caddy-dedup/internal/dashboard"
)

func TestEveryOutcomeIsInTheChart(t *testing.T) {
	groups := dashboard.Groups()
	for _, o := range outcomes {
		if groups[string(o)] == "" {
			t.Errorf("the chart leaves out %s", o)
		}
	}
	for _, rule := range refusalRules {
		if groups[string(rule.outcome)] == "" {
			t.Errorf("%s is not one of the outcomes", rule.outcome)
		}
	}
	if len(groups) != len(outcomes) {
		t.Errorf("the chart has %d outcomes, and there are %d", len(groups), len(outcomes))
	}
}

func TestDashboardDirective(t *testing.T) {
	for text, want := range map[string]string{
		"dedup_dashboard":                  "",
		"dedup_dashboard bodies":           "",
		"dedup_dashboard body":             `unknown word "body"; it takes bodies, or nothing`,
		"dedup_dashboard bodies bodies":    "bodies stands twice",
		"dedup_dashboard {\n\tbodies\n}\n": "takes no block",
	} {
		page := new(Dashboard)
		err := page.UnmarshalCaddyfile(caddyfile.NewTestDispenser(text))
		if want == "" && (err != nil || page.Bodies != strings.HasSuffix(text, "bodies")) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %+v", text, err, page)
		}
	}
}

// withoutPages lets those of earlier tests go, whose configurations are not cleaned up as a
// whole.
func withoutPages() {
	for watched.pages > 0 {
		watched.leave()
	}
}

// What is kept of the past lives from the first configuration with a page to the last
// one, and not for longer.
func TestPastLivesWithThePages(t *testing.T) {
	provisioned := func() (*Dashboard, context.CancelFunc) {
		ctx, cancel := caddy.NewContext(caddy.Context{Context: t.Context()})
		page := new(Dashboard)
		if err := page.Provision(ctx); err != nil {
			t.Fatal(err)
		}
		return page, cancel
	}
	withoutPages()
	if watched.journal.Load() != nil {
		t.Fatal("there is a journal without a page")
	}
	first, cancelFirst := provisioned()
	defer cancelFirst()
	history, ended := watched.history, watched.ended
	second, cancelSecond := provisioned()
	defer cancelSecond()
	for range 2 { // a second time it does nothing
		if err := first.Cleanup(); err != nil {
			t.Fatal(err)
		}
	}
	if watched.history != history || watched.journal.Load() == nil {
		t.Error("a reload has lost the past")
	}
	select {
	case <-ended:
		t.Error("a reload has ended the counting")
	default:
	}
	if err := second.Cleanup(); err != nil {
		t.Fatal(err)
	}
	<-ended
	if watched.journal.Load() != nil {
		t.Error("the journal is still kept")
	}
	if err := new(Dashboard).Cleanup(); err != nil || watched.pages != 0 { // one that was never provisioned
		t.Errorf("%v; %d pages", err, watched.pages)
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
	hiddenField = regexp.MustCompile(`<input type="hidden" name="(do|key|in|state|execution|token)" value="([^"]*)">`)
	freeLink    = regexp.MustCompile(`href="(\?[^"]*do=free[^"]*)#confirm"`)
)

// A failing delivery is found by its ID, under whatever path the page is, and freed; all
// of its life is told. The forms work where a proxy has taken away the path's beginning.
func TestDashboardFindsAndFreesADelivery(t *testing.T) {
	for _, route := range []string{"handle_path /ops/* {\n%\n}", "handle /ops/* {\nroute {\n%\n}\n}", "@page path /ops /ops/*\nhandle @page {\n%\n}"} {
		for _, path := range []string{"/ops/", "/ops/deep/er"} {
			t.Run(path+" "+route, func(t *testing.T) {
				up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(http.StatusBadGateway)
				}))
				defer up.Close()
				s := serve(t, strings.ReplaceAll(route, "%", "dedup_dashboard"), "handle {", "dedup {", "unknown hold", "}", "reverse_proxy "+strings.TrimPrefix(up.URL, "http://"), "}")
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
				link := freeLink.FindStringSubmatch(page)
				if status != 200 || link == nil || !strings.Contains(page, "Nobody knows whether it was executed") || !strings.Contains(page, "The key is held.") {
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
				if status != 200 || b.at.Path != path || !strings.Contains(page, "The key is free.") || !strings.Contains(page, "By 127.0.0.1:") {
					t.Errorf("%s %s: freed, it is at %s: %d %s", route, path, b.at, status, page)
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

// cookies keeps those that are for TLS only, too: a proxy in front has ended it.
type cookies struct {
	http.CookieJar
	secure bool
}

func (c *cookies) SetCookies(at *url.URL, set []*http.Cookie) {
	for _, cookie := range set {
		c.secure = cookie.Secure
		cookie.Secure = false
	}
	c.CookieJar.SetCookies(at, set)
}

// confirmed opens the form that frees the key, and sends it.
func (b *browser) confirmed(link string) (page string) {
	_, page = b.do(http.MethodGet, link, nil)
	form := make(url.Values)
	for _, field := range hiddenField.FindAllStringSubmatch(page, -1) {
		form.Set(field[1], field[2])
	}
	_, page = b.do(http.MethodPost, "", form)
	return page
}

// The page says who has freed a key: whom a handler in front names, and from where.
func TestPageSaysWhoActs(t *testing.T) {
	const (
		trusting  = "}\nservers {\ntrusted_proxies static 127.0.0.0/8"
		remoteMap = "map {header.Remote-User} {http.auth.user.id} {\n~(.+) ${1}\n}"
	)
	forwarded := map[string]string{"X-Forwarded-For": "203.0.113.9", "X-Forwarded-Proto": "https", "Remote-User": "carol"}
	for name, c := range map[string]struct {
		global, line string
		want         string
		secure       bool
	}{
		"nobody in front":          {"", "", "By 127.0.0.1:", false},
		"a proxy in front":         {trusting, "", "By 203.0.113.9.", true},
		"one that names the user":  {trusting, remoteMap, "By carol from 203.0.113.9.", true},
		"the user of forward_auth": {"", remoteMap, "By carol from 127.0.0.1:", false},
	} {
		t.Run(name, func(t *testing.T) {
			s := serveWith(t, c.global, "route /ops {\n"+c.line+"\ndedup_dashboard\n}", "dedup {", "unknown hold", "}", "respond 502")
			if _, err := s.post("a delivery", "body"); err != nil {
				t.Fatal(err)
			}
			at, _ := url.Parse(s.URL + "/ops")
			jar, _ := cookiejar.New(nil)
			kept := &cookies{CookieJar: jar}
			b := &browser{t: t, Client: &http.Client{Jar: kept}, at: at, headers: forwarded}
			_, page := b.do(http.MethodGet, "?q=a+delivery", nil)
			link := freeLink.FindStringSubmatch(page)
			if link == nil {
				t.Fatalf("no key to free: %s", page)
			}
			if page = b.confirmed(html.UnescapeString(link[1])); !strings.Contains(page, c.want) {
				t.Errorf("want %s in %s", c.want, page)
			}
			if kept.secure != c.secure {
				t.Errorf("the cookie is secure: %v", kept.secure)
			}
		})
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

// Counting costs a request no memory, with a page and without one.
func TestCountingAllocatesNothing(t *testing.T) {
	x := &exchange{Handler: &Handler{}, r: httptest.NewRequest(http.MethodPost, "/", nil), said: &said{logged: true}}
	x.key[0] = 1
	withoutPages()
	for range 2 {
		if n := testing.AllocsPerRun(10_000, func() { x.report(outcomeFresh, "execution", 1) }); n != 0 {
			t.Errorf("it allocates %v times", n)
		}
		_, journal := watched.enter()
		for range 10_000 { // the journal has its size
			journal.Add(dashboard.Note{What: "fresh"})
		}
		defer watched.leave()
	}
}
