package idempotency_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// release is a `release` setting, and in the contract's words what it means.
type release struct {
	name  string
	words string
	frees func(status int) bool
}

var releases = []release{
	{"off", "", func(int) bool { return false }},
	{"api", "5xx 401 403 407 408 409 423 425 429", func(status int) bool {
		return status >= 500 && status <= 599 ||
			slices.Contains([]int{401, 403, 407, 408, 409, 423, 425, 429}, status)
	}},
	{"webhook", "3xx 4xx 5xx", func(status int) bool { return status >= 300 && status <= 599 }},
	{"201 alone", "201", func(status int) bool { return status == 201 }},
}

// settleTable is what the contract says of "How a run ends" (section 4). The
// columns are yes, no, or a dash for either; every case must be in exactly one
// row.
//
//   - hold: the policy is `unknown hold`
//   - lost: the answer, or what the upstream answered, is 502 or 504
//   - zero: the upstream sent `Dedup-Retention: 0`
//   - frees: the answer, or what the upstream answered, is a status that frees
//   - last: as many runs as `max_attempts` allows may have reached the upstream
var settleTable = []struct {
	how                           idempotency.How
	hold, lost, zero, frees, last string
	state                         idempotency.State
	counted                       bool
}{
	{idempotency.NotSent, "-", "-", "-", "-", "-", idempotency.Released, false},
	{idempotency.Unknown, "no", "-", "-", "-", "-", idempotency.Released, true},
	{idempotency.Unknown, "yes", "-", "-", "-", "-", idempotency.Held, true},
	{idempotency.Answered, "yes", "yes", "-", "-", "-", idempotency.Held, true},
	{idempotency.Answered, "yes", "no", "-", "-", "yes", idempotency.Complete, true},
	{idempotency.Answered, "yes", "no", "yes", "-", "no", idempotency.Released, true},
	{idempotency.Answered, "yes", "no", "no", "yes", "no", idempotency.Released, true},
	{idempotency.Answered, "yes", "no", "no", "no", "no", idempotency.Complete, true},
	{idempotency.Answered, "no", "-", "-", "-", "yes", idempotency.Complete, true},
	{idempotency.Answered, "no", "-", "yes", "-", "no", idempotency.Released, true},
	{idempotency.Answered, "no", "-", "no", "yes", "no", idempotency.Released, true},
	{idempotency.Answered, "no", "-", "no", "no", "no", idempotency.Complete, true},
}

func says(column string, value bool) bool {
	return column == "-" || (column == "yes") == value
}

func TestConcludeOverItsWholeDomain(t *testing.T) {
	seconds := func(n int) *time.Duration { d := time.Duration(n) * time.Second; return &d }
	retentions := []*time.Duration{nil, seconds(-1), seconds(0), seconds(1), seconds(86400)}
	upstreams := []int{0, 200, 201, 204, 302, 404, 429, 500, 502, 503, 504}
	used := make([]int, len(settleTable))

	for _, how := range []idempotency.How{idempotency.Answered, idempotency.NotSent, idempotency.Unknown} {
		statuses := []int{0} // nothing was written
		if how == idempotency.Answered {
			statuses = nil
		}
		for status := 200; status <= 599; status++ {
			statuses = append(statuses, status)
		}
		for _, release := range releases {
			set, err := idempotency.ParseStatuses(strings.Fields(release.words)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, hold := range []bool{false, true} {
				for _, status := range statuses {
					for _, upstream := range upstreams {
						for _, retention := range retentions {
							for _, max := range []int{0, 2, 3, 4} {
								policy := idempotency.SettlePolicy{Releases: set, Hold: hold, MaxAttempts: max}
								end := idempotency.End{How: how, Status: status, UpstreamStatus: upstream, Retention: retention, Attempt: 3}
								row := settleRow(t, end, policy, release)
								used[row]++
								want := idempotency.Conclusion{State: settleTable[row].state, Counted: settleTable[row].counted}
								if got := idempotency.Conclude(end, policy); got != want {
									t.Fatalf("%s, hold %v, release %s, attempt 3 of %d: got %+v; want %+v", describe(end), hold, release.name, max, got, want)
								}
							}
						}
					}
				}
			}
		}
	}
	for row, n := range used {
		if n == 0 {
			t.Errorf("no case is in row %d of the table", row)
		}
	}
}

// settleRow returns the one row that says what is right.
func settleRow(t *testing.T, end idempotency.End, policy idempotency.SettlePolicy, release release) int {
	t.Helper()
	lost := end.Status == 502 || end.Status == 504 || end.UpstreamStatus == 502 || end.UpstreamStatus == 504
	zero := end.Retention != nil && *end.Retention <= 0
	last := policy.MaxAttempts == 2 || policy.MaxAttempts == 3 // of an end that is the third
	frees := release.frees(end.Status) || release.frees(end.UpstreamStatus)
	found := -1
	for i, r := range settleTable {
		if r.how != end.How || !says(r.hold, policy.Hold) || !says(r.lost, lost) || !says(r.zero, zero) || !says(r.frees, frees) || !says(r.last, last) {
			continue
		}
		if found >= 0 {
			t.Fatalf("%s: rows %d and %d of the table both say what is right", describe(end), found, i)
		}
		found = i
	}
	if found < 0 {
		t.Fatalf("%s: no row of the table says what is right", describe(end))
	}
	return found
}

func describe(end idempotency.End) string {
	retention := "none"
	if end.Retention != nil {
		retention = end.Retention.String()
	}
	return fmt.Sprintf("%v, status %d, upstream %d, retention %s", end.How, end.Status, end.UpstreamStatus, retention)
}

func TestParseStatuses(t *testing.T) {
	for _, c := range []struct {
		words string
		has   func(status int) bool
	}{
		{"", func(int) bool { return false }},
		{"200", func(s int) bool { return s == 200 }},
		{"599", func(s int) bool { return s == 599 }},
		{"409 409 425", func(s int) bool { return s == 409 || s == 425 }},
		{"2xx", func(s int) bool { return s >= 200 && s <= 299 }},
		{"5xx 404", func(s int) bool { return s >= 500 && s <= 599 || s == 404 }},
		{"2xx 3xx 4xx 5xx", func(s int) bool { return s >= 200 && s <= 599 }},
	} {
		set, err := idempotency.ParseStatuses(strings.Fields(c.words)...)
		if err != nil {
			t.Errorf("%q: %v", c.words, err)
			continue
		}
		for status := -70; status <= 2100; status++ {
			if set.Has(status) != c.has(status) {
				t.Errorf("%q: Has(%d) is %v", c.words, status, set.Has(status))
			}
		}
	}
}

func TestParseStatusesNamesTheWrongWord(t *testing.T) {
	for _, word := range []string{
		"", "x", "xx", "1xx", "6xx", "0xx", "55xx", "5x", "5XX", "5xxx", "xx5", ":xx", "100", "199", "600", "999",
		"40", "4040", "0404", "+404", "-404", "4 4", "404 ", "4.4", "0x1", "off", "ok", "٤٠٤",
	} {
		set, err := idempotency.ParseStatuses("200", word)
		if err == nil {
			t.Errorf("%q was taken for a status", word)
			continue
		}
		if !strings.Contains(err.Error(), fmt.Sprintf("%q", word)) || !strings.Contains(err.Error(), "5xx") {
			t.Errorf("%q: %q names neither the word nor what is right", word, err)
		}
		if set != (idempotency.StatusSet{}) {
			t.Errorf("%q: a set came with the error", word)
		}
	}
}
