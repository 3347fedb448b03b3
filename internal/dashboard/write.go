package dashboard

import (
	"bytes"
	"errors"
	"net/http"
	"strconv"
	"time"
)

const (
	// writeFor is how long a client may take to read an answer.
	writeFor = time.Minute
	// mostPage is the size of a page in memory, in bytes. The largest with short IDs has
	// some 100 KB.
	mostPage = 4 << 20
)

// errLarge says that a page has more than mostPage.
var errLarge = errors.New("the page is too large")

// bounded takes up to mostPage bytes.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > mostPage-b.Len() {
		return 0, errLarge
	}
	return b.Buffer.Write(p)
}

// render answers with a page. No store may be held any more: it is the client who decides
// how long this takes.
func (p *Page) render(w http.ResponseWriter, r *http.Request, name string, v *view) {
	var out bounded
	err := templates.ExecuteTemplate(&out, name, v)
	if errors.Is(err, errLarge) {
		p.refuse(w, r, http.StatusInternalServerError, "The page is too large to be shown. Choose fewer deliveries, or use caddy-dedup keys.")
		return
	}
	if err != nil {
		panic("dashboard: " + err.Error()) // a view that the templates do not fit
	}
	if v.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "2")
	}
	write(w, r, v.status, "text/html; charset=utf-8", out.Bytes())
}

// refuse answers with a page that says why nothing was done.
func (p *Page) refuse(w http.ResponseWriter, r *http.Request, status int, why string) {
	v := &view{now: time.Now()}
	v.problem(status, why)
	p.render(w, r, "refusal", v)
}

// write answers with what is there in whole, within writeFor.
func write(w http.ResponseWriter, r *http.Request, status int, kind string, content []byte) {
	// Not every writer can do it. The server ends the deadline with the answer.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeFor))
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Content-Length", strconv.Itoa(len(content)))
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write(content) // the client may have gone
	}
}
