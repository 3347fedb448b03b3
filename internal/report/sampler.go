package report

import (
	"maps"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// LeftOut returns how many lines were left out since the last one, if any were.
func LeftOut(n int64) zap.Field {
	if n == 0 {
		return zap.Skip()
	}
	return zap.Int64("left_out", n)
}

// Sampler allows one line a second for each reason, and counts the others. A reason names its
// provider.
type Sampler struct {
	mu      sync.Mutex
	reasons map[string]*sampledReason
}

type sampledReason struct {
	next    time.Time // when the next line may be logged
	leftOut int64
}

// maxReasons bounds the reasons of a sampler. Others than these share a line.
const maxReasons = 64

// withoutValues returns a reason without its numbers and without what it quotes: clients choose them.
func withoutValues(reason string) string {
	if !strings.ContainsAny(reason, `"0123456789`) {
		return reason
	}
	quoted, escaped := false, false
	return strings.Map(func(r rune) rune {
		switch {
		case escaped:
			escaped = false
		case quoted && r == '\\':
			escaped = true
		case r == '"':
			quoted = !quoted
		case !quoted && (r < '0' || '9' < r):
			return r
		}
		return -1
	}, reason)
}

// Allow reports whether a line may be logged now, and how many were left out since the last one.
func (o *Sampler) Allow(reason string) (leftOut int64, ok bool) {
	now, reason := time.Now(), withoutValues(reason)
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.reasons == nil {
		o.reasons = make(map[string]*sampledReason)
	}
	if o.reasons[reason] == nil && len(o.reasons) >= maxReasons {
		maps.DeleteFunc(o.reasons, func(_ string, r *sampledReason) bool { return !now.Before(r.next) })
		if len(o.reasons) >= maxReasons {
			reason = ""
		}
	}
	r := o.reasons[reason]
	if r == nil {
		r = new(sampledReason)
		o.reasons[reason] = r
	}
	if now.Before(r.next) {
		r.leftOut++
		return 0, false
	}
	leftOut, r.leftOut, r.next = r.leftOut, 0, now.Add(time.Second)
	return leftOut, true
}
