package dashboard

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
)

// rig is a page, and what it shows.
type rig struct {
	t      *testing.T
	page   *Page
	store  *admintest.Store // the first of the stores
	all    []*admintest.Store
	counts map[string]uint64 // by outcome
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, counts: make(map[string]uint64)}
	r.store = r.open("one")
	r.page = &Page{
		Open: r.enter, History: NewHistory(func() map[string]uint64 { return r.counts }),
		LimitsAttempts: func() bool { return false }, MaxRun: func() time.Duration { return 5 * time.Minute },
	}
	return r
}

// open opens a store of this name until the test ends.
func (r *rig) open(name string) *admintest.Store {
	s := admintest.Open(r.t, name, "default")
	r.all = append(r.all, s)
	return s
}

func (r *rig) enter() (open []admin.Store) {
	for _, s := range r.all {
		open = append(open, s.Enter())
	}
	return open
}

// answer is an answer of the page.
type answer struct {
	*httptest.ResponseRecorder
	text string
	root *html.Node
}

// get asks for the page under this query.
func (r *rig) get(query string) answer {
	return r.ask(httptest.NewRequest(http.MethodGet, "/some/where?"+query, nil))
}

func (r *rig) ask(request *http.Request) answer {
	w := httptest.NewRecorder()
	r.page.ServeHTTP(w, request)
	a := answer{ResponseRecorder: w, text: w.Body.String()}
	root, err := html.Parse(strings.NewReader(a.text))
	if err != nil {
		r.t.Fatal(err)
	}
	a.root = root
	if strings.Contains(a.text, "secret-token") {
		r.t.Errorf("%s shows the owner's token", request.URL)
	}
	return a
}

// want is get with a status.
func (r *rig) want(status int, query string) answer {
	r.t.Helper()
	a := r.get(query)
	if a.Code != status {
		r.t.Fatalf("?%s: got %d, want %d: %s", query, a.Code, status, a.words("said"))
	}
	return a
}

// each calls f for every element.
func (a answer) each(f func(*html.Node)) {
	for n := range a.root.Descendants() {
		if n.Type == html.ElementNode {
			f(n)
		}
	}
}

func attribute(n *html.Node, name string) string {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val
		}
	}
	return ""
}

// has returns the elements with this name, below the one with this ID ("" for all).
func (a answer) has(id, name string) (all []*html.Node) {
	root := a.root
	if id != "" {
		if root = a.byID(id); root == nil {
			return nil
		}
	}
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && n.Data == name {
			all = append(all, n)
		}
	}
	return all
}

func (a answer) byID(id string) (found *html.Node) {
	a.each(func(n *html.Node) {
		if attribute(n, "id") == id {
			found = n
		}
	})
	return found
}

// words is the text in the element with this ID, its white space made one.
func (a answer) words(id string) string {
	n := a.byID(id)
	if n == nil {
		return ""
	}
	return textOf(n)
}

func textOf(n *html.Node) string {
	var out strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			out.WriteString(d.Data + " ")
		}
	}
	return strings.Join(strings.Fields(out.String()), " ")
}

// link returns where the link with this text leads.
func (a answer) link(text string) (query string) {
	a.each(func(n *html.Node) {
		if n.Data == "a" && textOf(n) == text && query == "" {
			query = attribute(n, "href")
		}
	})
	query, _, _ = strings.Cut(strings.TrimPrefix(query, "?"), "#")
	return query
}

// confirmed sends the form of a page that asks for a confirmation, as a browser does.
func (r *rig) confirmed(a answer, change func(*http.Request, url.Values)) answer {
	r.t.Helper()
	values := make(url.Values)
	for _, n := range a.has("confirm", "input") {
		values.Set(attribute(n, "name"), attribute(n, "value"))
	}
	if len(values) == 0 {
		r.t.Fatalf("the page asks for no confirmation: %s", a.text)
	}
	request := httptest.NewRequest(http.MethodPost, "/some/where?key="+values.Get("key")+"&do="+values.Get("do"), nil)
	request.Header.Set("Sec-Fetch-Site", "same-origin")
	request.Header.Set("Origin", "http://example.com")
	if change != nil {
		change(request, values)
	}
	body := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(values.Encode()))
	request.Body, request.ContentLength = body.Body, body.ContentLength
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	return r.ask(request)
}
