package idempotency

import (
	"fmt"
	"time"
)

// States that operators see and that no stored record has.
const (
	// Lapsed: a claim that is stored as in flight, and whose lease was not renewed.
	// The next request takes it over.
	Lapsed State = "lapsed"
	// Unreadable: a record that cannot be read.
	Unreadable State = "unreadable"
)

// StateAt returns the state of the record at a time, for operators: a claim that has lapsed is
// held, or [Lapsed].
func (r *Record) StateAt(now time.Time) State {
	switch {
	case r.Lapsed(now) && r.Hold:
		return Held
	case r.Lapsed(now):
		return Lapsed
	default:
		return r.State
	}
}

// Change is what an operator does about a key that no run owns: release it, or complete it.
type Change struct {
	// State is Released or Complete.
	State State
	// Token is new, so that it differs from that of any owner.
	Token string
	// Reason is [Record.Reason].
	Reason string
	// Response is what duplicates get of a completed key; nil with Released.
	Response     *Response
	Precondition Precondition
}

// Precondition is what an operator has seen of a record. The record must still meet it when it is
// changed or forgotten. It does not if the key has run since, because every run has an execution
// ID of its own, or if the run has ended. Empty fields are not compared.
type Precondition struct {
	ExecutionID string
	// State is that of [Record.StateAt], or [Unreadable].
	State State
}

// PreconditionOf returns the precondition that a record meets at a time.
func PreconditionOf(r *Record, now time.Time) Precondition {
	return Precondition{r.ExecutionID, r.StateAt(now)}
}

// CheckUnreadable returns a [ChangedError] if a record that cannot be read does not meet the
// precondition.
func (p Precondition) CheckUnreadable() error { return p.check(Precondition{State: Unreadable}) }

func (p Precondition) check(now Precondition) error {
	if p.State != "" && p.State != now.State || p.ExecutionID != "" && p.ExecutionID != now.ExecutionID {
		return ChangedError{now}
	}
	return nil
}

// ChangedError is the error for a record that does not meet the [Precondition] of an operator.
// Nothing was changed.
type ChangedError struct {
	// Now is what the operator would see now.
	Now Precondition
}

// Error implements error.
func (e ChangedError) Error() string {
	if e.Now.ExecutionID == "" {
		return fmt.Sprintf("the key has changed since you looked: it is %s now", e.Now.State)
	}
	return fmt.Sprintf("the key has changed since you looked: it is %s now, with the execution ID %s", e.Now.State, e.Now.ExecutionID)
}
