package caddymodule

import (
	"context"
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
	at *url.URL
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
	hiddenField = regexp.MustCompile(`<input type="hidden" name="(do|key|state|execution|token)" value="([^"]*)">`)
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
				b := &browser{t, &http.Client{Jar: jar}, at}
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

// Counting costs a request no memory, with a page and without one.
func TestCountingAllocatesNothing(t *testing.T) {
	x := &exchange{Handler: &Handler{}, r: httptest.NewRequest(http.MethodPost, "/", nil), said: &said{logged: true}}
	x.key[0] = 1
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
