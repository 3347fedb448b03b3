package browser

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

var update = flag.Bool("update", false, "renew the pictures in docs")

// someDeliveries sends requests that end in different ways.
func someDeliveries(t *testing.T) (addr string) {
	t.Helper()
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get("X-GitHub-Delivery") + r.Header.Get("Idempotency-Key")
		switch {
		case strings.HasPrefix(id, "72d3"):
			panic(http.ErrAbortHandler)
		case strings.HasPrefix(id, "a1f0"):
			w.WriteHeader(http.StatusServiceUnavailable)
		case strings.HasSuffix(id, "refund"):
			w.WriteHeader(http.StatusInternalServerError)
		default:
			w.WriteHeader(http.StatusCreated)
		}
	}))
	t.Cleanup(up.Close)
	addr = serve(t, strings.TrimPrefix(up.URL, "http://"))
	send := func(path, header, id string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+path, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "hooks.example.com"
		r.Header.Set(header, id)
		r.Header.Set("X-GitHub-Hook-ID", "7")
		r.Header.Set("X-API-Key", "any")
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
	}
	for i := range 3 {
		send("/orders", "Idempotency-Key", fmt.Sprint("order_2026_100", i))
		send("/github", "X-GitHub-Delivery", fmt.Sprintf("0b989ba%d-242f-11e5-81e1-c7b6966d2516", i))
	}
	send("/github", "X-GitHub-Delivery", "a1f0c3d2-7a55-11ef-9c1e-0242ac120002")
	send("/orders", "Idempotency-Key", "order_2026_1001_refund")
	send("/orders", "Idempotency-Key", "order_2026_1002")
	send("/github", "X-GitHub-Delivery", deliveryID)
	for i := range 4 {
		send("/github", "X-GitHub-Delivery", fmt.Sprintf("5ce0f4b%d-6d1b-11ef-8f3a-325096b39f47", i))
	}
	return addr
}

// In wide and narrow windows, light and dark, nothing is wider than the window, and a question
// stays in view wherever one scrolls. With -update the pictures in docs are renewed.
func TestPageFitsItsWindow(t *testing.T) {
	addr := someDeliveries(t)
	for name, c := range map[string]struct {
		width, height             int64
		scheme, pictured, picture string
	}{
		"wide, light":   {1280, 900, "light", "opened", "dashboard-light.png"},
		"wide, dark":    {1280, 900, "dark", "", ""},
		"narrow, light": {390, 844, "light", "", ""},
		"narrow, dark":  {390, 844, "dark", "list", "dashboard-dark.png"},
	} {
		t.Run(name, func(t *testing.T) {
			// The host that the title shows is not that of this machine.
			b := openTab(t, true, chromedp.Flag("host-resolver-rules", "MAP hooks.example.com:80 "+addr))
			b.do("choosing the window", chromedp.EmulateViewport(c.width, c.height))
			if _, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: c.scheme}},
			}); err != nil {
				t.Fatal(err)
			}
			take := func(what string) {
				t.Helper()
				wider, err := chromedp.Run(b.ctx, chromedp.Evaluate[int](`document.documentElement.scrollWidth - document.documentElement.clientWidth`))
				if err != nil || wider > 0 {
					t.Errorf("%s: it is wider than the window by %d: %v", what, wider, err)
				}
				if *update && what == c.pictured {
					b.picture(filepath.Join("..", "..", "docs", c.picture))
				}
			}
			b.do("opening the page", chromedp.Navigate("http://hooks.example.com/ops/"))
			b.await("#attention", deliveryID)
			b.await(".brand", "production · hooks.example.com · payments")
			header, err := chromedp.Run(b.ctx, chromedp.Evaluate[float64](`document.querySelector(".top").getBoundingClientRect().height`))
			if err != nil || header > 110 {
				t.Errorf("the header takes %v pixels of the window: %v", header, err)
			}
			take("list")
			b.do("searching for nothing", chromedp.Navigate("http://hooks.example.com/ops/?q=nothing"))
			b.await("#said", "Nothing found.")
			take("nothing")
			b.do("opening a delivery", chromedp.Navigate("http://hooks.example.com/ops/?q="+deliveryID))
			b.await("#delivery", "POST hooks.example.com/github")
			take("opened")
			b.click(`#delivery a[href*="do=release"]`)
			b.await("#confirm", "Release "+deliveryID+"?")
			for _, to := range []string{"0", "99999"} {
				out, err := chromedp.Run(b.ctx, chromedp.Evaluate[bool](`(() => {
					for (const part of [document.scrollingElement, document.getElementById("delivery")]) part.scrollTop = `+to+`;
					const button = document.querySelector("#confirm button"), box = button.getBoundingClientRect();
					const title = document.querySelector("#confirm-title").getBoundingClientRect();
					const seen = (x, y) => document.getElementById("confirm").contains(document.elementFromPoint(x, y));
					return seen(box.x + box.width / 2, box.y + box.height / 2) && seen(title.x + 5, title.y + title.height / 2);
				})()`))
				if err != nil || !out {
					t.Errorf("scrolled to %s, the question is not in view: %v", to, err)
				}
			}
			take("question")
		})
	}
}

// picture takes a picture of what the window shows.
func (b *tab) picture(file string) {
	b.t.Helper()
	png, err := chromedp.Run(b.ctx, chromedp.CaptureScreenshot())
	if err == nil {
		err = os.WriteFile(file, png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
}
