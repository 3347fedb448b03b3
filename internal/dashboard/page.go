// Package dashboard is a page on which operators see which deliveries need attention, find
// one by its ID, and release, complete or forget its key. It is rendered on the server and works
// without its script, which only refreshes it. All links are relative and consist of a query
// only, so the page works under any path. It does not depend on Caddy.
package dashboard

import (
	"bytes"
	"embed"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
)

// Page serves the page, at whatever path a request has.
type Page struct {
	// Open returns the stores that are open, in a stable order. The page leaves each of them
	// before it writes its response.
	Open func() []admin.Store
	// History has the outcomes of the last hour.
	History *History
	// Title is a text of the configuration that names the installation; "" for none.
	Title string
	// Namespace is that of the keys; "" if it is not to be shown.
	Namespace string
	// Bodies reports whether kept responses are shown.
	Bodies bool
	// CopyBound is how long other replicas may replay their local copy of a response whose
	// key was changed or forgotten.
	CopyBound time.Duration

	// LimitsAttempts reports whether a handler has max_attempts.
	LimitsAttempts func() bool
	// MaxRun returns the longest timeout of a handler.
	MaxRun func() time.Duration

	crossOrigin http.CrossOriginProtection
}

//go:embed assets
var assets embed.FS

var templates = template.Must(template.ParseFS(assets, "assets/*.html"))

// files are the assets that the page loads.
var files = []string{"page.css", "page.js", "icon.svg"}

// policy lets the page load its own files and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Security-Policy", policy)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "same-origin") // with no-referrer, forms have the origin null
	file := r.URL.Query().Get("file")
	switch {
	case r.Method == http.MethodPost:
		p.act(w, r)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		header.Set("Allow", "GET, HEAD, POST")
		p.Refuse(w, r, http.StatusMethodNotAllowed, "The page accepts GET, HEAD and POST.")
	case file == "":
		render(w, "page", p.view(r))
	case slices.Contains(files, file):
		http.ServeFileFS(w, r, assets, path.Join("assets", file))
	default:
		p.Refuse(w, r, http.StatusNotFound, "The page has no such file.")
	}
}

// render writes a page.
func render(w http.ResponseWriter, name string, v *view) {
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, name, v); err != nil {
		panic("dashboard: " + err.Error()) // the template does not fit the view
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	if v.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	w.WriteHeader(v.status)
	_, _ = w.Write(page.Bytes()) // the client may be gone
}

// Refuse writes a page that says why nothing was done.
func (p *Page) Refuse(w http.ResponseWriter, r *http.Request, status int, problem string) {
	render(w, "refusal", &view{status: status, Place: p.place(r), Problem: problem})
}

// place says which installation a request sees.
func (p *Page) place(r *http.Request) string {
	parts := slices.DeleteFunc([]string{p.Title, r.Host, p.Namespace}, func(text string) bool { return text == "" })
	return plain(strings.Join(parts, " · "))
}

// address is what the page shows, as its query has it.
type address struct{ Q, Key, State, Provider, Status, After string }

// maxQuery is the longest query that is accepted, in bytes: it is part of every link.
const maxQuery = 16 << 10

func addressOf(query url.Values) address {
	return address{query.Get("q"), query.Get("key"), query.Get("state"), query.Get("provider"), query.Get("status"), query.Get("after")}
}

// With returns a link to this address with some parameters changed: names and values.
func (a address) With(pairs ...string) string {
	query := url.Values{"q": {a.Q}, "key": {a.Key}, "state": {a.State}, "provider": {a.Provider}, "status": {a.Status}, "after": {a.After}}
	for pair := range slices.Chunk(pairs, 2) {
		query.Set(pair[0], pair[1])
	}
	maps.DeleteFunc(query, func(_ string, values []string) bool { return values[0] == "" })
	return "?" + query.Encode()
}
