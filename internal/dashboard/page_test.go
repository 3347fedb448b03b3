package dashboard

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// filled is a page with a record of each sort.
func filled(t *testing.T) *rig {
	r := newRig(t)
	for _, p := range []admintest.Run{
		{Provider: "github", ID: "running"},
		{Provider: "github", ID: "gone", Lease: -time.Second},
		{Provider: "github", ID: "lost", Lease: -time.Second, Hold: true},
		{Provider: "github", ID: "done", State: idempotency.Complete, Status: 201, Body: "kept"},
		{Provider: "stripe", ID: "kept failure", State: idempotency.Complete, Status: 502},
		{ID: "failed", State: idempotency.Released, Status: 500},
		{ID: "unknown", State: idempotency.Held},
	} {
		r.store.Put(t, p)
	}
	r.store.Damaged[r.store.Put(t, admintest.Run{ID: "broken"})] = true
	r.counts["executed"], r.counts["replayed"] = 7, 3
	return r
}

func TestOrderOfThePage(t *testing.T) {
	a := filled(t).want(http.StatusOK, "")
	var order []string
	focused := ""
	a.each(func(n *html.Node) {
		if n.Data == "form" && attribute(n, "role") == "search" || n.Data == "section" {
			order = append(order, attribute(n, "role")+attribute(n, "id"))
		}
		for _, at := range n.Attr {
			if at.Key == "autofocus" {
				focused += attribute(n, "id")
			}
		}
	})
	if got := strings.Join(order, " "); got != "search attention chart deliveries" {
		t.Errorf("the page has %s", got)
	}
	if focused != "q" {
		t.Errorf("the focus is on %q, want the search field", focused)
	}
	if len(a.has("chart", "rect")) != 4 || len(a.has("chart", "details")) != 0 {
		t.Errorf("there is a chart before there is something to draw: %s", a.words("chart"))
	}
	for _, want := range []string{"Executed 7", "Duplicates answered 3", "Refused 0"} {
		if !strings.Contains(a.words("chart"), want) {
			t.Errorf("the chart says %q, want %q", a.words("chart"), want)
		}
	}
	var rows []string
	for _, n := range a.has("attention", "a") {
		if strings.Contains(attribute(n, "href"), "key=") {
			rows = append(rows, textOf(n))
		}
	}
	if got := strings.Join(rows, ", "); !regexp.MustCompile(`^(lost, unknown|unknown, lost), kept failure, failed, gone, key …[0-9a-f]{16}…$`).MatchString(got) {
		t.Errorf("needs attention: %s", got)
	}
}

// The title says which installation it is.
func TestTitle(t *testing.T) {
	r := filled(t)
	for _, c := range []struct{ title, namespace, place string }{
		{"", "", "example.com"},
		{"Production <eu>", "orders", "Production <eu> · example.com · orders"},
	} {
		r.page.Title, r.page.Namespace = c.title, c.namespace
		a := r.want(http.StatusOK, "")
		if got, want := textOf(a.has("", "title")[0]), "Deliveries · "+c.place+" · caddy-dedup"; got != want {
			t.Errorf("the title is %q, want %q", got, want)
		}
		if got, want := textOf(a.has("", "header")[0]), "Deliveries "+c.place+" "; !strings.HasPrefix(got, want) {
			t.Errorf("the page begins with %q, want %q", got, want)
		}
	}
}

// What assistive technology goes by: landmarks, labels, names of tables, no ID twice, and no
// reference to nothing.
func TestStructureForAssistiveTechnology(t *testing.T) {
	r := filled(t)
	held := r.store.Put(t, admintest.Run{ID: "asked about", State: idempotency.Held})
	for _, query := range []string{"", "q=done", "q=nothing", "key=" + held.String() + "&do=release", "state=held"} {
		a := r.get(query)
		ids, refs, elements := map[string]int{}, map[string]bool{}, map[string]int{}
		a.each(func(n *html.Node) {
			elements[n.Data]++
			if id := attribute(n, "id"); id != "" {
				ids[id]++
			}
			for _, ref := range []string{attribute(n, "for"), attribute(n, "aria-labelledby"), strings.TrimPrefix(attribute(n, "href"), "#")} {
				if ref != "" && ref[0] != '?' {
					refs[ref] = true
				}
			}
			if n.Data == "th" && attribute(n, "scope") == "" || n.Data == "svg" && attribute(n, "aria-hidden") != "true" ||
				(n.Data == "input" || n.Data == "select") && attribute(n, "type") != "hidden" && attribute(n, "id") == "" {
				t.Errorf("?%s: <%s> %q is nothing that can be read out", query, n.Data, textOf(n))
			}
		})
		for id, n := range ids {
			if n > 1 {
				t.Errorf("?%s: the ID %s is there %d times", query, id, n)
			}
		}
		for ref := range refs {
			if ids[ref] == 0 {
				t.Errorf("?%s: nothing has the ID %s", query, ref)
			}
		}
		for name, want := range map[string]int{"main": 1, "header": 1, "footer": 1, "h1": 1, "caption": elements["table"]} {
			if elements[name] != want {
				t.Errorf("?%s: %d times %s, want %d", query, elements[name], name, want)
			}
		}
	}
}

// What senders write stays text, and nothing on the page needs more than its policy lets it do.
func TestHostileTextsStayText(t *testing.T) {
	r := newRig(t)
	r.page.Bodies = true
	hostile := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `javascript:alert(1)`, `{{.}}`, `</title><b>`, `?key=1&do=release`,
		"a\x00b\x1b[2Jc", "abc\u202edcba", `' onmouseover='alert(1)`,
	}
	queries := []string{"", "state=attention", "q=" + strings.Repeat("%22%3E%3Cb%3E", 9), "provider=%3Cscript%3E", "key=%3Cb%3E", "state=%3Cb%3E", "status=%3Cb%3E"}
	for i, text := range hostile {
		for _, state := range []idempotency.State{idempotency.Complete, idempotency.Held, idempotency.Released} {
			key := r.store.Put(t, admintest.Run{
				Provider: text, ID: text, Route: fmt.Sprint(i, state), State: state, Status: 200, Body: text,
				Header: map[string][]string{"X-Evil": {text}},
			})
			queries = append(queries, "key="+key.String(), "key="+key.String()+"&do=release")
		}
	}
	r.store.Damaged[r.store.Put(t, admintest.Run{ID: "broken"})] = true
	for _, query := range queries {
		a := r.get(query)
		scripts := 0
		a.each(func(n *html.Node) {
			for _, at := range n.Attr {
				if strings.HasPrefix(at.Key, "on") || at.Key == "style" || at.Key == "srcdoc" {
					t.Errorf("?%s: <%s %s=%q>", query, n.Data, at.Key, at.Val)
				}
			}
			switch n.Data {
			case "script":
				if scripts++; attribute(n, "src") != "?file=page.js" || n.FirstChild != nil {
					t.Errorf("?%s: a script %q", query, attribute(n, "src"))
				}
			case "img", "iframe", "style", "object", "embed", "base":
				t.Errorf("?%s: <%s>", query, n.Data)
			}
		})
		if scripts != 1 {
			t.Errorf("?%s: %d scripts", query, scripts)
		}
		if strings.ContainsAny(a.text, "\x00\x1b\u202e") {
			t.Errorf("?%s: a character that a browser obeys", query)
		}
	}
	a := r.want(http.StatusOK, "q="+"%3Cscript%3Ealert(1)%3C%2Fscript%3E")
	if !strings.Contains(a.words("deliveries"), `<script>alert(1)</script>`) {
		t.Errorf("the ID is not shown as it is: %s", a.words("deliveries"))
	}
}

// Whatever path the page is under, all that it links to is the page itself.
func TestLinksAreQueriesOnly(t *testing.T) {
	r := filled(t)
	for range 200 {
		r.store.Put(t, admintest.Run{ID: fmt.Sprint(time.Now().UnixNano()), State: idempotency.Complete, Status: 200})
	}
	key := r.store.Put(t, admintest.Run{ID: "one", State: idempotency.Held})
	links := 0
	for _, query := range []string{"", "q=one", "key=" + key.String() + "&do=forget", "key=zz"} {
		a := r.get(query)
		a.each(func(n *html.Node) {
			for _, at := range n.Attr {
				switch at.Key {
				case "href", "src", "action", "formaction", "poster", "data":
					links++
					if !strings.HasPrefix(at.Val, "?") && !strings.HasPrefix(at.Val, "#") {
						t.Errorf("?%s: <%s %s=%q>", query, n.Data, at.Key, at.Val)
					}
				}
			}
		})
	}
	if links < 100 {
		t.Errorf("only %d links", links)
	}
}

func TestHeadersOfAllAnswers(t *testing.T) {
	r := filled(t)
	for target, want := range map[string]struct {
		status int
		kind   string
	}{
		"GET /?":                               {200, "text/html; charset=utf-8"},
		"HEAD /?":                              {200, "text/html; charset=utf-8"},
		"GET /?file=page.css":                  {200, "text/css; charset=utf-8"},
		"GET /?file=page.js":                   {200, "text/javascript; charset=utf-8"},
		"GET /?file=icon.svg":                  {200, "image/svg+xml"},
		"GET /?file=page.html":                 {404, "text/html; charset=utf-8"},
		"GET /?file=../page.go":                {404, "text/html; charset=utf-8"},
		"PUT /?":                               {405, "text/html; charset=utf-8"},
		"POST /?":                              {400, "text/html; charset=utf-8"},
		"GET /?key=1":                          {400, "text/html; charset=utf-8"},
		"GET /?status=odd":                     {400, "text/html; charset=utf-8"},
		"GET /?state=odd":                      {400, "text/html; charset=utf-8"},
		"GET /?key=" + strings.Repeat("0", 64): {404, "text/html; charset=utf-8"},
	} {
		method, path, _ := strings.Cut(target, " ")
		a := r.ask(httptest.NewRequest(method, path, nil))
		header := a.Result().Header
		if a.Code != want.status || header.Get("Content-Type") != want.kind {
			t.Errorf("%s: got %d %s", target, a.Code, header.Get("Content-Type"))
		}
		if header.Get("Content-Security-Policy") != policy || header.Get("X-Content-Type-Options") != "nosniff" ||
			header.Get("Cache-Control") != "no-store" || header.Get("Referrer-Policy") != "same-origin" {
			t.Errorf("%s: headers %v", target, header)
		}
	}
	if got := r.ask(httptest.NewRequest("PUT", "/", nil)).Result().Header.Get("Allow"); got != "GET, HEAD, POST" {
		t.Errorf("allowed are %q", got)
	}
}

// The script never makes elements of a text.
func TestScriptInsertsNoHTML(t *testing.T) {
	script, err := assets.ReadFile("assets/page.js")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", ".style", "setHTML"} {
		if strings.Contains(string(script), word) {
			t.Errorf("the script has %s", word)
		}
	}
}

// Each state has a shape of its own.
func TestShapesOfStates(t *testing.T) {
	html, err := assets.ReadFile("assets/page.html")
	if err != nil {
		t.Fatal(err)
	}
	shapes := make(map[string]bool)
	for _, name := range append([]string{string(alertFailing), string(alertFailureKept)}, admin.States...) {
		shape := regexp.MustCompile(`<symbol id="shape-` + name + `"[^>]*>(.*)</symbol>`).FindSubmatch(html)
		if shape == nil || shapes[string(shape[1])] {
			t.Errorf("%s has the shape %q", name, shape)
			continue
		}
		shapes[string(shape[1])] = true
	}
}
