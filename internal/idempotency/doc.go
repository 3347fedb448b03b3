// Package idempotency holds the rules of the product, as pure functions: how a
// key is derived (key.go), what a request is told apart by (fingerprint.go), what
// a record says (record.go), what a request may do with the record it finds
// (claim.go), and what becomes of a run that ended (settle.go). A [Store] only
// makes their decisions atomic. The form in which stores keep records is here
// too (codec.go).
//
// The package starts no goroutine and knows no HTTP server, no Caddy and no
// concrete store. What one process does around a key is in package engine.
//
// The promise: for one key at most one run is in flight under a live lease, a
// kept response is never replaced by another run's, and whoever waited for a
// run gets that run's answer.
package idempotency
