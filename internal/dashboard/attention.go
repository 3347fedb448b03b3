package dashboard

import (
	"fmt"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/admin"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// need says why a record needs somebody's attention.
type need string

const (
	needsDecision need = "held"         // nobody knows whether it was executed
	needsAttempts need = "exhausted"    // no more attempts will be made by themselves
	needsFreeing  need = "kept_failure" // a failure is kept, and duplicates get it
	needsMending  need = "failing"      // each attempt fails
	needsRetry    need = "lapsed"       // its process has gone
	needsReading  need = "unreadable"
)

// needs are in the order of their urgency.
var needs = []need{needsDecision, needsAttempts, needsFreeing, needsMending, needsRetry, needsReading}

// needOf says whether a record needs attention, and why. refused is when a request was
// refused here because no attempt was left, zero if none was.
func needOf(s seen, refused time.Time) (kind need, needy bool) {
	r := s.record
	switch s.state {
	case admin.StateUnreadable:
		return needsReading, true
	case string(idempotency.Held):
		return needsDecision, true
	case admin.StateLapsed:
		if !refused.IsZero() && !refused.Before(r.Claimed) {
			return needsAttempts, true
		}
		return needsRetry, true
	case string(idempotency.Released):
		switch {
		case r.Attempt > 0 && r.FreedAttempts >= r.Attempt, r.Ended.IsZero():
			return "", false // freed by an operator, and waiting for its sender
		case !refused.IsZero() && !refused.Before(r.Claimed):
			return needsAttempts, true
		}
		return needsMending, !answeredClient(r)
	case string(idempotency.Complete):
		// Nobody will try again.
		return needsFreeing, r.Status >= 500
	}
	return "", false
}

// answeredClient reports whether a released record is one of an API whose client got an
// answer about its own request: 401, 403 and 407, whose status is not kept, and the other
// 4xx that an API releases by default. A webhook's sender makes no such mistakes: whatever
// rejects its delivery needs attention.
func answeredClient(r *idempotency.Record) bool {
	if r.Provider != "" {
		return false
	}
	switch r.Status {
	case 0:
		return r.Attempt > 0
	case 400, 402, 404, 410, 422:
		return false
	}
	return r.Status/100 == 4
}

// judge notes in a record what it needs, and since when.
func judge(s *seen, exhausted map[idempotency.Key]time.Time) {
	if kind, needy := needOf(*s, exhausted[s.key]); needy {
		s.kind, s.since = kind, firstSet(s.record.Ended, s.record.LeaseUntil, s.record.Claimed)
	}
}

// firstSet returns the first time that is set.
func firstSet(times ...time.Time) time.Time {
	for _, at := range times {
		if !at.IsZero() {
			return at
		}
	}
	return time.Time{}
}

// advice says what an operator can do about a record.
func advice(s seen) string {
	r := s.record
	switch s.kind {
	case needsDecision:
		return "Nobody knows whether it was executed. Look in the service. If it was not, free the key and have it sent again. If it was, leave it."
	case needsFreeing:
		return fmt.Sprintf("The answer that is kept is a failure (%d), and duplicates get it. Mend the service, then free the key and have it sent again.", r.Status)
	case needsAttempts:
		return "No attempt is left. Mend the service, then free the key: the attempts begin anew."
	case needsRetry:
		return "Its process died, hangs, or cannot reach the store. The next delivery takes it over: have it sent again."
	case needsReading:
		return "The record cannot be read. Its reason is in the record. If nothing mends it, forget the key."
	case needsMending:
		return failureAdvice(r)
	}
	return ""
}

// failureAdvice is what to do about a run that failed and whose key is free.
func failureAdvice(r *idempotency.Record) string {
	switch {
	case r.Attempt == 0:
		return "The service was not reached. Once it is back, the next delivery runs, if an attempt is left."
	case r.Status >= 500:
		return fmt.Sprintf("The service fails (%d). Look at its log. The next delivery runs, if an attempt is left.", r.Status)
	case r.Status >= 300:
		return fmt.Sprintf("The service does not take it (%d). Look at its log. The next delivery runs, if an attempt is left.", r.Status)
	default:
		return "The service gave no answer, or refused the caller (401, 403). Look at its log, and at the sender's secret. The next delivery runs, if an attempt is left."
	}
}
