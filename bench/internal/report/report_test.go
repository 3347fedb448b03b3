package report

import (
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
				{Name: "first/file", What: "first | file", Cells: map[string]stats.Spread{"ratio": stats.Of(0.4, 0.5, 0.6), "rate": stats.Of(999.6)}},
			},
		}},
	}
}

func TestMarkdown(t *testing.T) {
	const want = `| case | of plain | requests/s |
|---|---:|---:|
| plain |  | 12,345 |
| first \| file | 0.50 (0.40 to 0.60) | 1,000 |
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
<!-- bench:requests first/file ratio -->
old
<!-- /bench -->
<!-- bench:growth-table -->
kept
<!-- /bench -->
end
`

func TestAPageIsBroughtUpToDate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "page.md")
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
	if strings.Contains(got, "old") || strings.Count(got, "0.50 (0.40 to 0.60)") != 1 || strings.Count(got, "Commit abc1234, 2026-01-02.") != 2 {
		t.Errorf("the table is not there once:\n%s", got)
	}
	for _, words := range []string{"# A page\n", "\nbetween\n", "| case | of plain |\n|---|---:|\n| first \\| file | 0.50 |\n\n", "\nkept\n", "\nend\n"} {
		if !strings.Contains(got, words) {
			t.Errorf("the page has no %q:\n%s", words, got)
		}
	}
}

func TestAPlaceNamesWhatIsMeasured(t *testing.T) {
	_, err := fill("<!-- bench:requests first/file first/disk ratio -->\n<!-- /bench -->\n", measured().part)
	if err == nil || !strings.Contains(err.Error(), "first/disk") || strings.Contains(err.Error(), "first/file") {
		t.Errorf("the error is %v", err)
	}
}

func TestAPlaceWithoutAnEndIsAnError(t *testing.T) {
	for _, bad := range []string{"<!-- bench:a -->\n", "<!-- bench:a -->\n<!-- bench:b -->\n<!-- /bench -->", "<!-- bench:a\n"} {
		if got, err := fill(bad, func(string) (string, error) { return "x", nil }); err == nil {
			t.Errorf("%q is filled to %q", bad, got)
		}
	}
}
