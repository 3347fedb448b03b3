package report

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/stats"
)

func measured() *Result {
	return &Result{
		Date: time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC), Commit: "abc1234", Settings: []string{"-rounds", "3"},
		Machine:  Machine{CPU: "A <fast> one", Cores: 2, Memory: 8 << 30, Kernel: "6.1"},
		Versions: []Named{{"Go", "go1.26"}},
		Notes:    []string{"Left out: one case."},
		Groups: []Group{{
			Name: "requests", Title: "Requests",
			Columns: []Column{{Key: "ratio", Title: "of plain", Digits: 2, Spread: true}, {Key: "rate", Title: "requests/s"}, {Key: "none", Title: "nowhere"}},
			Rows: []Row{
				{Name: "plain", What: "plain", Cells: map[string]stats.Spread{"rate": stats.Of(12345)}},
				{Name: "first/file", What: "first | file", Goal: "0.68", Cells: map[string]stats.Spread{"ratio": stats.Of(0.4, 0.5, 0.6), "rate": stats.Of(999.6)}},
			},
		}},
		Plots: []Plot{
			{Name: "latency", Title: "Latency & more", X: "requests/s", Y: "ms", Log: true, Series: []Series{
				{"plain", []Point{{500, 0.5}, {1000, 2}}}, {"file <1>", []Point{{500, 1}, {1000, 400}}},
			}},
			{Name: "growth", Title: "Growth", Series: []Series{{Name: "nothing"}}},
		},
	}
}

func TestMarkdown(t *testing.T) {
	const want = `| case | of plain | goal | requests/s |
|---|---:|---:|---:|
| plain |  |  | 12,345 |
| first \| file | 0.50 (0.40 to 0.60) | 0.68 | 1,000 |
`
	if got := measured().Groups[0].Markdown(); got != want {
		t.Errorf("the table is\n%s\nwant\n%s", got, want)
	}
}

func TestText(t *testing.T) {
	var b strings.Builder
	if err := measured().WriteText(&b); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"Requests\n", "0.50 (0.40 to 0.60)", "12,345", "Left out: one case."} {
		if !strings.Contains(b.String(), words) {
			t.Errorf("the text has no %q:\n%s", words, b.String())
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		digits int
		value  float64
		want   string
	}{{0, 0, "0"}, {0, 999, "999"}, {0, 1000, "1,000"}, {0, 1234567, "1,234,567"}, {0, -1234, "-1,234"}, {0, -123, "-123"}, {2, 1234.5, "1234.50"}} {
		if got := (Column{Digits: c.digits}).number(c.value); got != c.want {
			t.Errorf("%v with %d digits is %q, want %q", c.value, c.digits, got, c.want)
		}
	}
}

func TestJSONThereAndBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "result.json")
	want := measured()
	if err := want.WriteJSON(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadJSON(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadJSON(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("half a file gives the error %v", err)
	}
}

const page = `# A page
<!-- bench:requests -->
old
<!-- /bench -->
between
<!-- bench:growth-table -->
kept
<!-- /bench -->
<!-- bench:picture-latency -->
<!-- /bench -->
end
`

func TestAPageIsBroughtUpToDate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "performance.md")
	if err := os.WriteFile(path, []byte(page), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second time changes nothing
		if err := measured().WritePage(path); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if strings.Contains(got, "old") || strings.Count(got, "0.50 (0.40 to 0.60)") != 1 || strings.Count(got, "Commit abc1234, 2026-01-02.") != 1 {
		t.Errorf("the table is not there once:\n%s", got)
	}
	for _, words := range []string{"# A page\n", "\nbetween\n", "\nkept\n", "\nend\n", "![Latency & more](performance/latency.svg)"} {
		if !strings.Contains(got, words) {
			t.Errorf("the page has no %q:\n%s", words, got)
		}
	}
	for _, name := range []string{"ratios", "latency", "growth"} {
		if _, err := os.Stat(filepath.Join(dir, "performance", name+".svg")); err != nil {
			t.Error(err)
		}
	}
}

func TestAPlaceWithoutAnEndIsAnError(t *testing.T) {
	for _, bad := range []string{"<!-- bench:a -->\n", "<!-- bench:a -->\n<!-- bench:b -->\n<!-- /bench -->", "<!-- bench:a\n"} {
		if got, err := fill(bad, map[string]string{"a": "x"}); err == nil {
			t.Errorf("%q is filled to %q", bad, got)
		}
	}
}

// A picture that is not well-formed is shown by no browser.
func TestPicturesAreWellFormed(t *testing.T) {
	pictures := measured().Pictures()
	if len(pictures) != 3 {
		t.Fatalf("there are %d pictures", len(pictures))
	}
	for _, p := range pictures {
		decoder := xml.NewDecoder(strings.NewReader(p.Text))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v\n%s", p.Name, err, p.Text)
			}
		}
		if strings.Contains(p.Text, "NaN") || strings.Contains(p.Text, "Inf") {
			t.Errorf("%s has points that are nowhere:\n%s", p.Name, p.Text)
		}
		if !strings.Contains(p.Text, "prefers-color-scheme: dark") {
			t.Errorf("%s cannot be read on dark ground", p.Name)
		}
	}
}

func TestTicksAreRoundAndFew(t *testing.T) {
	for _, most := range []float64{0, 0.013, 0.9, 1, 1.75, 4, 9.99, 10, 2000, 1e6} {
		if n := most / tickStep(most); n > 10.001 || most > 0 && n < 3.9 {
			t.Errorf("an axis up to %v has %v steps of %v", most, n, tickStep(most))
		}
	}
}
