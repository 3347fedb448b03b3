// Package idempotency has the rules of caddy-dedup, as pure functions: how a
// key is derived (key.go), how two requests with one key are distinguished
// (fingerprint.go), what a record holds (record.go), what a request may do with
// the record that it finds (claim.go), and how a run that has ended is settled
// (settlement.go). A [Store] applies these rules atomically, and has none of its own.
// codec.go has the stored form of records and responses, for all stores.
//
// The package starts no goroutine, and knows no HTTP server, no Caddy and no
// concrete store. Package engine has what one process does with a key.
//
// The promise: for one key, at most one run is in flight under a live lease. Only a
// forced run can replace a kept response. A request that waited for a run gets the
// response of that run.
package idempotency
