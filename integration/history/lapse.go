package history

import (
	"math"
	"slices"
	"time"
)

// never is a time after all others.
const never = time.Duration(math.MaxInt64)

// span is a time in which a claim was not renewed, for a fault.
type span struct{ from, to time.Duration }

// mayLapse returns the earliest time at which the lease of a request's claim may
// have lapsed, [never] if it cannot have: its owner was there, and so was the
// store, often enough to renew it.
func (h *History) mayLapse(claimant *Request) time.Duration {
	renewal := h.Lease/3 + h.Jitter
	for _, s := range h.unrenewed(claimant, renewal) {
		// The last renewal before came no earlier than that, the next one after
		// no later.
		last := max(claimant.Start, s.from-renewal)
		if s.to == never || s.to+renewal-last >= h.Lease {
			return last + h.Lease
		}
	}
	return never
}

// unrenewed returns the faults of the claim's owner, in their order. Those with
// no time for a renewal between them are one.
func (h *History) unrenewed(claimant *Request, renewal time.Duration) []span {
	var spans []span
	for i := range h.Faults {
		f := &h.Faults[i]
		if !f.concerns(claimant.Proxy) || f.End < claimant.Start {
			continue
		}
		s := span{f.Start, f.End}
		if f.Kind == Killed {
			s.to = never
		}
		spans = append(spans, s)
	}
	slices.SortFunc(spans, func(a, b span) int { return int(a.from - b.from) })
	var merged []span
	for _, s := range spans {
		if last := len(merged) - 1; last >= 0 && (merged[last].to == never || s.from <= merged[last].to+renewal) {
			merged[last].to = max(merged[last].to, s.to)
		} else {
			merged = append(merged, s)
		}
	}
	return merged
}

// settledLate reports whether a run's end may have been stored only after its
// client was answered: the process could not, or there was no client any more.
func (h *History) settledLate(claimant *Request, run *Run) bool {
	if claimant.Failure != "" {
		return true
	}
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.concerns(claimant.Proxy) && f.overlaps(run.Start-h.Jitter, claimant.End+h.Jitter)
	})
}

// maybeNotSettled reports whether a run's end may never have been stored: its
// process was killed before, or its claim was lost before.
func (h *History) maybeNotSettled(claimant *Request, run *Run) bool {
	if h.mayLapse(claimant) < never && h.settledLate(claimant, run) {
		return true
	}
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Kind == Killed && f.concerns(claimant.Proxy) && f.overlaps(claimant.Start, claimant.End)
	})
}

// killedSince reports whether a request's process was killed while it had to do
// with the request, or later.
func (h *History) killedSince(r *Request) bool {
	return slices.ContainsFunc(h.Faults, func(f Fault) bool {
		return f.Kind == Killed && f.concerns(r.Proxy) && f.End >= r.Start
	})
}
