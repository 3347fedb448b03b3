package idempotency_test

import (
	"slices"
	"testing"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What duplicates get, by each on_duplicate. One that waited gets the response of the run by all of them.
func TestAnswersToDuplicates(t *testing.T) {
	const (
		unread, conflict, acknowledged, seeOther  = idempotency.AnswerUnread, idempotency.AnswerConflict, idempotency.AnswerAcknowledged, idempotency.AnswerSeeOther
		notKept, waited, replayed, longLocation   = idempotency.AnswerNotKept, idempotency.AnswerWaited, idempotency.AnswerReplayed, idempotency.LongLocation
		replay, refuse, acknowledge, goToLocation = idempotency.ReplayDuplicate, idempotency.ConflictDuplicate, idempotency.AcknowledgeDuplicate, idempotency.SeeOtherDuplicate
	)
	type answers [4]idempotency.AnswerKind
	rules := [...]idempotency.OnDuplicate{replay, refuse, acknowledge, goToLocation}
	located := map[string][]string{"Location": {"/1"}}
	for name, c := range map[string]struct {
		status   int
		location string                // of the record
		kept     *idempotency.Response // nil if it is not read
		want     answers
		waited   idempotency.AnswerKind
	}{
		"not read":                      {201, "", nil, answers{unread, conflict, acknowledged, unread}, unread},
		"not read, with a Location":     {201, "/1", nil, answers{unread, conflict, acknowledged, seeOther}, unread},
		"not read, with a long one":     {201, longLocation, nil, answers{unread, unread, acknowledged, unread}, unread},
		"a status of failure, not read": {500, "", nil, answers{unread, conflict, unread, unread}, unread},
		"read":                          {201, "", &idempotency.Response{Status: 201}, answers{replayed, conflict, acknowledged, replayed}, waited},
		"read, with a Location":         {201, "", &idempotency.Response{Status: 201, Header: located}, answers{replayed, conflict, acknowledged, seeOther}, waited},
		"without its body":              {201, "", &idempotency.Response{Status: 201, Omitted: true}, answers{notKept, conflict, acknowledged, notKept}, notKept},
		"an error in its place":         {502, "", &idempotency.Response{Status: 502, Failed: true}, answers{replayed, replayed, replayed, replayed}, waited},
	} {
		record := &idempotency.Record{Status: c.status, Location: c.location}
		for i, on := range rules {
			got := on.Answer(record, c.kept, false)
			if got.Kind != c.want[i] {
				t.Errorf("%s, %s: %q, want %q", name, on, got.Kind, c.want[i])
			}
			switch got.Kind {
			case acknowledged:
				if got.Response.Status != 200 || got.Response.Header != nil || got.Response.Body != nil {
					t.Errorf("%s, %s: %+v", name, on, got.Response)
				}
			case seeOther:
				if got.Response.Status != 303 || got.Response.Location() != "/1" {
					t.Errorf("%s, %s: %+v", name, on, got.Response)
				}
			case unread, conflict:
				if got.Response != nil {
					t.Errorf("%s, %s: %+v", name, on, got.Response)
				}
			default:
				if got.Response != c.kept {
					t.Errorf("%s, %s: %+v", name, on, got.Response)
				}
			}
			if needs := !slices.Contains([]idempotency.AnswerKind{conflict, acknowledged, seeOther}, got.Kind); got.Needs(c.kept) != needs {
				t.Errorf("%s, %s: it needs the kept response: %v", name, on, !needs)
			}
			if got := on.Answer(record, c.kept, true); got.Kind != c.waited || got.Response != c.kept {
				t.Errorf("%s, %s: one that waited gets %+v, want %q", name, on, got, c.waited)
			}
		}
	}
}
