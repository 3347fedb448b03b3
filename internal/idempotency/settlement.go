package idempotency

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// How is how a run ended.
type How int

const (
	// Answered: the handlers wrote a whole response.
	Answered How = iota + 1
	// NotSent: the request was not executed. There was no connection to an upstream, or the
	// service has asked for more before it does.
	NotSent
	// Unknown: the request may have been executed, and there is no whole response: it timed
	// out or was cut off, or a handler aborted or panicked.
	Unknown
)

var howNames = [...]string{"none", "answered", "not sent", "unknown"}

// String returns the name for logs and test failures.
func (h How) String() string { return howNames[h] }

// End is how a run ended, as far as the handler observed it.
type End struct {
	How How
	// Response is the response of the run. If there was no whole one, it is the error that the
	// client got, with Failed set. If it is nil, the requests that waited get no response.
	Response *Response
	// UpstreamStatus is the status that the upstream sent, as the proxy reports it; 0 if none was
	// reported. The status of Response may be another one, set by a handler in between.
	UpstreamStatus int
	// Retention, if it is set, is how long the upstream asked to keep this response, or 0 to
	// release the key.
	Retention *time.Duration
	// SaysFailed reports whether the body of the response describes a failure.
	SaysFailed bool
	// Attempt is the number of this run as [Terms.MaxAttempts] counts: from 1, and from 1 again
	// after an operator has released the key.
	Attempt int
	// Reason is [Record.Reason].
	Reason string
	// HasPrevious reports whether the run was forced, and the response that it is to replace is
	// still kept.
	HasPrevious bool
}

// MaxRetention is the longest retention, and the longest duration in a configuration. Sums with it
// do not overflow.
const MaxRetention = 36500 * 24 * time.Hour

// Policy is the configuration for the settlement of a run.
type Policy struct {
	Terms
	// ReleaseOn are the statuses that release the key.
	ReleaseOn StatusSet
}

// Releases reports whether the status of the response releases the key.
func (p *Policy) Releases(end End) bool {
	return end.hasStatus(p.ReleaseOn.Has) || end.asksForPayment()
}

// Settlement is what a store does with a claim.
type Settlement struct {
	// State is Complete, Released or Held.
	State State
	// Counted reports whether the run may have reached the upstream.
	Counted bool
	// Response is for later requests (Complete), or for the requests that waited (Released);
	// nil for none.
	Response *Response
	// Reason is [Record.Reason].
	Reason string
	// Retention is how long the record lives from the settlement on.
	Retention time.Duration
	// Ago is how long before the settlement the run ended, if it could not be stored at once.
	Ago time.Duration
	// AnswerRetention is how long the response of a released run is kept for requests that
	// waited for the run on other replicas: one lease, and at least minAnswerRetention.
	AnswerRetention time.Duration
	// Withdraws reports whether the claim is in doubt and no request runs under it. The store may
	// not have executed it yet ([Store.Settle]), and may still do so for AnswerRetention.
	Withdraws bool
}

// minAnswerRetention leaves the waiters on other replicas time to fetch the response if the lease is
// short: a lost wake-up costs a second, and a store that hangs its timeout.
const minAnswerRetention = 5 * time.Second

// ResponseRetention returns how long the store keeps the response.
func (s Settlement) ResponseRetention() time.Duration {
	if s.State == Complete {
		return s.Retention
	}
	return s.AnswerRetention
}

// Conclude is the settle table: it returns the settlement of a run that has ended. No other code
// decides this.
func Conclude(end End, p Policy) Settlement {
	s := Settlement{
		State:           stateAfter(end, p),
		Counted:         end.How != NotSent,
		Response:        end.Response,
		Reason:          end.Reason,
		Retention:       p.Retention,
		AnswerRetention: max(p.Lease, minAnswerRetention),
	}
	if end.HasPrevious && (s.State == Held || end.Response != nil && end.Response.Omitted) {
		// The previous response stays: neither a held key nor a response without its body
		// replaces it.
		s.State = Released
	}
	if s.State == Complete && (end.Response == nil || !end.Response.Omitted) {
		s.Reason = ""
	}
	switch {
	case s.State == Held:
		s.Response = nil
	case s.State == Released && end.hasStatus(AboutCaller):
		// It is for this caller only: the refusal of a forged delivery must not answer a
		// genuine one that waits, nor fill the store.
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
	// A gateway responds with 502 or 504 when it does not know whether the service has
	// executed the request.
	case p.Hold && end.hasStatus(gatewayLost):
		return Held
	// The response of the last allowed run is kept, whatever it is. A forced run needs no such
	// rule: the previous response is kept.
	case p.MaxAttempts > 0 && end.Attempt >= p.MaxAttempts && !end.HasPrevious:
		return Complete
	case end.Retention != nil && *end.Retention <= 0:
		return Released
	case end.SaysFailed, p.Releases(end):
		return Released
	default:
		return Complete
	}
}

// hasStatus reports whether the status that the client got, or the one that the upstream sent, meets
// a condition.
func (e End) hasStatus(is func(status int) bool) bool {
	return e.Response != nil && is(e.Response.Status) || is(e.UpstreamStatus)
}

// asksForPayment reports whether the response is a 402 with a challenge, after which the client pays
// and repeats the request with the same key.
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
