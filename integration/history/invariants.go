package history

import (
	"fmt"
	"slices"
)

// invariants returns what is wrong with a key whatever the order of its events.
func (k *keyHistory) invariants() []string {
	var wrong []string
	add := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	for i, run := range k.runs {
		if run.ExecutionID == "" {
			add("a run of the request %s has no execution ID", run.RequestID)
		}
		for _, other := range k.runs[:i] {
			if run.ExecutionID == other.ExecutionID {
				add("the execution %s ran twice", run.ExecutionID)
			}
		}
	}
	for _, r := range k.requests {
		if err := k.answered(r); err != nil {
			add("%v", err)
		}
	}
	return wrong
}

// answered holds an answer against the run that it is of.
func (k *keyHistory) answered(r *Request) error {
	switch {
	case r.Final && k.inTheWay(r):
		return fmt.Errorf("%s found the key still in the way after all faults: %d %s%s", r.ID, r.Status, r.Code, r.Failure)
	case r.Failure != "" || r.Code != "":
		return nil
	}
	run := k.run(r.ExecutionID)
	switch {
	case run == nil:
		return fmt.Errorf("%s was answered %d %q by the execution %q, which this key has not", r.ID, r.Status, r.Answer, r.ExecutionID)
	case !r.Replayed && run.RequestID != r.ID:
		return fmt.Errorf("%s got the answer of %s, which ran for %s, and it is not marked as replayed", r.ID, run.ExecutionID, run.RequestID)
	case run.Lost && r.Status != 502:
		return fmt.Errorf("%s was answered %d %q by %s, which ended without an answer", r.ID, r.Status, r.Answer, run.ExecutionID)
	case !run.Lost && (r.Status != run.Status || r.Answer != run.Answer):
		return fmt.Errorf("%s was answered %d %q by %s, which answered %d %q", r.ID, r.Status, r.Answer, run.ExecutionID, run.Status, run.Answer)
	}
	return nil
}

// InTheWay reports whether an answer says that something is in the key's way that
// has to be gone a while after all faults are over.
func (h *History) InTheWay(r *Request) bool {
	part := &keyHistory{whole: h, key: r.Key}
	if r.Failure != "" || r.Code == unknown {
		for _, k := range h.Of(r.Key).byKey() {
			part = k
		}
	}
	return part.inTheWay(r)
}

func (k *keyHistory) inTheWay(r *Request) bool {
	switch {
	case r.Failure != "":
		return !k.ran(r) // a run may break off at any time
	case r.Code == unknown:
		// What never ran holds a key only if its process died before it could
		// withdraw the claim.
		return k.run(r.ExecutionID) == nil && !slices.ContainsFunc(k.requests, func(other *Request) bool {
			return k.unresolved(other) && k.whole.killedSince(other)
		})
	default:
		return r.Code == inFlight || r.Code == unavailable
	}
}
