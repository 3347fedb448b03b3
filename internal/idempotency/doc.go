// Package idempotency holds the rules of the product and the engine that
// applies them: how a key is derived, what a record says, what a request may
// do with the record it finds (claim.go), what becomes of a run that ended
// (settle.go), and what one process does around one key (engine.go).
//
// The package knows no HTTP server, no Caddy and no concrete store. The two
// tables are pure functions; a [Store] only makes their decisions atomic; the
// [Engine] asks the store at most once for all duplicates that one process
// holds at the same time.
//
// The promise: for one key at most one run is in flight under a live lease, a
// kept response is never replaced by another run's, and whoever waited for a
// run gets that run's answer.
package idempotency
