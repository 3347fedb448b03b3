package redis

import (
	"strconv"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// found is a record as claim.lua and lookup.lua return it.
type found struct {
	record *idempotency.Record
	now    time.Time
	// revision names this state of the record: its token and its revision count.
	revision string
	// response is that kept in the record, nil if there is none.
	response []byte
}

// decodeFound reads a reply that says what there is under the record's name.
func decodeFound(key idempotency.Key, name string, r reply) (*found, error) {
	if len(r.rest) < 5 || len(r.rest) > 6 { // a nil at the end is not sent
		return nil, r.unexpectedReply(name)
	}
	record, ok1 := r.rest[0].(string)
	token, ok2 := r.rest[1].(string)
	lease, ok3 := r.rest[2].(string)
	revision, ok4 := r.rest[3].(string)
	expiry, ok5 := r.rest[4].(string)
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
		return nil, r.unexpectedReply(name)
	}
	f := &found{now: fromMillis(r.now), revision: token + ":" + revision}
	if len(r.rest) == 6 && r.rest[5] != nil {
		response, ok := r.rest[5].(string)
		if !ok {
			return nil, r.unexpectedReply(name)
		}
		f.response = []byte(response)
	}
	leaseUntil, err := strconv.ParseInt(lease, 10, 64)
	if err != nil || leaseUntil < 0 {
		return nil, unreadable(name, "its lease's end is %q, which is no time in milliseconds", lease)
	}
	expires, err := strconv.ParseInt(expiry, 10, 64)
	if err != nil || expires <= 0 {
		return nil, unreadable(name, "its expiry is %q, which is no time in milliseconds", expiry)
	}
	if f.record, err = idempotency.DecodeRecord(key, []byte(record)); err != nil {
		return nil, unreadable(name, "%w", err)
	}
	// The scripts write the record and these fields together. If they do not fit each
	// other, somebody else has changed them.
	if f.record.Token != token || (f.record.State == idempotency.InFlight) != (leaseUntil > 0) {
		return nil, unreadable(name, "its record and its other fields do not belong together")
	}
	f.record.LeaseUntil = fromMillis(leaseUntil)
	f.record.Expires = fromMillis(expires)
	f.record = f.record.Effective(f.now)
	return f, nil
}

// encodeRecord returns what is written of a record. The end of its lease and its
// expiry are left out: they are fields of their own, by the server's clock.
func encodeRecord(key idempotency.Key, r *idempotency.Record) []byte {
	stored := *r
	stored.LeaseUntil, stored.Expires = time.Time{}, time.Time{}
	return idempotency.AppendRecord(nil, key, &stored)
}
