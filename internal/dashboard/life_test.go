package dashboard

import (
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestWhatNeedsAttention(t *testing.T) {
	now := time.Now()
	before, after := now.Add(-time.Hour), now.Add(time.Minute)
	github := idempotency.Origin{Provider: "github"}
	for _, c := range []struct {
		name    string
		state   string
		record  idempotency.Record
		refused time.Time
		want    need
	}{
		{"held", "held", idempotency.Record{}, time.Time{}, needsDecision},
		{"unreadable", admin.StateUnreadable, idempotency.Record{}, time.Time{}, needsReading},
		{"lapsed", "lapsed", idempotency.Record{Claimed: now}, time.Time{}, needsRetry},
		{"lapsed, and no attempt left", "lapsed", idempotency.Record{Claimed: now}, after, needsAttempts},
		{"in flight", "in_flight", idempotency.Record{Claimed: now}, time.Time{}, ""},
		{"complete", "complete", idempotency.Record{Status: 201, Attempt: 1}, time.Time{}, ""},
		{"complete with the client's mistake", "complete", idempotency.Record{Status: 422, Attempt: 1}, time.Time{}, ""},
		{"complete with a failure", "complete", idempotency.Record{Status: 500, Attempt: 3}, time.Time{}, needsFreeing},
		{"failed", "released", idempotency.Record{Attempt: 1, Status: 503, Ended: now}, time.Time{}, needsMending},
		{"failed again after it was freed", "released", idempotency.Record{Attempt: 3, FreedAttempts: 2, Status: 500, Ended: now}, time.Time{}, needsMending},
		{"the client's conflict", "released", idempotency.Record{Attempt: 1, Status: 409, Ended: now}, time.Time{}, ""},
		{"a client that was too fast", "released", idempotency.Record{Attempt: 1, Status: 429, Ended: now}, time.Time{}, ""},
		{"a client that was refused", "released", idempotency.Record{Attempt: 1, Ended: now}, time.Time{}, ""}, // its status is not kept
		{"a client that was refused before the service", "released", idempotency.Record{Status: 401, Ended: now}, time.Time{}, ""},
		{"a mistake that is released by choice", "released", idempotency.Record{Attempt: 1, Status: 404, Ended: now}, time.Time{}, needsMending},
		{"a webhook with a conflict", "released", idempotency.Record{Attempt: 1, Status: 409, Ended: now, Origin: github}, time.Time{}, needsMending},
		{"a webhook that was refused", "released", idempotency.Record{Attempt: 1, Ended: now, Origin: github}, time.Time{}, needsMending},
		{"a webhook that went elsewhere", "released", idempotency.Record{Attempt: 1, Status: 302, Ended: now, Origin: github}, time.Time{}, needsMending},
		{"no attempt left for a client that was refused", "released", idempotency.Record{Attempt: 3, Claimed: now, Ended: now}, after, needsAttempts},
		{"not sent", "released", idempotency.Record{Ended: now}, time.Time{}, needsMending},
		{"freed", "released", idempotency.Record{Attempt: 2, FreedAttempts: 2, Status: 500, Ended: now}, time.Time{}, ""},
		{"no attempt left", "released", idempotency.Record{Attempt: 3, Claimed: now, Ended: now}, after, needsAttempts},
		{"no attempt was left before", "released", idempotency.Record{Attempt: 3, Status: 500, Claimed: now, Ended: now}, before, needsMending},
	} {
		got, needy := needOf(seen{state: c.state, record: &c.record}, c.refused)
		if !needy {
			got = ""
		}
		if got != c.want {
			t.Errorf("%s: it needs %q, want %q", c.name, got, c.want)
		}
		if needy && advice(seen{state: c.state, record: &c.record, kind: got}) == "" {
			t.Errorf("%s: no advice", c.name)
		}
	}
}

// Of each kind some are shown, and each kind in its order, the oldest first.
func TestConcernsAreShownFairly(t *testing.T) {
	w, now := newWindow(nil), time.Now()
	for i := range 40 {
		w.add(seen{state: "released", record: &idempotency.Record{Attempt: 1, Status: 500, Ended: now.Add(-time.Duration(i) * time.Minute)}})
	}
	w.add(seen{state: "lapsed", record: &idempotency.Record{}})
	w.add(seen{state: "held", record: &idempotency.Record{}})
	w.finish()
	some := fairly(w.concerns, 8)
	if len(some) != 8 || some[0].kind != needsDecision || some[7].kind != needsRetry || some[1].since != now.Add(-39*time.Minute) {
		t.Errorf("shown are %+v", some)
	}
}

// lines is a life in words, one moment a line.
func lines(life []moment) string {
	var out strings.Builder
	for _, m := range life {
		out.WriteString(m.Title + ": " + m.Text)
		if m.Here {
			out.WriteString(" (here)")
		}
		if m.Count > 1 {
			out.WriteString(" xN")
		}
		out.WriteString("\n")
	}
	return out.String()
}

func TestLifeOfADelivery(t *testing.T) {
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return now.Add(time.Duration(s) * time.Second) }
	expires := "Forgotten: The store forgets the key then, unless it runs again before.\n"
	for _, c := range []struct {
		name    string
		seen    seen
		notes   []Note
		waiting int
		want    string
	}{
		{
			"kept", seen{state: "complete", now: at(9), record: &idempotency.Record{State: idempotency.Complete, Attempt: 1, Status: 201, ExecutionID: "e", Claimed: at(0), Ended: at(2), Expires: at(999)}},
			[]Note{{At: at(0), What: "fresh", ExecutionID: "e", Attempt: 1}, {At: at(2), What: Ended, ExecutionID: "e"}, {At: at(4), What: "replayed", ExecutionID: "e"}, {At: at(5), What: "replayed", ExecutionID: "e"}}, 0,
			"Claimed: Attempt 1 began.\nEnded: Its answer, 201, is kept. Duplicates get it. It took 2 s.\nDuplicate: It got the kept answer. (here) xN\n" + expires,
		},
		{
			"in flight after a takeover", seen{state: "in_flight", now: at(9), record: &idempotency.Record{State: idempotency.InFlight, Attempt: 2, ExecutionID: "e", Claimed: at(5), LeaseUntil: at(30), Expires: at(999)}},
			[]Note{{At: at(1), What: "fresh", ExecutionID: "d", Attempt: 1}, {At: at(5), What: TookOver, ExecutionID: "e", Attempt: 2}}, 3,
			"Claimed: Attempt 1 began. (here)\nClaimed: Attempt 2 began.\nTaken over: The lease of the run before had lapsed. (here)\n" +
				"In flight: The run goes on, and renews its lease. Duplicates that wait for it here: 3. (here)\nLease ends: Unless the process renews it, the next delivery takes over.\n" + expires,
		},
		{
			"freed on another replica", seen{state: "released", now: at(9), record: &idempotency.Record{State: idempotency.Released, Attempt: 3, FreedAttempts: 3, Claimed: at(1), Ended: at(2), Expires: at(999)}},
			nil, 0,
			"Earlier attempts: 2 before this one. The record keeps the latest.\nFreed: By an operator, after attempt 3. The record does not keep by whom.\n" +
				"Claimed: Attempt 3 began.\nEnded: Without an answer. It took 1 s.\n" + expires,
		},
		{
			"held since its lease lapsed, and refused", seen{state: "held", now: at(99), record: &idempotency.Record{State: idempotency.InFlight, Hold: true, Attempt: 1, Claimed: at(1), LeaseUntil: at(31), Expires: at(999)}},
			[]Note{{At: at(40), What: "held"}, {At: at(50), What: Freed, Who: "bob\x1b"}}, 0,
			"Claimed: Attempt 1 began.\nHeld: The lease was not renewed, and nobody knows how the run ended.\nRefused: The key is held. (here)\nFreed: By bob\\x1b. (here)\n" + expires,
		},
		{
			"forced", seen{state: "complete", now: at(9), record: &idempotency.Record{State: idempotency.Complete, Attempt: 2, Status: 200, ParentID: "first", Claimed: at(1), Ended: at(1), Expires: at(999)}},
			nil, 0,
			"Earlier attempts: 1 before this one. The record keeps the latest.\nForced: It ran again on purpose, after the execution first.\nEnded: Its answer, 200, is kept. Duplicates get it.\n" + expires,
		},
		{
			"not sent", seen{state: "released", now: at(9), record: &idempotency.Record{State: idempotency.Released, Status: 502, Claimed: at(1), Ended: at(2), Expires: at(999)}},
			nil, 0,
			"Claimed: Attempt 1 began.\nEnded: The service was not reached. The key is free. It took 1 s.\n" + expires,
		},
	} {
		if got := lines(lifeOf(c.seen, c.notes, c.waiting)); got != c.want {
			t.Errorf("%s: got\n%swant\n%s", c.name, got, c.want)
		}
	}
}

// Every outcome has words of its own in a life, or those for any refusal.
func TestWordsForAllOutcomes(t *testing.T) {
	for name := range groupOf {
		life := noted(nil, []Note{{What: name}}, "")
		if len(life) != 1 || life[0].Title == "" || life[0].Text == "" {
			t.Errorf("%s is told as %+v", name, life)
		}
	}
}

func TestTexts(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 漢": "plain é 漢", "a\x00b": `a\x00b`, "\xff": `\xff`, "a\u202eb": `a\u202eb`, "a\nb": `a\nb`, "\U000e0001": `\U000e0001`, "'": "'",
	} {
		if got := plain(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	if got := plainLines("\ta\r\nb\x1b"); got != "\ta\nb\\x1b" {
		t.Errorf("lines are shown as %q", got)
	}
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", time.Second: "1 s", 61 * time.Second: "1 min 1 s", 11*time.Minute + time.Second: "11 min",
		25 * time.Hour: "1 d 1 h", -time.Minute: "1 min", 400 * 24 * time.Hour: "400 d",
	} {
		if got := span(d); got != want {
			t.Errorf("%s is %q, want %q", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 999: "999", 1000: "1\u202f000", 1234567: "1\u202f234\u202f567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d is %q", n, got)
		}
	}
}
