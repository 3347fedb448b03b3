package browser

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// programs are the names that a browser of the Chromium kind is installed under.
var programs = []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless_shell"}

// tab is a tab of a browser of its own, and what the browser had to complain of in it.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu         sync.Mutex
	complaints []string
}

// openTab starts a browser. It skips the test where there is none, unless DEDUP_BROWSER=1
// demands one.
func openTab(t *testing.T, scripts bool, more ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(browserProgram(t)),
		// Root has no sandbox, and neither have most containers. The pages are our own.
		chromedp.NoSandbox,
		chromedp.WindowSize(1280, 900),
	)
	options = append(options, more...)
	bounded, end := context.WithTimeout(t.Context(), 4*patience)
	allocator, stop := chromedp.NewExecAllocator(bounded, options...)
	b := &tab{t: t}
	ctx, leave := chromedp.NewContext(allocator, chromedp.WithListener(b.hear))
	b.ctx = ctx
	t.Cleanup(func() { leave(); stop(); end() })
	if _, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: !scripts}); err != nil {
		t.Fatalf("starting a browser: %v", err)
	}
	return b
}

func browserProgram(t *testing.T) string {
	t.Helper()
	for _, name := range programs {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	missing := "no browser in PATH: none of " + strings.Join(programs, ", ")
	if os.Getenv("DEDUP_BROWSER") == "1" {
		t.Fatal(missing)
	}
	t.Skip(missing)
	return ""
}

// hear notes what a browser shows as an error: what a policy has stopped, what could not
// be loaded, what a script did not catch or called an error. It must not wait for anything.
func (b *tab) hear(event any) {
	var complaint string
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Source == log.EntrySourceSecurity {
			complaint = fmt.Sprintf("%s: %s %s", e.Entry.Source, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventExceptionThrown:
		thrown, _ := json.Marshal(e.ExceptionDetails) // what came as JSON can be written as such
		complaint = fmt.Sprintf("exception: %s", thrown)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeAssert {
			said, _ := json.Marshal(e.Args)
			complaint = fmt.Sprintf("console: %s", said)
		}
	}
	if complaint != "" {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.complaints = append(b.complaints, complaint)
	}
}

func (b *tab) heard() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]string(nil), b.complaints...)
}

func (b *tab) do(what string, step chromedp.Action[chromedp.Void]) {
	b.t.Helper()
	if err := chromedp.Do(b.ctx, step); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
}

// quoted is a text as a script writes it.
func quoted(text string) string {
	out, _ := json.Marshal(text) // a text can always be written
	return string(out)
}

// shows asks whether an element says this, in what can be seen of it.
func (b *tab) shows(selector, text string) error {
	got, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](
		`document.querySelector(`+quoted(selector)+`)?.innerText ?? "(not there)"`))
	if err != nil {
		return err // a page that is just being left
	}
	if !strings.Contains(strings.Join(strings.Fields(got), " "), text) {
		return fmt.Errorf("%s says %q", selector, got)
	}
	return nil
}

// await waits until an element says this.
func (b *tab) await(selector, text string) {
	b.t.Helper()
	eventually(b.t, selector+" says "+quoted(text), func() error { return b.shows(selector, text) })
}

// click clicks on an element that can be seen and that nothing covers. It is found and
// clicked at once: the page replaces its sections while it brings itself up to date.
func (b *tab) click(selector string) {
	b.t.Helper()
	eventually(b.t, selector+" can be clicked", func() error {
		why, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`(() => {
			const element = document.querySelector(`+quoted(selector)+`);
			if (!element) return "it is not there";
			element.scrollIntoView({ block: "center", behavior: "instant" });
			const box = element.getBoundingClientRect();
			const hit = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
			if (!hit || !element.contains(hit)) return "it cannot be seen";
			element.click();
			return "";
		})()`))
		if err != nil {
			return err
		}
		if why != "" {
			return fmt.Errorf("%s", why)
		}
		return nil
	})
}
