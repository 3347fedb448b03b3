// Package redis keeps records and responses in Redis (or Valkey), for replicas
// that share it.
//
// Each key has one string, dedup:{<key>}, with the key in hex: a head that scripts read,
// the record, and the response where the record is complete and the response is small
// (value.go). What does not fit it is dedup:{<key>}:<token>: the body of a large response,
// or the answer of a released run. The braces put both into one slot of a cluster. The
// token in the name is that of the run: a run that lost its claim cannot damage the
// response of another, and the answer of a released run is still there after the next
// claim. Tokens have no spaces in them.
//
// A fresh claim is one SET with NX and GET; its end is a short script, settle.lua, that
// compares the token and writes the value. All else is off the common way, and is done
// by scripts: to take a key over, to register who waits, forced runs, what an operator
// does. The channels of those who wait lie in the value too, and not in a key of their
// own: while a slot moves to another node, a script on one key goes on.
//
// What waits to be sent goes out together (flush.go), over few connections to each
// server. Large bodies do not, and they do not pass through Lua, which is slow with them.
// In one round trip, a body is written under a name that ends in :unsettled and that only
// this settlement uses, with a short life, and then settle.lua either gives it its name or
// removes it. Under its final name at once, a settlement that is made twice, or too late,
// would damage what is kept.
//
// The channels, dedup:inbox:<random text> and dedup:copies, begin with the same prefix as
// the keys (names.go). Another prefix than dedup: makes another store, in the same Redis.
//
// What a claim may do with the record that it finds is decided in Go, by
// idempotency.Decide. SET and claim.lua write a record only where there is none.
// Otherwise they return it, and a claim that may proceed is sent by the script, to
// replace exactly the revision that was returned.
//
// The only clock that counts is the server's. Each flush asks for it, and the store
// estimates the time of each server from the replies (clock.go); only before the first
// command it has to ask, which is one more round trip. A SET carries the end of its
// lease by that estimate. If the time in the reply says that it was wrong, claim.lua
// writes the claim once more. A SET that arrives late locks its key until that end and no
// longer, and a claim that was withdrawn finds a record which says so. Where that is not
// enough, under Hold and MaxAttempts, and over other records, claim.lua has a deadline,
// after which the server refuses it: a claim that waited in the queue of a hung server
// must not own a key for which nobody runs any more. After a failover the new server's
// clock may differ. If it is ahead, the first such claim is refused as overdue; the
// refusal tells the time, and the claim is sent again.
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
