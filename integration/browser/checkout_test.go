package browser

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/chromedp"
)

// blockOf returns the first block of a page in a language.
func blockOf(t *testing.T, page, language string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```"+language+"\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatalf("%s has no block %q", page, language)
	}
	return block
}

const checkoutPage = "recipes/checkout-form.md"

// shop is a service with the form of the recipe. Each page has another CSRF field, and, where the query
// asks for it, a token of the server.
type shop struct {
	mu     sync.Mutex
	pages  int
	orders []string // the types of the bodies
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request, form string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.Method == http.MethodPost:
		s.orders = append(s.orders, r.Header.Get("Content-Type"))
		http.Redirect(w, r, fmt.Sprintf("/orders/%d", len(s.orders)), http.StatusSeeOther)
	case r.URL.Path == "/shop":
		s.pages++
		token := ""
		if r.URL.Query().Has("server") {
			token = fmt.Sprintf(` value="server-%d"`, s.pages)
		}
		form = strings.Replace(form, `name="order_token"`, `name="order_token"`+token, 1)
		form = strings.Replace(form, "<button>", fmt.Sprintf(`<input type="hidden" name="csrf" value="%d"><button>`, s.pages), 1)
		http.SetCookie(w, &http.Cookie{Name: "session", Value: "alice", Path: "/"})
		w.Header().Set("Content-Type", "text/html")
		w.Header().Set("Cache-Control", "no-store")
		fmt.Fprintf(w, "<!doctype html><title>Shop</title><h1>Shop %d</h1>%s", s.pages, form)
	default:
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, "<!doctype html><title>Order</title><h1>%s</h1>", r.URL.Path)
	}
}

// A button that is pressed twice orders once, in a real browser, with the Caddyfile and the form of the
// recipe: two clicks, both at once, after Back and after a reload.
func TestCheckoutForm(t *testing.T) {
	form, s := blockOf(t, checkoutPage, "html"), new(shop)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r, form) }))
	t.Cleanup(up.Close)
	addr := serveBlock(t, regexp.MustCompile(`store redis .*`).ReplaceAllString(blockOf(t, checkoutPage, "caddyfile"), "store memory"), strings.TrimPrefix(up.URL, "http://"))
	b := openTab(t, true)

	open := func(page string) { b.do("opening the form", chromedp.Navigate("http://"+addr+page)) }
	// submit submits the form twice before the first answer comes: a browser cancels the first navigation.
	submit := func() {
		b.do("pressing the button twice", chromedp.Evaluate[chromedp.Void](`(() => { const form = document.querySelector("form"); form.submit(); form.submit() })()`))
	}
	ordered := func(n int) {
		t.Helper()
		b.await("h1", fmt.Sprintf("/orders/%d", n))
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.orders) != n {
			t.Errorf("there are %d orders, want %d", len(s.orders), n)
		}
	}

	open("/shop")
	submit()
	ordered(1)
	b.do("going back", chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await("h1", "Shop")
	b.click("button")
	ordered(1)
	b.do("going back", chromedp.Evaluate[chromedp.Void](`history.back()`))
	b.await("h1", "Shop")
	b.do("reloading", chromedp.Reload())
	b.await("h1", "Shop")
	b.click("button")
	ordered(1)

	open("/shop?again")
	b.await("h1", "Shop")
	// Both at once, each with a boundary of its own.
	urls, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`document.querySelector("form").action`))
	if err != nil || !strings.HasSuffix(urls, "/checkout") {
		t.Fatalf("the form's action is %q, %v", urls, err)
	}
	b.do("sending both at once", chromedp.Evaluate[chromedp.Void](`(() => {
		const form = document.querySelector("form")
		const send = () => fetch(form.action, {method: "POST", body: new FormData(form)}).then(answer => answer.url)
		Promise.all([send(), send(), send()]).then(urls => { document.querySelector("h1").textContent = urls.map(url => new URL(url).pathname).join(" ") })
	})()`))
	b.await("h1", "/orders/2 /orders/2 /orders/2")

	open("/shop?server")
	b.await("h1", "Shop")
	submit()
	ordered(3)
	for _, contentType := range s.orders {
		if !strings.HasPrefix(contentType, "multipart/form-data; boundary=") {
			t.Errorf("an order was sent as %q", contentType)
		}
	}
}

// serveBlock runs the binary with the Caddyfile of a page, and returns its address once its service
// can be reached. Pairs of texts are replaced in it.
func serveBlock(t *testing.T, config, service string, pairs ...string) string {
	t.Helper()
	program, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0") // closed: no server listens there
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	addr, dir := free.Addr().String(), t.TempDir()
	_, port, _ := net.SplitHostPort(addr)
	if !strings.HasPrefix(config, "{\n") {
		config = "{\n\tdedup {\n\t\tstore memory\n\t}\n}\n" + config
	}
	site := "http://127.0.0.1:" + port + " {"
	config = strings.NewReplacer(append(pairs, ":8080 {", site, "api.example.com {", site, "localhost:3000", service,
		"{\n\tdedup {\n", "{\n\tadmin off\n\tauto_https off\n\tpersist_config off\n\tdedup {\n")...).Replace(config)
	file := filepath.Join(dir, "Caddyfile")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(program, "run", "--config", file, "--adapter", "caddyfile")
	cmd.Env = append(os.Environ(), "HOME="+dir, "XDG_DATA_HOME="+dir, "XDG_CONFIG_HOME="+dir)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &log, &log, patience
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if _ = cmd.Wait(); t.Failed() {
			t.Logf("the process printed:\n%s\nof\n%s", log.String(), config)
		}
	})
	eventually(t, "the service can be reached", func() error {
		got, err := http.Get("http://" + addr + "/orders/0")
		if err != nil {
			return err
		}
		return got.Body.Close()
	})
	return addr
}
