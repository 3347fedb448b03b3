package history

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// phase is where a key stands.
type phase string

const (
	free    phase = "free"
	running phase = "in flight"
	lapsed  phase = "in flight, its lease lapsed"
	kept    phase = "complete"
	held    phase = "held"
	taken   phase = "taken by an operator"
)

// state is that of one key. It is comparable.
type state struct {
	phase phase
	// execution is the latest run; where the phase is kept, the one whose response
	// is kept.
	execution string
	// under is, for a forced run, the run whose response it is to replace.
	under string
	// attempt is the number of the latest run.
	attempt int
	// freed is what attempt was when an operator freed the key: those before do not
	// count against the limit.
	freed int
	// While a run is in flight: what it claimed the key over.
	baseExecution string
	baseAttempt   int
}

// complete returns the run whose response is replayed in this state, "" if none
// is. A forced run whose lease has lapsed leaves the one before.
func (s state) complete() string {
	switch s.phase {
	case kept:
		return s.execution
	case lapsed:
		return s.under
	default:
		return ""
	}
}

// alive reports whether an execution is the run in flight, lapsed or not.
func (s state) alive(execution string) bool {
	return (s.phase == running || s.phase == lapsed) && s.execution == execution
}

// execution is what the model has to know of a run.
type execution struct {
	id, parent string
	attempt    int
	body       string
	hold       bool
	forced     bool
	// result is the state to which its end leads; kept is its response's only if
	// it keeps one.
	result phase
	// failed says that it answered so that the key is released, but by the last of
	// the attempts that limit allows; 0 is no limit. With uncertain, nobody knows
	// how many attempts count.
	failed    bool
	limit     int
	uncertain bool
	// maybeLost says that its end may not have been stored; proven, that it was:
	// a process that does not know it from the run itself has told it.
	maybeLost, proven bool
	// unseen says that the upstream never saw it: a claim was made, and its
	// process died, or its reply was lost. Nothing is known of it but its name.
	unseen bool
}

// act is what happens to a key at one moment.
type act string

const (
	claims  act = "claims"
	lapses  act = "lapses"
	forgets act = "dies with its process"
	settles act = "settles"
	takes   act = "is taken by an operator"
	frees   act = "is freed by an operator"
	replays act = "is replayed"
	busy    act = "is in flight, says a refusal"
	holds   act = "is held, says a refusal"
	differs act = "had another fingerprint, says a refusal"
	tired   act = "was the last attempt, says a refusal"
)

// step is one operation of the model: an act of an execution, or of a request
// that was told of it.
type step struct {
	act act
	// execution is nil for an operator's acts.
	execution *execution
	// request is the one that was answered, nil for acts of the execution's own.
	request *Request
	// own says that the answer came from the process that ran the execution, while
	// it may not have known better: the run's end was not stored, or its claim was
	// lost meanwhile.
	own bool
	// unsure says that an operator's act may not have been done, or that the process that was
	// killed may not have been the run's.
	unsure bool
	// strict says that the attempts of the key are all known.
	strict bool
}

func (s step) String() string {
	if s.execution == nil {
		return string(s.act)
	}
	text := fmt.Sprintf("%s %s", short(s.execution.id), s.act)
	if s.request != nil {
		text += " (" + s.request.ID + ")"
	}
	return text
}

// keyModel is the state machine of one key.
func keyModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init: func() []any { return []any{state{phase: free}} },
		Step: func(now, input, _ any) []any {
			var next []any
			for _, s := range input.(step).from(now.(state)) {
				next = append(next, s)
			}
			return next
		},
		DescribeOperation: func(input, _ any) string { return input.(step).String() },
		DescribeState: func(s any) string {
			now := s.(state)
			return fmt.Sprintf("%s %s", now.phase, short(now.execution))
		},
	}
	return model.ToModel()
}

// from returns the states in which the key may be after the step; none if the
// step is impossible.
func (s step) from(now state) []state {
	e := s.execution
	switch s.act {
	case claims:
		return s.claim(now)
	case lapses:
		if now.phase == running && now.execution == e.id {
			now.phase = lapsed
		}
		return []state{now}
	case forgets:
		return s.forget(now)
	case settles:
		return e.settle(now)
	case takes:
		return s.take(now)
	case frees:
		return s.free(now)
	}
	if s.told(now) || s.own {
		return []state{now}
	}
	return nil
}

// claim is possible where the key is free or its lease has lapsed without hold,
// and, by force, where a response is kept.
func (s step) claim(now state) []state {
	e := s.execution
	complete := now.complete()
	switch {
	case now.phase == running, now.phase == held, now.phase == taken:
		return nil
	case complete != "" && (!e.forced || !e.unseen && e.parent != complete):
		return nil
	case complete == "" && e.parent != "":
		return nil
	case complete == "" && now.phase == lapsed && e.hold:
		return nil
	case complete == "" && !e.uncertain && e.limit > 0 && now.attempt-now.freed >= e.limit:
		return nil
	}
	next := state{phase: running, execution: e.id, under: complete, attempt: e.attempt, freed: now.freed,
		baseExecution: now.execution, baseAttempt: now.attempt}
	if now.phase == lapsed {
		next.baseExecution, next.baseAttempt = now.baseExecution, now.baseAttempt
	}
	switch {
	case e.unseen:
		next.attempt = now.attempt
	case s.strict && e.attempt != now.attempt+1, e.attempt <= now.attempt:
		return nil
	}
	return []state{next}
}

// forget leaves what the claim was made over.
func (s step) forget(now state) []state {
	if !now.alive(s.execution.id) {
		return []state{now}
	}
	next := state{phase: free, execution: now.baseExecution, attempt: now.baseAttempt, freed: now.freed}
	if now.under != "" {
		next.phase, next.execution = kept, now.under
	}
	if s.unsure {
		return []state{next, now}
	}
	return []state{next}
}

// settle changes the state only of a claim that stands.
func (e *execution) settle(now state) []state {
	if !now.alive(e.id) {
		if e.proven {
			return nil
		}
		return []state{now}
	}
	next := state{phase: e.result, execution: e.id, attempt: now.attempt, freed: now.freed}
	states := []state{next}
	switch {
	case e.result != kept && now.under != "":
		states[0].phase, states[0].execution = kept, now.under
	case e.failed && e.uncertain:
		next.phase = kept
		states = append(states, next)
	case e.failed && e.limit > 0 && e.attempt-now.freed >= e.limit:
		states[0].phase = kept
	}
	if e.maybeLost && !e.proven {
		states = append(states, now)
	}
	return states
}

// take is possible for an operator but beside a run that is alive.
func (s step) take(now state) []state {
	next := now
	next.phase, next.under = taken, ""
	if complete := now.complete(); complete != "" {
		next.execution = complete
	}
	switch {
	case now.phase == running && s.unsure: // it was not done
		return []state{now}
	case now.phase == running:
		return nil
	case s.unsure:
		return []state{next, now}
	}
	return []state{next}
}

// free ends what take began. An operator that was cut off between the two leaves
// the key to a lease, and to what `on_unknown` says.
func (s step) free(now state) []state {
	if now.phase != taken {
		if s.unsure {
			return []state{now}
		}
		return nil
	}
	next := now
	next.phase, next.freed = free, now.attempt
	if !s.unsure {
		return []state{next}
	}
	again := now
	again.phase = held
	return []state{next, now, again}
}

// told reports whether a request may be answered so.
func (s step) told(now state) bool {
	e := s.execution
	switch s.act {
	case replays:
		// A forced request runs where a response is kept: it gets another's answer
		// only if it waited for it.
		return now.alive(e.id) || now.complete() == e.id && !s.request.Force
	case busy:
		return now.alive(e.id) || now.phase == taken && now.execution == e.id
	case holds:
		return e.hold && now.execution == e.id && (now.phase == held || now.phase == lapsed && now.under == "")
	case tired:
		ended := now.phase == free || now.phase == lapsed && now.under == ""
		return ended && now.execution == e.id && (e.uncertain || !s.strict || e.limit > 0 && now.attempt-now.freed >= e.limit)
	case differs:
		return (now.alive(e.id) || now.complete() == e.id) && (e.unseen || e.body != s.request.Body)
	default:
		return false
	}
}

// short is enough of an execution ID to find it.
func short(id string) string {
	if len(id) <= 12 {
		return id
	}
	return id[len(id)-12:]
}
