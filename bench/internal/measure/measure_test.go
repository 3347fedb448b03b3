package measure

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/bench/internal/load"
)

func TestKeysAreUUIDsAndNeverTwice(t *testing.T) {
	k := newKeys()
	form := regexp.MustCompile(`^[0-9a-f]{8}-0000-4000-8000-[0-9a-f]{12}$`)
	seen := make(map[string]bool)
	take := func(key string) {
		t.Helper()
		if !form.MatchString(key) {
			t.Errorf("the key %q has not the form of a UUID", key)
		}
		if seen[key] {
			t.Errorf("the key %q is there twice", key)
		}
		seen[key] = true
	}
	for i := range int64(300) {
		take(k.fresh(i))
	}
	some := k.some(5)
	for i := range int64(5) {
		take(some(i))
	}
	for i := range int64(5) {
		if !seen[some(i+5)] {
			t.Errorf("the duplicate %q is a new key", some(i+5))
		}
	}
	take(k.fresh(0))
	if k.none(7) != "" {
		t.Error("a request without a key has one")
	}
}

func TestChosenCasesBringTheirBaselines(t *testing.T) {
	names := func(b *Bench) (names []string) {
		for _, c := range b.chosen() {
			names = append(names, c.name)
		}
		return names
	}
	for _, c := range []struct {
		cases, without, against string
		want                    []string
	}{
		{"^first/file$", "", "", []string{"plain", "first/file"}},
		{"^first/file$", "", "../old", []string{"plain", "first/file", "other/file"}},
		{"^fiber/first$", "", "", []string{"fiber/no-key", "fiber/first"}},
		{"^duplicate/", "redis|copy", "", []string{"plain", "respond", "duplicate/memory", "duplicate/file"}},
		{"^growth", "", "", nil},
	} {
		b := &Bench{Options: Options{Cases: regexp.MustCompile(c.cases), Against: c.against}}
		if c.without != "" {
			b.Without = regexp.MustCompile(c.without)
		}
		if got := names(b); !slices.Equal(got, c.want) {
			t.Errorf("-cases %s -without %q chooses %q, want %q", c.cases, c.without, got, c.want)
		}
	}
}

func TestEveryBaselineIsACase(t *testing.T) {
	b := &Bench{Options: Options{Against: "../old"}}
	all := make(map[string]bool)
	for _, c := range b.requestCases() {
		if all[c.name] {
			t.Errorf("two cases are called %q", c.name)
		}
		all[c.name] = true
	}
	for _, c := range b.requestCases() {
		if c.baseline != "" && !all[c.baseline] {
			t.Errorf("%s is a ratio to %q, which is no case", c.name, c.baseline)
		}
	}
}

func TestSlicesAreOfOneRequest(t *testing.T) {
	got := load.Result{
		Latencies: []time.Duration{time.Millisecond, 2 * time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond},
		Failed:    map[string]int{"503 Service Unavailable: overloaded": 1}, Took: 2 * time.Second,
	}
	before := usage{proxy: time.Second, allocations: 100}
	after := usage{proxy: time.Second + 400*time.Microsecond, redis: 40 * time.Microsecond, others: 360 * time.Microsecond, allocations: 500}
	want := slice{perSecond: 2, proxyCPU: 100, redisCPU: 10, allCPU: 200, allocations: 100, refused: 20, answers: 4}
	if s := sliceOf(got, before, after); s != want {
		t.Errorf("the slice is %+v, want %+v", s, want)
	}
}

// A ratio is of two turns of one round: if the machine is slower in the second one, both
// are, and the ratio is the same.
func TestRatiosAreOfOneRound(t *testing.T) {
	cases := []requestCase{{"plain", "plain", "plain", first, ""}, {"first/file", "file", "file", first, "plain"}}
	measured := map[string][]slice{
		"plain":      {{perSecond: 1000, allCPU: 200}, {perSecond: 100, allCPU: 400}},
		"first/file": {{perSecond: 500, allCPU: 400}, {perSecond: 50, allCPU: 800}},
	}
	g := requestTable(cases, measured)
	if cell := g.Rows[1].Cells["ratio"]; cell.Median != 0.5 || cell.Min != 0.5 || cell.Max != 0.5 || cell.Rounds != 2 {
		t.Errorf("the ratio is %+v", cell)
	}
	if cell := g.Rows[1].Cells["by-cpu"]; cell.Min != 0.5 || cell.Max != 0.5 {
		t.Errorf("the ratio by CPU is %+v", cell)
	}
	if _, has := g.Rows[0].Cells["ratio"]; has {
		t.Error("plain is a ratio to itself")
	}
	if table := g.Markdown(); !strings.Contains(table, "0.50 (0.50 to 0.50)") || strings.Contains(table, "refused") {
		t.Errorf("the table is\n%s", table)
	}
}
