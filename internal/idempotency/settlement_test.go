package idempotency_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// release is one value of the `release_on` setting, with the words that it stands for
// and, written out once more, the statuses that these words mean.
type release struct {
	name     string
	words    string
	releases func(status int) bool
}

var releases = []release{
	{"off", "", func(int) bool { return false }},
	{"api", "5xx 4xx 307 308 !402 !422", func(status int) bool {
		return status == 307 || status == 308 || status >= 400 && status <= 599 && !slices.Contains([]int{402, 422}, status)
	}},
	{"webhook", "3xx 4xx 5xx", func(status int) bool { return status >= 300 && status <= 599 }},
	{"201 alone", "201", func(status int) bool { return status == 201 }},
}

// settleTable is what the product promises for each way in which a run ends. The
// columns are yes, no, or a dash for either; every case must be in exactly one
// row.
//
//   - forced: the run is meant to replace a kept response
//   - hold: the policy is `on_unknown hold`
//   - lost: the client got 502 or 504, or the upstream sent it
//   - zero: the upstream sent `Dedup-Retention: 0`
//   - releases: the client got a status after which the key is released, or the
//     upstream sent it, or the client got a 402 with a challenge, or the response
//     says that the request failed
//   - last: as many runs as `max_attempts` allows may have reached the upstream
//   - omitted: the body was larger than the limit, and is not kept
var settleTable = []struct {
	how                                               idempotency.How
	forced, hold, lost, zero, releases, last, omitted string
	state                                             idempotency.State
	counted                                           bool
}{
	{idempotency.NotSent, "-", "-", "-", "-", "-", "-", "-", idempotency.Released, false},
	{idempotency.Unknown, "-", "no", "-", "-", "-", "-", "-", idempotency.Released, true},
	{idempotency.Unknown, "no", "yes", "-", "-", "-", "-", "-", idempotency.Held, true},
	{idempotency.Answered, "no", "yes", "yes", "-", "-", "-", "-", idempotency.Held, true},
	{idempotency.Answered, "no", "yes", "no", "-", "-", "yes", "-", idempotency.Complete, true},
	{idempotency.Answered, "no", "yes", "no", "yes", "-", "no", "-", idempotency.Released, true},
	{idempotency.Answered, "no", "yes", "no", "no", "yes", "no", "-", idempotency.Released, true},
	{idempotency.Answered, "no", "yes", "no", "no", "no", "no", "-", idempotency.Complete, true},
	{idempotency.Answered, "no", "no", "-", "-", "-", "yes", "-", idempotency.Complete, true},
	{idempotency.Answered, "no", "no", "-", "yes", "-", "no", "-", idempotency.Released, true},
	{idempotency.Answered, "no", "no", "-", "no", "yes", "no", "-", idempotency.Released, true},
	{idempotency.Answered, "no", "no", "-", "no", "no", "no", "-", idempotency.Complete, true},
	// A response is kept already. Only a whole response replaces it.
	{idempotency.Unknown, "yes", "yes", "-", "-", "-", "-", "-", idempotency.Released, true},
	{idempotency.Answered, "yes", "yes", "yes", "-", "-", "-", "-", idempotency.Released, true},
	{idempotency.Answered, "yes", "yes", "no", "yes", "-", "-", "-", idempotency.Released, true},
	{idempotency.Answered, "yes", "yes", "no", "no", "yes", "-", "-", idempotency.Released, true},
	{idempotency.Answered, "yes", "yes", "no", "no", "no", "-", "yes", idempotency.Released, true},
	{idempotency.Answered, "yes", "yes", "no", "no", "no", "-", "no", idempotency.Complete, true},
	{idempotency.Answered, "yes", "no", "-", "yes", "-", "-", "-", idempotency.Released, true},
	{idempotency.Answered, "yes", "no", "-", "no", "yes", "-", "-", idempotency.Released, true},
	{idempotency.Answered, "yes", "no", "-", "no", "no", "-", "yes", idempotency.Released, true},
	{idempotency.Answered, "yes", "no", "-", "no", "no", "-", "no", idempotency.Complete, true},
}

func fits(column string, value bool) bool {
	return column == "-" || (column == "yes") == value
}

// settleCase is one situation that the settle table must decide.
type settleCase struct {
	end    idempotency.End
	policy idempotency.Policy
	set    release
}

// status is the status that the client got, 0 if it got no response.
func (c settleCase) status() int {
	if c.end.Response == nil {
		return 0
	}
	return c.end.Response.Status
}

func (c settleCase) String() string {
	retention := "none"
	if c.end.Retention != nil {
		retention = c.end.Retention.String()
	}
	return fmt.Sprintf("%v, status %d, upstream %d, retention %s, says failed %v, hold %v, release %s, attempt %d of %d, forced %v",
		c.end.How, c.status(), c.end.UpstreamStatus, retention, c.end.SaysFailed, c.policy.Hold, c.set.name, c.end.Attempt, c.policy.MaxAttempts, c.end.HasPrevious)
}

// settleCases yields every case once. The run is always the third attempt.
func settleCases(t *testing.T, yield func(settleCase)) {
	seconds := func(n int) *time.Duration { d := time.Duration(n) * time.Second; return &d }
	retentions := []*time.Duration{nil, seconds(-1), seconds(0), seconds(1), seconds(86400)}
	upstreams := []int{0, 200, 201, 302, 401, 403, 407, 429, 500, 502, 503, 504}
	for _, how := range []idempotency.How{idempotency.Answered, idempotency.NotSent, idempotency.Unknown} {
		responses := []*idempotency.Response{nil} // the run wrote no response
		if how == idempotency.Answered {
			responses = []*idempotency.Response{{Status: 200, Omitted: true}, {Status: 500, Omitted: true}}
			for _, status := range []int{200, 402} { // of which a challenge makes only 402 a request for payment
				responses = append(responses, &idempotency.Response{Status: status, Header: map[string][]string{"Www-Authenticate": {"Payment"}}},
					&idempotency.Response{Status: status, Header: map[string][]string{"Payment-Required": {"e30="}}})
			}
		}
		for status := 200; status <= 599; status++ {
			responses = append(responses, &idempotency.Response{Status: status, Failed: how != idempotency.Answered})
		}
		for _, set := range releases {
			releaseOn, err := idempotency.ParseStatuses(strings.Fields(set.words)...)
			if err != nil {
				t.Fatal(err)
			}
			for _, response := range responses {
				for _, upstream := range upstreams {
					for _, retention := range retentions {
						for flags := range 8 {
							for _, maxAttempts := range []int{0, 2, 3, 4} {
								yield(settleCase{
									end: idempotency.End{How: how, Response: response, UpstreamStatus: upstream, Retention: retention, Attempt: 3, HasPrevious: flags&1 != 0, SaysFailed: flags&4 != 0},
									policy: idempotency.Policy{
										Terms:     idempotency.Terms{Lease: 30 * time.Second, Retention: time.Hour, Hold: flags&2 != 0, MaxAttempts: maxAttempts},
										ReleaseOn: releaseOn,
									},
									set: set,
								})
							}
						}
					}
				}
			}
		}
	}
}

func TestConcludeOverItsWholeDomain(t *testing.T) {
	used := make([]int, len(settleTable))
	settleCases(t, func(c settleCase) {
		row := settleRow(t, c)
		used[row]++
		want := idempotency.Settlement{
			State: settleTable[row].state, Counted: settleTable[row].counted,
			Response: c.end.Response, Retention: time.Hour, AnswerRetention: 30 * time.Second,
		}
		if want.State == idempotency.Held {
			want.Response = nil
		}
		aboutCaller := slices.Contains([]int{401, 403, 407}, c.status()) || slices.Contains([]int{401, 403, 407}, c.end.UpstreamStatus)
		if want.State == idempotency.Released && aboutCaller {
			want.Response = nil
			if c.policy.MaxAttempts == 0 {
				want.Retention = 30 * time.Second
			}
		}
		if wish := c.end.Retention; want.State == idempotency.Complete && wish != nil && *wish > 0 {
			want.Retention = *wish
		}
		if got := idempotency.Conclude(c.end, c.policy); got != want {
			t.Fatalf("%v: got %+v; want %+v", c, got, want)
		}
	})
	for row, n := range used {
		if n == 0 {
			t.Errorf("no case is in row %d of the table", row)
		}
	}
}

// settleRow returns the one row of the table that the case is in.
func settleRow(t *testing.T, c settleCase) int {
	t.Helper()
	status, upstream := c.status(), c.end.UpstreamStatus
	lost := status == 502 || status == 504 || upstream == 502 || upstream == 504
	zero := c.end.Retention != nil && *c.end.Retention <= 0
	last := c.policy.MaxAttempts == 2 || c.policy.MaxAttempts == 3 // the run is the third attempt
	releases := c.end.SaysFailed || c.set.releases(status) || c.set.releases(upstream) || status == 402 && c.end.Response.Header != nil
	omitted := c.end.Response != nil && c.end.Response.Omitted
	found := -1
	for i, r := range settleTable {
		if r.how != c.end.How || !fits(r.forced, c.end.HasPrevious) || !fits(r.hold, c.policy.Hold) || !fits(r.lost, lost) ||
			!fits(r.zero, zero) || !fits(r.releases, releases) || !fits(r.last, last) || !fits(r.omitted, omitted) {
			continue
		}
		if found >= 0 {
			t.Fatalf("%v: rows %d and %d of the table both say what is right", c, found, i)
		}
		found = i
	}
	if found < 0 {
		t.Fatalf("%v: no row of the table says what is right", c)
	}
	return found
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
		{"!409 4xx !404 409", func(s int) bool { return s >= 400 && s <= 499 && s != 404 && s != 409 }},
		{"!200", func(int) bool { return false }},
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
		"!", "!4xx", "!!404", "404!", "! 404", "!600",
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

// Waiters on other replicas have a lease, and at least 5 s, to fetch the response.
func TestReleasedResponseRetention(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		300 * time.Millisecond: 5 * time.Second,
		5 * time.Second:        5 * time.Second,
		30 * time.Second:       30 * time.Second,
	} {
		p := idempotency.Policy{Terms: idempotency.Terms{Lease: lease, Retention: time.Second}}
		s := idempotency.Conclude(idempotency.End{How: idempotency.NotSent, Response: &idempotency.Response{Status: 502}}, p)
		if s.State != idempotency.Released || s.ResponseRetention() != want {
			t.Errorf("with a lease of %v the answer of a run that is %s is kept %v, want %v", lease, s.State, s.ResponseRetention(), want)
		}
	}
}
