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
			if !scripts { // else the page refreshes itself
				b.do("loading the page again", chromedp.Reload())
			}
			b.await("#delivery", "With 201. The response is kept")
			if err := b.shows("#attention", "No key."); err != nil {
				t.Error(err)
			}
		})
	}
}
