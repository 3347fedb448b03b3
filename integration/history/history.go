// Package history holds what was seen of a system under load and faults, and
// decides whether the promises allow it. A [History] is what clients and the
// upstream saw, with the faults that were made meanwhile; it knows nothing of
// how the product works inside. [History.Check] holds it against the key's state
// machine (model.go), with porcupine, and against rules that need no order of
// events (invariants.go).
package history

import "time"

// History is one load. All times in it count from its beginning, by one clock.
type History struct {
	// Seed is the number from which the load and its faults were made.
	Seed uint64 `json:"seed"`
	// Lease is how long a claim holds without renewal; it is renewed at a third
	// of it.
	Lease time.Duration `json:"lease"`
	// Jitter is how late a process that suffers no fault may be: it shares its
	// machine with the load.
	Jitter time.Duration `json:"jitter"`
	// Shared is how long a process that waits for another's run may not know of its
	// end, while there is no fault: all that ask it for the key meanwhile share what
	// it knows.
	Shared time.Duration `json:"shared"`
	// Retry is how long it takes at most, from the end of all faults on, until a
	// process has stored a run's end that it could not store before, with all the
	// pauses and time limits of its tries. It is also how long a process may need to
	// store an end of which no client was told.
	Retry time.Duration `json:"retry"`
	// Forgetful says that the store lost what it had acknowledged. Then a key may
	// run again at any time, and all that is left to hold are the answers.
	Forgetful bool `json:"forgetful,omitempty"`
	// Exclusive says that only one process can have the store open. When it is killed, its
	// claims under hold or a limit of attempts lapse at once, and the others never were.
	Exclusive bool      `json:"exclusive,omitempty"`
	Requests  []Request `json:"requests"`
	Runs      []Run     `json:"runs"`
	Freed     []Freed   `json:"freed,omitempty"`
	Faults    []Fault   `json:"faults"`
}

// Request is a client's request and the answer that it got.
type Request struct {
	ID  string `json:"id"`
	Key string `json:"key"`
	// Proxy is the number of the process that was asked.
	Proxy int `json:"proxy"`
	// Hold says that the key is one under `on_unknown hold`; the same for all
	// requests of a key.
	Hold bool `json:"hold,omitempty"`
	// MaxAttempts is how many runs of the key may reach the upstream, 0 for no
	// limit; the same for all requests of a key.
	MaxAttempts int `json:"max_attempts,omitempty"`
	// Force asks to run again on purpose.
	Force bool `json:"force,omitempty"`
	// Body stands for the fingerprint.
	Body string `json:"body,omitempty"`
	// Final says that it came when all faults were over, for longer than a lease.
	Final bool          `json:"final,omitempty"`
	Start time.Duration `json:"start"`
	End   time.Duration `json:"end"`
	// Failure says why there was no whole answer; the rest is then empty.
	Failure string `json:"failure,omitempty"`
	Status  int    `json:"status,omitempty"`
	// Code is that of a refusal, empty for all other answers.
	Code        string `json:"code,omitempty"`
	ExecutionID string `json:"execution_id,omitempty"`
	Replayed    bool   `json:"replayed,omitempty"`
	Answer      string `json:"answer,omitempty"`
}

// Run is one execution, as the upstream saw it.
type Run struct {
	ExecutionID string `json:"execution_id"`
	ParentID    string `json:"parent_id,omitempty"`
	Attempt     int    `json:"attempt"`
	RequestID   string `json:"request_id"`
	Key         string `json:"key"`
	// Start is when the request was there, End just before the answer, or before
	// the connection was cut.
	Start time.Duration `json:"start"`
	End   time.Duration `json:"end"`
	// Lost says that there was no whole answer: the run's end is unknown.
	Lost   bool   `json:"lost,omitempty"`
	Status int    `json:"status,omitempty"`
	Answer string `json:"answer,omitempty"`
}

// Kept reports whether the run's answer is one that is kept, also where attempts
// are left.
func (r *Run) Kept() bool { return !r.Lost && r.Status < 500 }

// Freed is a key's release by an operator.
type Freed struct {
	Key   string        `json:"key"`
	Start time.Duration `json:"start"`
	End   time.Duration `json:"end"`
	// Unsure says that the operator does not know whether it was done.
	Unsure bool `json:"unsure,omitempty"`
}

// Fault is something that was done to the system, from just before it began
// until just after it was over.
type Fault struct {
	Kind FaultKind `json:"kind"`
	// Name says what was done, for readers.
	Name string `json:"name"`
	// Proxy is the number of the process that it was done to, or whose way to the
	// store it was; [Everyone] for all.
	Proxy int           `json:"proxy"`
	Start time.Duration `json:"start"`
	End   time.Duration `json:"end"`
}

// Everyone is the proxy of a fault that all of them suffer.
const Everyone = -1

// FaultKind is what a fault may do to a promise.
type FaultKind string

const (
	// Killed: the process was killed, and is there again at the fault's end.
	Killed FaultKind = "killed"
	// Stopped: the process stood still.
	Stopped FaultKind = "stopped"
	// Unreachable: the store could not be asked, or not well.
	Unreachable FaultKind = "unreachable"
	// Reloaded: the process got another configuration. That excuses nothing.
	Reloaded FaultKind = "reloaded"
)

// concerns reports whether the fault may keep a process from doing what it has to.
func (f *Fault) concerns(proxy int) bool {
	return f.Kind != Reloaded && (f.Proxy == Everyone || f.Proxy == proxy)
}

// overlaps reports whether the fault was on at any time from one to the other.
func (f *Fault) overlaps(from, to time.Duration) bool { return f.Start <= to && from <= f.End }

// The codes of refusals that say something of the key.
const (
	inFlight    = "request_in_flight"
	unknown     = "outcome_unknown"
	reused      = "idempotency_key_reused"
	unavailable = "store_unavailable"
	exhausted   = "attempts_exhausted"
)
