package report

import "github.com/caddy-dedup/caddy-dedup/internal/engine"

// Outcomes are all outcomes.
var Outcomes = []Outcome{
	Executed, Replayed, Waited, InFlight, Reused, Held, Exhausted, Forced,
	Conflict, Acknowledged, SeeOther, Missing, Unusable, Passed, Invalid, SignatureInvalid, TooLarge,
	NotKept, Unprotected, Overloaded, Unavailable, Unreadable, NoHandler, Loop,
}

// Outcome is what became of a request, for {http.dedup.outcome}, logs and
// metrics.
type Outcome string

const (
	Executed         Outcome = "executed"
	Replayed         Outcome = "replayed"
	Waited           Outcome = "waited"
	InFlight         Outcome = "in_flight"
	Reused           Outcome = "reused"
	Held             Outcome = "held"
	Exhausted        Outcome = "exhausted"
	Forced           Outcome = "forced"
	Conflict         Outcome = "conflict"
	Acknowledged     Outcome = "acknowledged"
	SeeOther         Outcome = "see_other"
	Missing          Outcome = "missing"
	Unusable         Outcome = "unusable" // a member of the body or a text is there and cannot be a key
	Passed           Outcome = "passed"   // a handshake of a provider
	Invalid          Outcome = "invalid"
	SignatureInvalid Outcome = "signature_invalid"
	TooLarge         Outcome = "too_large"
	NotKept          Outcome = "not_kept"
	Unprotected      Outcome = "unprotected"
	Overloaded       Outcome = "overloaded"
	Unavailable      Outcome = "store_unavailable"
	Unreadable       Outcome = "record_unreadable"
	NoHandler        Outcome = "no_handler"
	Loop             Outcome = "loop"
)

// Refused are the outcomes of requests that the engine refuses.
var Refused = map[engine.Reason]Outcome{
	engine.ReasonReused:      Reused,
	engine.ReasonInFlight:    InFlight,
	engine.ReasonHeld:        Held,
	engine.ReasonExhausted:   Exhausted,
	engine.ReasonLoop:        Loop,
	engine.ReasonUnavailable: Unavailable,
	engine.ReasonUnreadable:  Unreadable,
	engine.ReasonOverloaded:  Overloaded,
}
