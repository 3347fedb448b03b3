package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
)

// What the page of browsers says of CORS holds in one: a script of another origin reads first answers,
// replays, refusals and errors, with the header fields that the page's Caddyfile exposes.
func TestScriptOfAnotherOrigin(t *testing.T) {
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet || r.Header.Get("Idempotency-Key") == "cut" {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Access-Control-Allow-Origin", "*") // the service's own, which the page removes
		w.Header().Set("Location", "/orders/1")
		w.WriteHeader(http.StatusCreated)
	}))
	t.Cleanup(service.Close)
	shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write([]byte("<!doctype html><title>Shop</title><h1>Shop</h1>"))
	}))
	t.Cleanup(shop.Close)
	addr := serveBlock(t, blockOf(t, "browsers.md", "caddyfile"), strings.TrimPrefix(service.URL, "http://"), "https://shop.example.com", shop.URL)
	order := strings.ReplaceAll(blockOf(t, "browsers.md", "js"), "https://api.example.com", "http://"+addr)

	b := openTab(t, true)
	b.do("opening the shop", chromedp.Navigate(shop.URL))
	for _, c := range []struct{ name, key, order, want string }{
		{"the first", "k", "1", `[201,"/orders/1",null,true]`},
		{"its duplicate", "k", "1", `[201,"/orders/1","true",true]`},
		{"another order with its key", "k", "2", `[422,null,null,true]`},
		{"a service that is cut off", "cut", "1", `[502,null,null,true]`},
		{"a key of the page's own", "", "1", `[201,"/orders/1",null,true]`},
	} {
		key := "delete sessionStorage.orderKey"
		if c.key != "" {
			key = "sessionStorage.orderKey = " + quoted(c.key)
		}
		got, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`(async () => {
			`+key+`
			const order = `+c.order+`
			`+order+`
			return JSON.stringify([answer.status, answer.headers.get("Location"), answer.headers.get("Idempotent-Replayed"), answer.headers.has("Dedup-Execution-Id")])
		})()`, chromedp.EvalAwaitPromise))
		if err != nil || got != c.want {
			t.Errorf("%s: the script got %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[int](`fetch("http://`+addr+`/orders", {credentials: "include"}).then(answer => answer.status)`, chromedp.EvalAwaitPromise))
	if err != nil || got != http.StatusBadGateway {
		t.Errorf("an error without a key: the script got %d, %v, want 502", got, err)
	}
}
