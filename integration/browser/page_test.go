package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
)

const deliveryID = "72d3162e-cc78-11e3-81ab-4c9367dc0958"

// deliver sends the webhook once more and returns the status of its answer.
func deliver(t *testing.T, addr string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/hook", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-GitHub-Delivery", deliveryID)
	r.Header.Set("X-GitHub-Hook-ID", "7")
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	return got.StatusCode
}

// A held webhook is found by its delivery ID, released after a question, delivered again,
// and seen to succeed; and the browser has nothing to complain of, such as of something
// that the page's own policy forbids.
func TestPageInABrowser(t *testing.T) {
	for name, scripts := range map[string]bool{"with JavaScript": true, "without JavaScript": false} {
		t.Run(name, func(t *testing.T) {
			b := openTab(t, scripts)
			defer func() { // also where that is why the page does not do what it should
				for _, complaint := range b.heard() {
					t.Error(complaint)
				}
			}()
			var runs atomic.Int32
			up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if runs.Add(1) == 1 {
					panic(http.ErrAbortHandler) // nobody knows whether it was executed
				}
				w.WriteHeader(http.StatusCreated)
			}))
			t.Cleanup(up.Close)
			addr := serve(t, strings.TrimPrefix(up.URL, "http://"))
			if got := deliver(t, addr); got != http.StatusBadGateway {
				t.Fatalf("got %d; the run is to fail", got)
			}
			if got := deliver(t, addr); got != http.StatusServiceUnavailable {
				t.Fatalf("got %d; it is to be held", got)
			}

			b.do("opening the page", chromedp.Navigate("http://"+addr+"/ops/"))
			b.await("#attention", deliveryID)
			runsScripts, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`document.querySelector("button.pause") !== null`))
			if err != nil || runsScripts != scripts {
				t.Fatalf("the page's script runs: %t, want %t; %v", runsScripts, scripts, err)
			}
			b.do("searching", chromedp.SendKeys("#q", deliveryID+"\r"))
			b.await("#delivery", "It is unknown whether the service executed it")
			b.click(`#delivery a[href*="do=release"]`)
			b.await("#confirm", "Release "+deliveryID+"?")
			if got := deliver(t, addr); got != http.StatusServiceUnavailable {
				t.Fatalf("got %d; the release is not confirmed yet", got)
			}
			b.click(`#confirm button[type="submit"]`)
			b.await("#said", "The key is released.")
			b.await("#delivery", "By an operator, after attempt 1.")

			if got := deliver(t, addr); got != http.StatusCreated {
				t.Errorf("delivered again, it is %d", got)
			}
			if scripts { // the page refreshes itself
				b.await("#delivery", "With 201. The response is kept")
			} else {
				b.do("loading the page again", chromedp.Reload())
				b.await("#delivery", "With 201. The response is kept")
			}
			if err := b.shows("#attention", "Nothing."); err != nil {
				t.Error(err)
			}
		})
	}
}

// What TestPageInABrowser has to notice is noticed.
func TestBrowserComplains(t *testing.T) {
	for name, c := range map[string]struct{ body, says string }{
		"a script that the policy forbids": {`<script>1</script>`, "Content Security Policy"},
		"a style that the policy forbids":  {`<p style="color: red">`, "Content Security Policy"},
		"a file that is not there":         {`<script src="/none.js"></script>`, "404"},
		"an error of a script":             {`<script src="/throws.js"></script>`, "it is thrown"},
		"an error on the console":          {`<script src="/says.js"></script>`, "it is said"},
	} {
		t.Run(name, func(t *testing.T) {
			b := openTab(t, true)
			mux := http.NewServeMux()
			answer := func(path, kind, text string) {
				mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", kind)
					w.Header().Set("Content-Security-Policy", "default-src 'self'")
					_, _ = w.Write([]byte(text)) // the browser may have gone
				})
			}
			answer("/{$}", "text/html", `<!doctype html><title>a</title><link rel="icon" href="/icon.svg">`+c.body)
			answer("/icon.svg", "image/svg+xml", `<svg xmlns="http://www.w3.org/2000/svg"/>`)
			answer("/throws.js", "text/javascript", `throw new Error("it is thrown");`)
			answer("/says.js", "text/javascript", `console.error("it is said");`)
			server := httptest.NewServer(mux)
			t.Cleanup(server.Close)
			b.do("opening the page", chromedp.Navigate(server.URL+"/"))
			eventually(t, "the browser complains", func() error {
				return contains(b.heard(), c.says)
			})
		})
	}
}
