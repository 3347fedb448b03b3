// Package idempotency has the rules of the product, as pure functions: how a
// key is derived (key.go), how two requests with one key are told apart
// (fingerprint.go), what a record holds (record.go), what a request may do with
// the record that it finds (claim.go), and what becomes of a run that has ended
// (settlement.go). A [Store] makes these decisions atomic and decides nothing itself.
// The bytes in which all stores keep records are described here too (codec.go).
//
// The package starts no goroutine, and knows no HTTP server, no Caddy and no
// concrete store. What one process does around a key is in package engine.
//
// This is the promise. For one key, at most one run is in flight under a live
// lease. A kept response is replaced only by that of a run that was forced. A
// request that waited for a run gets the answer of that run.
package idempotency
