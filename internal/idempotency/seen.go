package idempotency

import (
	"fmt"
	"time"
)

// What operators see of a record where its own [State] says less than they have to know.
const (
	// SeenLapsed: a claim that is stored as in flight, and whose lease was not renewed.
	// The next request takes it over.
	SeenLapsed State = "lapsed"
	// SeenUnreadable: a record that cannot be read.
	SeenUnreadable State = "unreadable"
)

// SeenAs is the state of the record at a time, for operators. A claim that has lapsed is
// what that means: held, or free to be taken over.
func (r *Record) SeenAs(now time.Time) State {
	switch {
	case r.Lapsed(now) && r.Hold:
		return Held
	case r.Lapsed(now):
		return SeenLapsed
	default:
		return r.State
	}
}

// Seen is what an operator has seen of a record, and what the record still has to be when
// the operator frees or forgets it. Every run has an execution ID of its own: so a key that
// has run since, or whose run has ended otherwise since, is another. What is empty is not
// compared.
type Seen struct {
	ExecutionID string
	// State is as [Record.SeenAs] has it, or [SeenUnreadable].
	State State
}

// SeenOf is what an operator sees of a record.
func SeenOf(r *Record, now time.Time) Seen { return Seen{r.ExecutionID, r.SeenAs(now)} }

// MayBeUnreadable says whether an operator may forget a record that cannot be read. The
// error is a [ChangedError].
func (s Seen) MayBeUnreadable() error { return s.mustBe(Seen{State: SeenUnreadable}) }

func (s Seen) mustBe(now Seen) error {
	if s.State != "" && s.State != now.State || s.ExecutionID != "" && s.ExecutionID != now.ExecutionID {
		return ChangedError{now}
	}
	return nil
}

// ChangedError says that a record is not the one that an operator has seen, and wanted to
// free or forget. Nothing was done.
type ChangedError struct {
	// Now is what the operator would see.
	Now Seen
}

// Error implements error.
func (e ChangedError) Error() string {
	if e.Now.ExecutionID == "" {
		return fmt.Sprintf("the key has changed since you looked: it is %s now", e.Now.State)
	}
	return fmt.Sprintf("the key has changed since you looked: it is %s now, with the execution ID %s", e.Now.State, e.Now.ExecutionID)
}
