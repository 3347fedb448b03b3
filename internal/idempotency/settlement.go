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
	// NotSent: there was no connection to an upstream, so the request was certainly
	// not executed.
	NotSent
	// Unknown: the request may have been executed, and there is no whole response:
	// it timed out or was cut off, or the handler aborted or panicked.
	Unknown
)

var howNames = [...]string{"none", "answered", "not sent", "unknown"}

// String returns the name for logs and test failures.
func (h How) String() string { return howNames[h] }

// End is how a run ended, as far as the handler has seen it.
type End struct {
	How How
	// Response is the answer of the run. If there was no whole answer, it is the
	// error that the client got, with Failed set. Nil means that the requests
	// that waited get no answer.
	Response *Response
	// UpstreamStatus is the status that the upstream sent, as a proxy reports it. It
	// can differ from the status of Response, because a handler between may have
	// changed that. 0 if no proxy has reported one.
	UpstreamStatus int
	// Retention, if it is set, is what the upstream asked for: how long to keep this
	// response, or 0 to release the key.
	Retention *time.Duration
	// Attempt is the number of this run, counted as [Terms.MaxAttempts] counts: from
	// 1, and from 1 again after an operator has released the key.
	Attempt int
	// Reason is [Record.Reason].
	Reason string
	// HasPrevious reports whether the run was forced, and the response that it is meant
	// to replace is still kept.
	HasPrevious bool
}

// Policy is what the user has configured for the end of a run.
type Policy struct {
	Terms
	// ReleaseOn are the statuses after which the key is released.
	ReleaseOn StatusSet
}

// Settlement is what becomes of a claim.
type Settlement struct {
	// State is Complete, Released or Held.
	State State
	// Counted reports whether the run may have reached the upstream.
	Counted bool
	// Response is the answer for later requests (Complete), or for the requests that
	// waited (Released); nil if there is none.
	Response *Response
	// Reason is [Record.Reason].
	Reason string
	// Retention is how long the record lives from now on.
	Retention time.Duration
	// Ago is how long before now the run ended: it could not be stored at once.
	Ago time.Duration
	// AnswerRetention is how long the response of a released run is kept, for requests that
	// waited for the run on other replicas: one lease, and at least minAnswer.
	AnswerRetention time.Duration
	// Withdraws reports whether the claim is in doubt, so that no request runs under it. It
	// was perhaps not executed yet ([Store.Settle]); AnswerRetention is how long that may last.
	Withdraws bool
}

// minAnswer leaves waiting requests on other replicas time to fetch the answer if the lease is
// short: a lost message costs them a second, and a store that does not answer its timeout.
const minAnswer = 5 * time.Second

// ResponseRetention is how long the response of the settlement must be kept.
func (s Settlement) ResponseRetention() time.Duration {
	if s.State == Complete {
		return s.Retention
	}
	return s.AnswerRetention
}

// Conclude is the settle table: it returns what becomes of a claim when its run has
// ended. No other code decides this.
func Conclude(end End, p Policy) Settlement {
	s := Settlement{
		State:           stateAfter(end, p),
		Counted:         end.How != NotSent,
		Response:        end.Response,
		Reason:          end.Reason,
		Retention:       p.Retention,
		AnswerRetention: max(p.Lease, minAnswer),
	}
	if end.HasPrevious && (s.State == Held || end.Response != nil && end.Response.Omitted) {
		// The response that was kept before stays. It is not given up for a held key,
		// or for a response without its body.
		s.State = Released
	}
	if s.State == Complete && (end.Response == nil || !end.Response.Omitted) {
		s.Reason = ""
	}
	switch {
	case s.State == Held:
		s.Response = nil
	case s.State == Released && end.hasStatus(AboutCaller):
		// It answers this caller only: a forged delivery that was refused must not
		// answer the genuine one beside it, nor fill the store.
		s.Response = nil
		if p.MaxAttempts == 0 {
			s.Retention = p.Lease
		}
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
	// A gateway in front of the service answers with 502 or 504 when it does not
	// know whether the service has executed the request.
	case p.Hold && end.hasStatus(gatewayLost):
		return Held
	// This was the last run that is allowed, so its answer is kept, whatever it is.
	// After a forced run there is no need for that: the response before is kept.
	case p.MaxAttempts > 0 && end.Attempt >= p.MaxAttempts && !end.HasPrevious:
		return Complete
	case end.Retention != nil && *end.Retention <= 0:
		return Released
	case end.hasStatus(p.ReleaseOn.Has), end.asksForPayment():
		return Released
	default:
		return Complete
	}
}

// hasStatus asks about both statuses: the one that the client got, and the one that
// the upstream sent.
func (e End) hasStatus(is func(status int) bool) bool {
	return e.Response != nil && is(e.Response.Status) || is(e.UpstreamStatus)
}

// asksForPayment reports whether the answer is a 402 with a challenge. The client pays, and
// sends the request again under the same key.
func (e End) asksForPayment() bool {
	return e.Response != nil && e.Response.Status == 402 &&
		len(e.Response.Header["Www-Authenticate"])+len(e.Response.Header["Payment-Required"]) > 0
}

// AboutCaller reports whether a status is about the caller, and not about what was requested
// (RFC 9110, sections 15.5.2, 15.5.4 and 15.5.8).
func AboutCaller(status int) bool { return status == 401 || status == 403 || status == 407 }

func gatewayLost(status int) bool { return status == 502 || status == 504 }

// StatusSet is a set of HTTP status codes.
type StatusSet struct{ bits [16]uint64 }

// ParseStatuses reads codes ("409"), classes ("5xx") and exceptions ("!409"). An exception
// wins regardless of the order.
func ParseStatuses(words ...string) (StatusSet, error) {
	var set, except StatusSet
	for _, word := range words {
		if class, ok := strings.CutSuffix(word, "xx"); ok && len(class) == 1 && class >= "2" && class <= "5" {
			for code := range 100 {
				set.add(int(class[0]-'0')*100 + code)
			}
			continue
		}
		digits, excepted := strings.CutPrefix(word, "!")
		code, err := strconv.Atoi(digits)
		if err != nil || len(digits) != 3 || code < 200 || code > 599 {
			return StatusSet{}, fmt.Errorf("status %q is neither a code from 200 to 599, such as 409 or !409, nor one of the classes 2xx, 3xx, 4xx, 5xx", word)
		}
		if excepted {
			except.add(code)
		} else {
			set.add(code)
		}
	}
	for i, bits := range except.bits {
		set.bits[i] &^= bits
	}
	return set, nil
}

func (s *StatusSet) add(code int) { s.bits[code/64] |= 1 << (code % 64) }

// Has reports whether the set has a status.
func (s StatusSet) Has(code int) bool {
	return code > 0 && code < len(s.bits)*64 && s.bits[code/64]&(1<<(code%64)) != 0
}
