package history

import (
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// keyHistory is what concerns one key.
type keyHistory struct {
	whole    *History
	key      string
	requests []*Request
	runs     []*Run
	freed    []*Freed
}

// byKey takes a history apart.
func (h *History) byKey() []*keyHistory {
	keys := map[string]*keyHistory{}
	var order []*keyHistory
	of := func(key string) *keyHistory {
		k := keys[key]
		if k == nil {
			k = &keyHistory{whole: h, key: key}
			keys[key] = k
			order = append(order, k)
		}
		return k
	}
	for i := range h.Requests {
		k := of(h.Requests[i].Key)
		k.requests = append(k.requests, &h.Requests[i])
	}
	for i := range h.Runs {
		k := of(h.Runs[i].Key)
		k.runs = append(k.runs, &h.Runs[i])
	}
	for i := range h.Freed {
		k := of(h.Freed[i].Key)
		k.freed = append(k.freed, &h.Freed[i])
	}
	return order
}

func (k *keyHistory) request(id string) *Request {
	for _, r := range k.requests {
		if r.ID == id {
			return r
		}
	}
	return nil
}

func (k *keyHistory) run(executionID string) *Run {
	for _, r := range k.runs {
		if r.ExecutionID == executionID {
			return r
		}
	}
	return nil
}

// operations returns the key's history as steps of the model. An error names what
// no model could explain.
func (k *keyHistory) operations() ([]porcupine.Operation, error) {
	b := &builder{keyHistory: k, executions: map[string]*execution{}, strict: !slices.ContainsFunc(k.requests, k.unresolved)}
	b.uncertain = !b.strict && len(k.freed) > 0
	for _, run := range k.runs {
		if err := b.addRun(run); err != nil {
			return nil, err
		}
	}
	for _, r := range k.requests {
		if err := b.addAnswer(r); err != nil {
			return nil, err
		}
	}
	for _, f := range k.freed {
		b.addFreed(f)
	}
	return b.operations, nil
}

// unresolved reports whether a request may have made a claim of which the
// upstream saw nothing.
func (k *keyHistory) unresolved(r *Request) bool {
	return (r.Failure != "" || r.Code == unavailable) && !k.ran(r)
}

// ran reports whether the upstream saw a request.
func (k *keyHistory) ran(r *Request) bool {
	return slices.ContainsFunc(k.runs, func(run *Run) bool { return run.RequestID == r.ID })
}

type builder struct {
	*keyHistory
	executions map[string]*execution
	strict     bool
	// uncertain says that nobody knows how many attempts count: some may have been
	// made that the upstream never saw, before an operator freed the key.
	uncertain  bool
	operations []porcupine.Operation
}

func (b *builder) add(s step, from, to time.Duration) {
	client := 0
	if s.request != nil {
		client = 1 + s.request.Proxy
	}
	s.strict = b.strict
	b.operations = append(b.operations, porcupine.Operation{ClientId: client, Input: s, Call: int64(from), Return: int64(to)})
}

// addRun adds a run's claim, which was made between its request and its start,
// and its end.
func (b *builder) addRun(run *Run) error {
	r := b.request(run.RequestID)
	if r == nil {
		return fmt.Errorf("the run %s came with the request %q, which nobody sent", run.ExecutionID, run.RequestID)
	}
	settled := b.whole.settledBy(r, run)
	e := &execution{
		id: run.ExecutionID, parent: run.ParentID, attempt: run.Attempt, body: r.Body, hold: r.Hold, forced: r.Force,
		result: free, limit: r.MaxAttempts, uncertain: b.uncertain, maybeLost: b.maybeNotSettled(r, run, settled),
	}
	switch {
	case run.Kept():
		e.result = kept
	case run.Lost && r.Hold:
		e.result = held
	case !run.Lost:
		e.failed = true
	}
	if proof := b.proofOf(r, run); proof != nil {
		if proof.End < run.End {
			return fmt.Errorf("%s was answered by the run %s before that had ended", proof.ID, run.ExecutionID)
		}
		e.proven, settled = true, min(settled, proof.End)
	}
	b.executions[e.id] = e
	b.add(step{act: claims, execution: e}, r.Start, run.Start)
	b.add(step{act: settles, execution: e}, run.End, settled)
	b.addLapse(e, b.whole.mayLapse(r))
	b.addDeaths(e, r)
	return nil
}

// maybeNotSettled reports whether a run's end may never have been stored: its
// process was killed before, or its claim was lost to one of which nobody knows,
// which may have been withdrawn since.
func (b *builder) maybeNotSettled(r *Request, run *Run, settled time.Duration) bool {
	if !b.whole.settledLate(r, run) {
		return false
	}
	return b.whole.killedWithin(r, settled) || b.whole.mayLapse(r) <= settled && slices.ContainsFunc(b.requests, func(other *Request) bool {
		return b.unresolved(other) && other.Start <= settled
	})
}

// proofOf returns the first replay of a run by a process that can know it from the
// store alone: another one, or one that has started since.
func (b *builder) proofOf(claimant *Request, run *Run) *Request {
	var first *Request
	for _, r := range b.requests {
		if !r.Replayed || r.ExecutionID != run.ExecutionID {
			continue
		}
		learned := r.Proxy != claimant.Proxy || r.Start > b.whole.diesAfter(claimant)
		if learned && (first == nil || r.End < first.End) {
			first = r
		}
	}
	return first
}

// addLapse adds the end of a lease. It may come at any time from then on, and it
// may come too late to matter.
func (b *builder) addLapse(e *execution, from time.Duration) {
	if from < never {
		b.add(step{act: lapses, execution: e}, from, never)
	}
}

// addDeaths adds the ends of the claim by which it never was. A request that came during a kill may
// have come to the next process.
func (b *builder) addDeaths(e *execution, r *Request) {
	if !b.whole.Exclusive || e.hold || e.limit > 0 {
		return
	}
	for _, f := range b.whole.kills(r) {
		unsure := f.Start <= r.Start
		b.add(step{act: forgets, execution: e, unsure: unsure}, max(f.Start, r.Start), f.End)
		if !unsure {
			return
		}
	}
}

// addFreed adds an operator's release: the key is taken from all others first.
func (b *builder) addFreed(f *Freed) {
	end := f.End
	if f.Unsure {
		end = never
	}
	b.add(step{act: takes, unsure: f.Unsure}, f.Start, end)
	b.add(step{act: frees, unsure: f.Unsure}, f.Start, end)
}

// addAnswer adds what a request was told of an execution.
func (b *builder) addAnswer(r *Request) error {
	var told act
	switch {
	case r.Failure != "" || r.Code == unavailable:
		return nil // nothing was told
	case r.Replayed:
		told = replays
	case r.Code == inFlight:
		told = busy
	case r.Code == unknown:
		told = holds
	case r.Code == reused:
		told = differs
	case r.Code == exhausted:
		told = tired
	case r.Code != "":
		return fmt.Errorf("%s was refused with %d %s, which nothing in this load calls for", r.ID, r.Status, r.Code)
	default:
		return nil // its own run
	}
	e, err := b.named(r)
	if err != nil {
		return err
	}
	s := step{act: told, execution: e, request: r, own: b.ownAnswer(r, e)}
	b.add(s, b.knownSince(r, e), r.End)
	return nil
}

// knownSince returns the earliest time of which an answer may speak: when its
// request came, or when an earlier one came with which it shared what the process
// knew of another process's run.
func (b *builder) knownSince(r *Request, e *execution) time.Duration {
	run := b.run(e.id)
	if run == nil || b.request(run.RequestID).Proxy == r.Proxy {
		return r.Start
	}
	since := r.Start
	for _, other := range b.requests {
		if other.Proxy != r.Proxy || other.Start >= since {
			continue
		}
		shares := other.Start >= r.Start-b.whole.Shared || slices.ContainsFunc(b.whole.Faults, func(f Fault) bool {
			return f.concerns(r.Proxy) && f.overlaps(other.Start, r.Start)
		})
		if shares {
			since = other.Start
		}
	}
	return since
}

// named returns the execution that an answer names. One that the upstream never
// saw must be the claim of a request that was not answered for sure.
func (b *builder) named(r *Request) (*execution, error) {
	if e := b.executions[r.ExecutionID]; e != nil {
		return e, nil
	}
	from, forced := never, false
	var first *Request
	for _, other := range b.requests {
		if b.unresolved(other) && other.Start <= r.End {
			if other.Start < from {
				from, first = other.Start, other
			}
			forced = forced || other.Force
		}
	}
	if from == never || r.Replayed {
		return nil, fmt.Errorf("%s was told (%d %s) of the execution %q, which never was", r.ID, r.Status, r.Code, r.ExecutionID)
	}
	e := &execution{id: r.ExecutionID, hold: r.Hold, forced: forced, result: free, limit: r.MaxAttempts, uncertain: b.uncertain, maybeLost: true, unseen: true}
	b.executions[e.id] = e
	b.add(step{act: claims, execution: e}, from, r.End)
	b.add(step{act: settles, execution: e}, from, never)
	b.addLapse(e, min(from+b.whole.Lease, b.whole.mayLapse(first)))
	return e, nil
}

// ownAnswer reports whether the process that ran the execution may answer by what
// it remembers: where it could not store the run's end, or has not noticed that
// its claim was lost while the run goes on.
func (b *builder) ownAnswer(r *Request, e *execution) bool {
	run := b.run(e.id)
	if run == nil {
		return false
	}
	owner := b.request(run.RequestID)
	if owner.Proxy != r.Proxy || r.End < owner.Start || r.Start > b.whole.knownUntil(owner, run) {
		return false
	}
	if r.Code == inFlight && b.whole.mayLapse(owner) < r.End {
		return true
	}
	return r.End >= run.End && b.whole.settledLate(owner, run)
}
