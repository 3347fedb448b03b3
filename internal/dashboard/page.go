// Package dashboard is a page on which operators see what became of deliveries, find one
// by its ID, and free or forget its key. It is rendered on the server and works without
// its script, which only keeps it up to date. All its links are relative, and are queries
// only, so that it works under any path. It knows nothing of Caddy.
package dashboard

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"path"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Page is the page. All its requests are for one path, whatever it is.
type Page struct {
	// Open returns the stores that are open now, in a stable order. The page leaves each
	// when it has answered.
	Open func() []Store
	// History and Journal are what this process knows.
	History *History
	Journal *Journal
	// Bodies says that kept responses are shown.
	Bodies bool
	// Who says who sent a request, for the log and for other operators.
	Who func(*http.Request) string
	// Encrypted says whether the browser has sent a request over TLS: then the cookie of the
	// forms goes nowhere else.
	Encrypted func(*http.Request) bool
	// CopiesGone is within which time other replicas answer no more from their local copies
	// of a key that was freed or forgotten.
	CopiesGone time.Duration

	guard    http.CrossOriginProtection
	records  int // that one look goes through
	windows  sharing[*window]
	searches sharing[found]
	ones     sharing[*one]
}

// New returns a page without its optional parts.
func New(open func() []Store, history *History, journal *Journal) *Page {
	return &Page{
		Open: open, History: history, Journal: journal,
		Who:       func(r *http.Request) string { return r.RemoteAddr },
		Encrypted: func(r *http.Request) bool { return r.TLS != nil },
		records:   mostRecords,
		windows:   sharing[*window]{most: 4},
		searches:  sharing[found]{most: 8},
		ones:      sharing[*one]{most: 64},
	}
}

//go:embed assets
var assets embed.FS

var templates = template.Must(template.ParseFS(assets, "assets/*.html"))

// files are what the page loads beside itself, and their types.
var files = map[string]string{
	"page.css": "text/css; charset=utf-8",
	"page.js":  "text/javascript; charset=utf-8",
	"icon.svg": "image/svg+xml",
}

// The policy lets the page load what it brings along, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	switch {
	case r.Method == http.MethodPost:
		p.act(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD, POST")
		p.refuse(w, r, http.StatusMethodNotAllowed, "The page knows GET, HEAD and POST.")
	case r.URL.Query().Has("file"):
		p.serveFile(w, r, r.URL.Query().Get("file"))
	default:
		p.show(w, r)
	}
}

func (p *Page) serveFile(w http.ResponseWriter, r *http.Request, name string) {
	kind, known := files[name]
	if !known {
		p.refuse(w, r, http.StatusNotFound, "The page has no such file.")
		return
	}
	content, err := assets.ReadFile(path.Join("assets", name))
	if err != nil {
		panic("dashboard: " + err.Error()) // it is embedded
	}
	write(w, r, http.StatusOK, kind, content)
}

// show answers with the page that the query asks for.
func (p *Page) show(w http.ResponseWriter, r *http.Request) {
	v := p.viewed(w, r)
	name := "page"
	if r.URL.Query().Get("part") == "live" {
		name = "live"
	}
	p.render(w, r, name, v)
}

// viewed asks the stores for what the page shows, and leaves them.
func (p *Page) viewed(w http.ResponseWriter, r *http.Request) *view {
	a := addressOf(r.URL.Query())
	open := p.Open()
	defer leave(open)
	v := &view{address: a, now: time.Now(), status: http.StatusOK, Process: len(open) > 0, Stores: len(open), Bodies: p.Bodies}
	v.measure(p.History, open)
	listed, err := p.window(r.Context(), open, a.From)
	v.list(listed, err)
	p.search(r.Context(), open, v)
	p.open(w, r, open, v)
	return v
}

// window returns the records from a place on.
func (p *Page) window(ctx context.Context, open []Store, place string) (*window, error) {
	return p.windows.ask(ctx, place, func(ctx context.Context) (*window, time.Duration, error) {
		began := time.Now()
		w, err := look(ctx, open, place, p.records, p.Journal.exhausted())
		if err != nil {
			return nil, 0, err
		}
		return w, w.rest(time.Since(began)), nil
	})
}

// one returns the record of a key: in the store that a link names, or in the first that has
// it where that is not open.
func (p *Page) one(ctx context.Context, open []Store, key idempotency.Key, in string) (*one, error) {
	if named := only(open, in); named != nil {
		open = named
	} else {
		in = ""
	}
	return p.ones.ask(ctx, key.String()+in, func(ctx context.Context) (*one, time.Duration, error) {
		o, err := lookUp(ctx, open, key, p.Bodies)
		return o, foundHolds, err
	})
}

// search looks for what stands in the search field: a key, a delivery ID, or the ID of an
// execution.
func (p *Page) search(ctx context.Context, open []Store, v *view) {
	switch {
	case v.Q == "":
		return
	case len(v.Q) > mostQuery:
		v.problem(http.StatusBadRequest, fmt.Sprintf("What is looked for has %d bytes. The page takes up to %d: look for it with caddy-dedup keys show.", len(v.Q), mostQuery))
		v.Q = "" // it would be in all links
		return
	}
	texts, records := textsOf(v.Q), p.records
	key, err := idempotency.ParseKey(texts[len(texts)-1])
	isKey := err == nil // or a delivery ID that looks like one
	if isKey {
		if _, err := p.one(ctx, open, key, ""); err == nil {
			v.Key = key.String()
			return
		}
		records = 0 // no execution has such an ID
	}
	f, err := p.searches.ask(ctx, v.Q, func(ctx context.Context) (found, time.Duration, error) {
		began := time.Now()
		f := find(ctx, open, texts, records)
		return f, max(foundHolds, min(restTimes*time.Since(began), mostRest)), nil
	})
	switch {
	case err != nil:
		v.fail(err)
		return
	case isKey && len(f.records) == 0:
		v.Key = key.String() // it is said that there is none
		return
	}
	v.foundBy(f, p.Journal.exhausted())
}

// open shows one delivery, and asks whether to do something about it.
func (p *Page) open(w http.ResponseWriter, r *http.Request, open []Store, v *view) {
	if v.Key == "" {
		return
	}
	key, err := idempotency.ParseKey(v.Key)
	if err != nil {
		v.problem(http.StatusBadRequest, "That is no key: a key is 64 characters of hex.")
		return
	}
	query := r.URL.Query()
	o, err := p.one(r.Context(), open, key, v.In)
	if errors.Is(err, errNone) {
		notes := p.Journal.of(key)
		if query.Get("done") == Forgotten {
			v.Notice = "The record is gone. The next request with the key runs as if none had come before." + p.elsewhere()
		} else {
			v.problem(http.StatusNotFound, "No store has a record of this key. It was never claimed, or its retention is over, or it was forgotten.")
		}
		v.gone(key, notes)
		return
	}
	if err != nil {
		v.fail(err)
		return
	}
	shown := *o // the answer is shared
	judge(&shown.seen, p.Journal.exhausted())
	v.opened(shown, p.Journal.of(key))
	if query.Get("done") == Freed && v.Opened.State.Name == "freed" {
		v.Notice = "The key is free. Its next request runs: have it sent again." + p.elsewhere()
	}
	if act, known := acts[query.Get("do")]; known && v.Opened.May(query.Get("do")) {
		asked := question{do: query.Get("do"), key: key.String(), in: shortOf(shown.in), seen: shown.asSeen()}
		v.Confirm = &confirm{act: act, asked: asked, Token: tokenFor(p.secretOf(w, r), asked)}
	}
}

// elsewhere says from when on what was done counts on other replicas, too.
func (p *Page) elsewhere() string {
	if p.CopiesGone == 0 {
		return ""
	}
	return " Other replicas follow within " + span(p.CopiesGone) + "."
}
