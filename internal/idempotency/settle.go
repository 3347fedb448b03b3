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
	// Status is what the client got, 0 for nothing.
	Status int
	// UpstreamStatus is what a proxy says that its upstream answered, where
	// that may differ from Status; 0 if nobody said.
	UpstreamStatus int
	// Attempt is the number of the run among those that may have reached the
	// upstream.
	Attempt int
	// Retention, if set, is the upstream's own wish for this response; 0 is a
	// wish to release.
	Retention *time.Duration
}

// SettlePolicy is what a user chose for the ends of runs.
type SettlePolicy struct {
	// Releases are the statuses that free the key.
	Releases StatusSet
	// Hold holds a key whose run's end is unknown.
	Hold bool
	// MaxAttempts is how many runs may reach the upstream; 0 is no limit.
	MaxAttempts int
}

// Conclusion is what becomes of a run's claim.
type Conclusion struct {
	State State
	// Counted says that the run counts as an attempt.
	Counted bool
}

// Conclude is the settle table: what becomes of a claim whose run has ended.
func Conclude(end End, p SettlePolicy) Conclusion {
	switch {
	case end.How == NotSent:
		return Conclusion{Released, false}
	case end.How == Unknown && p.Hold:
		return Conclusion{Held, true}
	case end.How == Unknown:
		return Conclusion{Released, true}
	// A gateway between us and the service answers so when it does not know.
	case p.Hold && (gatewayLost(end.Status) || gatewayLost(end.UpstreamStatus)):
		return Conclusion{Held, true}
	case p.MaxAttempts > 0 && end.Attempt >= p.MaxAttempts:
		return Conclusion{Complete, true}
	case end.Retention != nil && *end.Retention <= 0:
		return Conclusion{Released, true}
	case p.Releases.Has(end.Status) || p.Releases.Has(end.UpstreamStatus):
		return Conclusion{Released, true}
	default:
		return Conclusion{Complete, true}
	}
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
