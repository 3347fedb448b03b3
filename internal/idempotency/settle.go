package idempotency

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// How is the way in which a run ended.
type How int

const (
	// Answered: a whole response was written.
	Answered How = iota + 1
	// NotSent: no connection to an upstream was had.
	NotSent
	// Unknown: the request may have been executed, and there is no whole
	// response: timed out, cut off, aborted, panicked.
	Unknown
)

var howNames = [...]string{"none", "answered", "not sent", "unknown"}

// String returns the name for logs and test failures.
func (h How) String() string { return howNames[h] }

// End is how a run ended, as it was observed.
type End struct {
	How How
	// Response is what the run was answered; where it has no whole answer, the
	// error that its client got, with Failed. Nil tells those who wait nothing.
	Response *Response
	// UpstreamStatus is what a proxy says that its upstream answered, where that
	// may differ from the status of Response; 0 if nobody said.
	UpstreamStatus int
	// Retention, if set, is the upstream's own wish for this response; 0 is a
	// wish to release.
	Retention *time.Duration
	// Attempt is the number of the run among those that count against
	// [Terms.MaxAttempts], itself included.
	Attempt int
	// Replaces says that the run was forced: a kept response stands behind it,
	// until this run's own is kept.
	Replaces bool
}

// Policy is what a user chose for the ends of runs.
type Policy struct {
	Terms
	// ReleaseOn are the statuses that free the key.
	ReleaseOn StatusSet
}

// Settlement says what becomes of a claim.
type Settlement struct {
	// State is Complete, Released or Held.
	State State
	// Counted says whether the run may have reached the upstream.
	Counted bool
	// Response is what a later request is answered with (Complete), or what
	// those who waited get (Released); nil if there is nothing to tell.
	Response *Response
	// Retention is how long the record lives from now on.
	Retention time.Duration
	// AnswerFor is how long a released run's response is kept for those who
	// waited on other replicas.
	AnswerFor time.Duration
}

// ResponseFor is how long the settlement's response is to be kept.
func (s Settlement) ResponseFor() time.Duration {
	if s.State == Complete {
		return s.Retention
	}
	return s.AnswerFor
}

// Conclude is the settle table: what becomes of a claim whose run has ended.
func Conclude(end End, p Policy) Settlement {
	s := Settlement{
		State:     stateAfter(end, p),
		Counted:   end.How != NotSent,
		Response:  end.Response,
		Retention: p.Retention,
		AnswerFor: p.Lease,
	}
	if end.Replaces && (s.State == Held || end.Response != nil && end.Response.Omitted) {
		s.State = Released // nothing is held, and no whole response is lost: the one before stays
	}
	switch {
	case s.State == Held:
		s.Response = nil
	case s.State == Complete && end.Retention != nil && *end.Retention > 0:
		s.Retention = *end.Retention
	}
	return s
}

func stateAfter(end End, p Policy) State {
	switch {
	case end.How == NotSent:
		return Released
	case end.How == Unknown && p.Hold:
		return Held
	case end.How == Unknown:
		return Released
	// A gateway between us and the service answers so when it does not know.
	case p.Hold && end.hasStatus(gatewayLost):
		return Held
	// A forced run's failure need not be kept: there is a response.
	case p.MaxAttempts > 0 && end.Attempt >= p.MaxAttempts && !end.Replaces:
		return Complete
	case end.Retention != nil && *end.Retention <= 0:
		return Released
	case end.hasStatus(p.ReleaseOn.Has):
		return Released
	default:
		return Complete
	}
}

// hasStatus reports whether the client's status is such a one, or the upstream's.
func (e End) hasStatus(is func(status int) bool) bool {
	return e.Response != nil && is(e.Response.Status) || is(e.UpstreamStatus)
}

func gatewayLost(status int) bool { return status == 502 || status == 504 }

// StatusSet is a set of HTTP status codes.
type StatusSet struct{ bits [16]uint64 }

// ParseStatuses reads codes ("409") and classes ("5xx").
func ParseStatuses(words ...string) (StatusSet, error) {
	var set StatusSet
	for _, word := range words {
		if class, ok := strings.CutSuffix(word, "xx"); ok && len(class) == 1 && class >= "2" && class <= "5" {
			for code := range 100 {
				set.add(int(class[0]-'0')*100 + code)
			}
			continue
		}
		code, err := strconv.Atoi(word)
		if err != nil || len(word) != 3 || code < 200 || code > 599 {
			return StatusSet{}, fmt.Errorf("status %q is neither a code from 200 to 599 nor one of the classes 2xx, 3xx, 4xx, 5xx", word)
		}
		set.add(code)
	}
	return set, nil
}

func (s *StatusSet) add(code int) { s.bits[code/64] |= 1 << (code % 64) }

// Has reports whether the set has a status.
func (s StatusSet) Has(code int) bool {
	return code > 0 && code < len(s.bits)*64 && s.bits[code/64]&(1<<(code%64)) != 0
}
