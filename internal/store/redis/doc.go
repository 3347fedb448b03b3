// Package redis keeps records and responses in Redis (or Valkey), for replicas
// that share it.
//
// One key has one hash, dedup:{<key>}, with the key in hex, and with short field
// names because there are many of them:
//
//	r  the record, in the form of the idempotency package
//	t  the token of whoever claimed last
//	l  the lease's end in ms of the server's clock, 0 when nothing is in flight
//	v  the revision: one more at every write
//	w  the inbox channels of those who wait for the run in flight
//	x  when the record expires, in ms of the server's clock, as its TTL says
//	b  the response, where it is complete and small
//	p  the tokens of the latest runs before that were released, up to eight
//
// All other responses are strings, dedup:{<key>}:<token>, in the same slot of a
// cluster. They carry the run's token in their name, so that a run that lost
// its claim cannot damage another's, and a released run's answer outlives the
// next claim. Bodies do not pass through Lua, which is slow with them: a
// response is written first, under a name that ends in :unsettled and with a
// short life, and settle.lua in the same round trip gives it its name or
// removes it. Tokens have no spaces in them.
//
// The channels, dedup:inbox:<random text>, begin with the same prefix as the keys
// (names.go). Another prefix than dedup: makes another store, in the same Redis.
//
// What a claim may do with what it finds is decided in Go, by
// idempotency.Decide. claim.lua writes where there is nothing, which makes a
// fresh claim one round trip; else it returns what there is, and a claim that
// may proceed comes again and replaces exactly that revision.
//
// A server's clock is the only one that counts. A claim carries the time after
// which the server refuses it, so that a claim which waited in the queue of a
// hung server does not own a key for which nobody runs any more. For this the
// store knows each server's time from its latest reply; only the very first
// claim at a server has to ask for it, with a round trip of its own. After a
// failover to a server whose clock is elsewhere the first claim is refused as
// overdue, learns the time from that refusal and comes again.
//
// One server, the master that sentinels name and a cluster differ in the client
// of go-redis alone (client.go). What go-redis does by itself, dialing the next
// master, following a redirect, sending again what got no reply, is seen by a
// hook (contact.go): the error of an operation tells of its last attempt only,
// and a claim is in doubt if any attempt at it may have been executed.
//
// Redis replicates after it has answered. Who wants kept responses on replicas
// before they are answered pays for a WAIT (replicas.go). It needs no more than
// one connection to each master, whose mark, dedup:{<key>}:<token>:mark, lives
// for a second.
package redis
