package dashboard

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/admin/admintest"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

func TestAlerts(t *testing.T) {
	now := time.Now()
	github := idempotency.Origin{Provider: "github"}
	for name, c := range map[string]struct {
		state  string
		record idempotency.Record
		want   alert
	}{
		"held":                     {"held", idempotency.Record{}, alertHeld},
		"unreadable":               {admin.StateUnreadable, idempotency.Record{}, alertUnreadable},
		"lapsed":                   {"lapsed", idempotency.Record{Claimed: now}, alertLapsed},
		"in flight":                {"in_flight", idempotency.Record{Claimed: now}, ""},
		"complete":                 {"complete", idempotency.Record{Status: 201, Attempt: 1}, ""},
		"complete, a client error": {"complete", idempotency.Record{Status: 422, Attempt: 1}, ""},
		"complete, a failure":      {"complete", idempotency.Record{Status: 500, Attempt: 3}, alertFailureKept},
		"failed":                   {"released", idempotency.Record{Attempt: 1, Status: 503, Ended: now}, alertFailing},
		"not sent":                 {"released", idempotency.Record{Status: 502, Ended: now}, alertFailing},
		"failed after a release":   {"released", idempotency.Record{Attempt: 3, ReleasedAttempts: 2, Status: 500, Ended: now}, alertFailing},
		"released by an operator":  {"released", idempotency.Record{Attempt: 2, ReleasedAttempts: 2, Status: 500, Ended: now}, ""},
		"an API's conflict":        {"released", idempotency.Record{Attempt: 1, Status: 409, Ended: now}, ""},
		"an API's 401":             {"released", idempotency.Record{Attempt: 1, Ended: now}, ""}, // its status is not in the record
		"a webhook's conflict":     {"released", idempotency.Record{Attempt: 1, Status: 409, Ended: now, Origin: github}, alertFailing},
		"a webhook's 401":          {"released", idempotency.Record{Attempt: 1, Ended: now, Origin: github}, alertFailing},
	} {
		if got := alertOf(&admin.Found{State: c.state, Listed: idempotency.Listed{Record: &c.record}}); got != c.want || got != "" && advice[got] == "" {
			t.Errorf("%s: the alert is %q with the advice %q, want %q", name, got, advice[got], c.want)
		}
	}
}

func TestTimeline(t *testing.T) {
	start := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	const expires = "Expires: The store then removes the record, unless the key runs again before.\n"
	for name, c := range map[string]struct {
		state  string
		record idempotency.Record
		want   string
	}{
		"kept": {
			"complete", idempotency.Record{State: idempotency.Complete, Attempt: 1, Status: 201, Claimed: at(0), Ended: at(2)},
			"Claimed: Attempt 1 began.\nEnded: With 201. The response is kept, and duplicates get it.\n",
		},
		"in flight": {
			"in_flight", idempotency.Record{State: idempotency.InFlight, Attempt: 2, Claimed: at(5), LeaseUntil: at(30)},
			"Earlier attempts: 1 before this one. The record has only the latest.\nClaimed: Attempt 2 began.\n" +
				"Lease ends: If the process does not renew it, the next delivery takes over.\n",
		},
		"lapsed": {
			"lapsed", idempotency.Record{State: idempotency.InFlight, Attempt: 1, Claimed: at(5), LeaseUntil: at(30)},
			"Claimed: Attempt 1 began.\nLease lapsed: It was not renewed. The next delivery takes over.\n",
		},
		"released by an operator": {
			"released", idempotency.Record{State: idempotency.Released, Attempt: 1, ReleasedAttempts: 1, Claimed: at(1), Ended: at(2)},
			"Released: By an operator, after attempt 1. The log says by whom.\nClaimed: Attempt 1 began.\nEnded: Without a response.\n",
		},
		"completed by an operator": {
			"complete", idempotency.Record{State: idempotency.Complete, Attempt: 1, Status: 204, Reason: "completed by alice", Claimed: at(1), Ended: at(2)},
			"Claimed: Attempt 1 began.\nEnded: Duplicates get 204: completed by alice.\n",
		},
		"held since its lease lapsed": {
			"held", idempotency.Record{State: idempotency.InFlight, Hold: true, Attempt: 1, Claimed: at(1), LeaseUntil: at(31)},
			"Claimed: Attempt 1 began.\nHeld: The lease was not renewed. It is unknown how the run ended.\n",
		},
		"forced": {
			"complete", idempotency.Record{State: idempotency.Complete, Attempt: 1, Status: 500, ParentID: "first", Claimed: at(1), Ended: at(1)},
			"Forced: It ran again on purpose, after the execution first.\nEnded: With 500. The response is kept although it is a failure.\n",
		},
		"not sent": {
			"released", idempotency.Record{State: idempotency.Released, Status: 502, Claimed: at(1), Ended: at(2)},
			"Claimed: Attempt 1 began.\nEnded: The service was not reached. The next delivery runs.\n",
		},
	} {
		c.record.Expires = at(999)
		var got strings.Builder
		for _, m := range new(view).timeline(&admin.Found{State: c.state, Listed: idempotency.Listed{Record: &c.record}}) {
			got.WriteString(m.Title + ": " + m.Text + "\n")
		}
		if got.String() != c.want+expires {
			t.Errorf("%s: got\n%swant\n%s", name, got.String(), c.want+expires)
		}
	}
}

// Without bodies the page never shows a kept response.
func TestResponsesOnlyWithBodies(t *testing.T) {
	for _, bodies := range []bool{false, true} {
		r := newRig(t)
		r.page.Bodies = bodies
		for body, want := range map[string]string{
			"a <b>text</b>\r\nof two lines":           "a <b>text</b> of two lines",
			"\xff\x00\x01":                            "The body is not text. It has 3 bytes.",
			strings.Repeat("0123456789abcdé", 10_000): "Only the first 64 KiB of 160 000 bytes are shown.",
		} {
			key := r.store.Put(t, admintest.Run{ID: body[:min(9, len(body))], State: idempotency.Complete, Status: 201, Body: body, Header: map[string][]string{"X-Kept": {"value"}}})
			a := r.want(http.StatusOK, "key="+key.String())
			if got := a.words("delivery"); strings.Contains(got, want) != bodies || strings.Contains(got, "X-Kept value") != bodies {
				t.Errorf("bodies %v: the response %.20q is shown as %.2000s", bodies, body, got)
			}
			if len(a.text) > 200<<10 {
				t.Errorf("a page of %d bytes", len(a.text))
			}
		}
	}
}

func TestTexts(t *testing.T) {
	for text, want := range map[string]string{
		"plain é 漢": "plain é 漢", "a\x00b": `a\x00b`, "\xff": `\xff`, "a\u202eb": `a\u202eb`, "a\n\tb": "a\n\tb", "\U000e0001": `\U000e0001`, "'": "'",
	} {
		if got := plain(text); got != want {
			t.Errorf("%q is shown as %q, want %q", text, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 ms", 999 * time.Millisecond: "999 ms", time.Second: "1 s", 61 * time.Second: "1 min 1 s",
		25 * time.Hour: "1 d 1 h", -time.Minute: "1 min 0 s", 400 * 24 * time.Hour: "400 d 0 h",
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
