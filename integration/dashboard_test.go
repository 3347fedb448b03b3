package integration

import (
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// visitor is an operator's browser on the page, by HTTP alone.
type visitor struct {
	*http.Client
	page     string
	password string
}

func (p *caddy) visitor(t *testing.T, path, password string) *visitor {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &visitor{&http.Client{Jar: jar}, "http://" + p.addr + path, password}
}

// see asks for the page under a query and returns its status and text.
func (v *visitor) see(t *testing.T, query string, form url.Values) (int, string) {
	t.Helper()
	method := http.MethodGet
	if form != nil {
		method = http.MethodPost
	}
	r, err := http.NewRequestWithContext(t.Context(), method, v.page+"?"+query, strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if v.password != "" {
		r.SetBasicAuth("operator", v.password)
	}
	got, err := v.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	text, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode, string(text)
}

// must is see of what is there, and has these texts.
func (v *visitor) must(t *testing.T, query string, texts ...string) string {
	t.Helper()
	status, page := v.see(t, query, nil)
	if status != http.StatusOK {
		t.Fatalf("?%s: got %d %s", query, status, page)
	}
	for _, text := range texts {
		if !strings.Contains(page, text) {
			t.Errorf("?%s: the page has no %q:\n%s", query, text, page)
		}
	}
	return page
}

var (
	actLink     = regexp.MustCompile(`href="\?([^"#]*do=[^"#]*)#confirm"`)
	hiddenField = regexp.MustCompile(`<input type="hidden" name="(do|key|state|execution)" value="([^"]*)">`)
)

// A held webhook is found by its delivery ID, released by a form, delivered again, and seen to
// succeed. Without the password of the page's route nothing of it is seen. The chart outlives
// a reload.
func TestDashboard(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, store string) {
		up := startUpstream(t, inTurn(noAnswer, answers201))
		site := lines(
			"handle_path /ops/* {", "basic_auth {", "operator $2a$04$wvLKdxLAq0tWI6Zl3iiveerWdnoccirNJYypGt5frcQb0jvXZroe.", "}", "dedup_dashboard", "}",
			"handle {", "dedup github {", "on_unknown hold", "}", proxyTo(up), "}")
		p := start(t, conf{store: store, site: site})
		deliver := func() reply {
			return p.post(t, "/hook", "", "{}", header("X-GitHub-Delivery", "72d3162e-<i>"), header("X-GitHub-Hook-ID", "7"))
		}
		if got := deliver(); got.Status != 502 {
			t.Fatalf("got %d", got.Status)
		}
		if got := deliver(); got.Status != 503 {
			t.Fatalf("got %d; it is to be held", got.Status)
		}
		for _, stranger := range []*visitor{p.visitor(t, "/ops/", ""), p.visitor(t, "/ops/", "wrong")} {
			if status, text := stranger.see(t, "q=72d3162e-%3Ci%3E", nil); status != 401 || text != "" {
				t.Errorf("a stranger sees %d %s", status, text)
			}
		}

		operator := p.visitor(t, "/ops/", "at night")
		operator.must(t, "", `class="state held"`, "72d3162e-&lt;i&gt;")
		found := operator.must(t, "q=72d3162e-%3Ci%3E", "It is unknown whether the service executed it")
		asks := operator.must(t, html.UnescapeString(actLink.FindStringSubmatch(found)[1]), ">72d3162e-&lt;i&gt;</span>?")
		form := make(url.Values)
		for _, field := range hiddenField.FindAllStringSubmatch(asks, -1) {
			form.Set(field[1], field[2])
		}
		status, released := operator.see(t, "", form)
		if status != 200 || !strings.Contains(released, "The key is released.") || !strings.Contains(released, "By an operator, after attempt 1.") {
			t.Errorf("released, it says %d %s", status, released)
		}
		p.awaitLog(t, "who released the key", func(e entry) bool {
			return e.text("msg") == "an operator released a key" && e.text("key") == form.Get("key") &&
				e.text("user") == "operator" && strings.HasPrefix(e.text("remote"), "127.0.0.1:")
		})

		if got := deliver(); got.Status != 201 || got.Header.Get("Idempotent-Replayed") != "" {
			t.Errorf("delivered again, it is %d", got.Status)
		}
		operator.must(t, "key="+form.Get("key"), "With 201. The response is kept")
		p.reload(t, lines("header X-Configuration 2", site))
		operator.must(t, "", "Executed <b>2</b>", "Refused <b>1</b>")
	})
}
