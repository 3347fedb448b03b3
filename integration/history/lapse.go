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
	first := never
	if h.Exclusive {
		for _, f := range h.kills(claimant) {
			first = min(first, max(f.Start, claimant.Start))
		}
	}
	renewal := h.Lease/3 + h.Jitter
	for _, s := range h.unrenewed(claimant, renewal) {
		// The last renewal before came no earlier than that, the next one after
		// no later.
		last := max(claimant.Start, s.from-renewal)
		if s.to == never || s.to+renewal-last >= h.Lease {
			return min(first, last+h.Lease)
		}
	}
	return first
}

// kills returns the faults in which the process that a request came to may have been killed.
func (h *History) kills(r *Request) []Fault {
	var kills []Fault
	for _, f := range h.Faults {
		if f.Kind == Killed && f.concerns(r.Proxy) && f.End >= r.Start {
			kills = append(kills, f)
		}
	}
	return kills
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

// settledBy returns the time by which a run's end is stored, if its process lives
// so long: with its client's answer, or, if it is late, when there was no fault for
// as long as the tries take. A process that was killed stores nothing afterwards
// but what was on its way.
func (h *History) settledBy(claimant *Request, run *Run) time.Duration {
	last := max(claimant.End, run.End)
	if !h.settledLate(claimant, run) {
		return last
	}
	for grown := true; grown; {
		grown = false
		for _, f := range h.Faults {
			if f.concerns(claimant.Proxy) && f.End > last && f.Start <= last+h.Retry {
				last, grown = f.End, true
			}
		}
	}
	return min(last, h.diesAfter(claimant)) + h.Retry
}

// knownUntil returns the time until which the process that carried a run out may
// answer by what it remembers of it: until the end is stored, or the process dies.
func (h *History) knownUntil(claimant *Request, run *Run) time.Duration {
	return min(h.settledBy(claimant, run)+h.Jitter, h.diesAfter(claimant))
}

// diesAfter returns when the process that a request came to has certainly been
// replaced, because it was killed since; a time after all others if it was not. A
// request that came during a kill may have come to the new process.
func (h *History) diesAfter(r *Request) time.Duration {
	first := never - h.Retry
	for _, f := range h.kills(r) {
		if f.Start >= r.Start {
			first = min(first, f.End)
		}
	}
	return first
}

// killedWithin reports whether the process of a request may have died after it
// came, and before a time.
func (h *History) killedWithin(r *Request, before time.Duration) bool {
	return slices.ContainsFunc(h.kills(r), func(f Fault) bool { return f.Start <= before })
}

// killedSince reports whether a request's process was killed while it had to do
// with the request, or later.
func (h *History) killedSince(r *Request) bool { return len(h.kills(r)) > 0 }
