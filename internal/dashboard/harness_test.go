package dashboard

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"
	"golang.org/x/net/html"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/engine"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/memory"
)

// shown is a memory store that a page shows, with an engine of its own.
type shown struct {
	idempotency.Store
	unavailable atomic.Bool
	damaged     map[idempotency.Key]bool
	delay       time.Duration // of a list
}

// refusal is an error of a server, which writes sentences.
type refusal string

func (r refusal) Error() string { return string(r) }

var errUnavailable = refusal("the <store> is unavailable.")

func (s *shown) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	switch {
	case s.unavailable.Load():
		return nil, time.Time{}, errUnavailable
	case s.damaged[key]:
		return nil, time.Time{}, damage
	}
	return s.Store.Lookup(ctx, key)
}

func (s *shown) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	if s.unavailable.Load() {
		return nil, errUnavailable
	}
	return s.Store.Change(ctx, key, c)
}

var damage = &idempotency.UnreadableError{Where: "record", Err: errors.New("it is <damaged>")}

func (s *shown) listed(page []idempotency.Listed, next string, err error) ([]idempotency.Listed, string, error) {
	time.Sleep(s.delay)
	if s.unavailable.Load() {
		return nil, "", errUnavailable
	}
	for i, l := range page {
		if s.damaged[l.Key] {
			page[i] = idempotency.Listed{Key: l.Key, Unreadable: damage}
		}
	}
	return page, next, err
}

func (s *shown) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.listed(s.Store.List(ctx, cursor, limit))
}

func (s *shown) Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.listed(s.Store.Find(ctx, of, cursor, limit))
}

// opened is such a store as the page gets it.
type opened struct {
	*engine.Engine
	name  string
	users atomic.Int64
}

func (o *opened) Key() string          { return o.name }
func (o *opened) Name() string         { return o.name }
func (o *opened) Namespaces() []string { return []string{"default"} }
func (o *opened) InUse() bool          { return true }
func (o *opened) Leave()               { o.users.Add(-1) }

// rig is a page, and what it shows.
type rig struct {
	t      *testing.T
	page   *Page
	store  *shown // the first of the stores
	all    []*opened
	counts map[string]uint64 // by outcome
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, counts: make(map[string]uint64)}
	r.store = r.open("store one")
	r.page = &Page{
		Open: r.enter, History: NewHistory(func() map[string]uint64 { return r.counts }),
	}
	return r
}

// open opens a store of this name until the test ends.
func (r *rig) open(name string) *shown {
	s := &shown{Store: memory.New(1 << 30), damaged: make(map[idempotency.Key]bool)}
	o := &opened{name: name, Engine: engine.New(s, engine.Options{Timeout: time.Minute, Logger: zap.NewNop(), NewToken: rand.Text})}
	r.all = append(r.all, o)
	r.t.Cleanup(func() {
		if n := o.users.Load(); n != 0 {
			r.t.Errorf("%s was entered %d times more than it was left", name, n)
		}
		if err := o.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

func (r *rig) enter() (open []admin.Store) {
	for _, o := range r.all {
		o.users.Add(1)
		open = append(open, o)
	}
	return open
}

// put is a record that a test wants: what was claimed, and how the run ended, "" for not.
type put struct {
	provider, id, route string
	state               idempotency.State
	status              int
	body                string
	header              map[string][]string
	lease               time.Duration
	hold                bool

	namespace, path, reason string
	parts                   []string
}

func (s *shown) put(t testing.TB, p put) idempotency.Key {
	t.Helper()
	if p.lease == 0 {
		p.lease = time.Hour
	}
	key := idempotency.Identity{Namespace: cmp.Or(p.namespace, "default"), Scope: []string{p.route}, Prefix: p.provider, ID: p.id}.Key()
	got, err := s.Claim(context.Background(), idempotency.Claim{
		Key: key, Token: "secret-token", ExecutionID: "execution of " + plain(p.id) + p.route,
		Origin: idempotency.Origin{Provider: p.provider, DeliveryID: p.id, Parts: p.parts, Method: "POST", Host: "example.com", Path: p.path},
		Terms:  idempotency.Terms{Lease: p.lease, Retention: time.Hour, Hold: p.hold},
	})
	if err != nil || got.Verdict != idempotency.Proceed {
		t.Fatalf("claim of %+v: %v, %v", p, got.Verdict, err)
	}
	if p.state == "" {
		return key
	}
	settlement := idempotency.Settlement{State: p.state, Counted: true, Retention: time.Hour, Reason: p.reason}
	if p.status != 0 {
		settlement.Response = &idempotency.Response{Status: p.status, Header: p.header, Body: []byte(p.body)}
	}
	if err := s.Settle(context.Background(), key, got.Record, settlement); err != nil {
		t.Fatal(err)
	}
	return key
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
