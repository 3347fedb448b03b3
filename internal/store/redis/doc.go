// Package redis keeps records and responses in Redis (or Valkey), for replicas
// that share it.
//
// Each key has one hash, dedup:{<key>}, with the key in hex. The names of its fields
// are short because there are many such hashes:
//
//	r  the record, in the form of the idempotency package
//	t  the token of whoever claimed last
//	l  the end of the lease in ms of the server's clock, 0 when nothing is in flight
//	v  the revision: one more at every write
//	w  the inbox channels of those who wait for the run in flight
//	x  when the record expires, in ms of the server's clock, as its TTL says
//	b  the response, where the record is complete and the response is small
//	p  the tokens of up to eight earlier runs, whose responses may still be there
//
// All other responses are strings of their own, dedup:{<key>}:<token>. The braces
// put them into the slot of the hash, in a cluster. The token in the name is that of
// the run: a run that lost its claim cannot damage the response of another, and the
// answer of a released run is still there after the next claim. Tokens have no
// spaces in them.
//
// Lua is slow with large values, and so these responses do not pass through it. In
// one round trip, the response is written under a name that ends in :unsettled, with
// a short life, and then settle.lua either gives it its name or removes it.
//
// The channels, dedup:inbox:<random text>, begin with the same prefix as the keys
// (names.go). Another prefix than dedup: makes another store, in the same Redis.
//
// What a claim may do with the record that it finds is decided in Go, by
// idempotency.Decide. claim.lua writes a record only where there is none. So a fresh
// claim takes one round trip. Otherwise the script returns the record, and a claim
// that may proceed is sent again, to replace exactly the revision that was returned.
//
// The only clock that counts is the server's. A claim carries a deadline, by that
// clock, after which the server refuses it: a claim that waited in the queue of a
// hung server must not own a key for which nobody runs any more. To set the deadline,
// the store estimates the time of each server from its latest reply; only before the
// first command it has to ask, which is one more round trip. After a failover the new
// server's clock may differ. If it is ahead, the first claim is refused as overdue;
// the refusal tells the time, and the claim is sent again.
//
// For one server, for a master that sentinels name and for a cluster the code is the
// same but for the client of go-redis (client.go). go-redis does things by itself: it
// dials the next master, follows redirects, and in a cluster sends a command again
// that got no reply. The error that it returns tells about the last attempt only, but
// a claim is in doubt if any attempt may have been executed. So a hook sees every
// attempt (contact.go).
//
// Redis answers first and replicates later. With Options.WaitReplicas, a kept
// response waits for its replicas (replicas.go). This needs at most one connection to
// each master, which writes a mark, dedup:{<key>}:<token>:mark, that lives for a
// second.
package redis
