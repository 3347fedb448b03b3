package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The names in the database, and what is under them:
//
//	d key 0          the key's record, as the codec writes it
//	d key 1 token    when the response expires, then the response, as the codec writes it;
//	                 or a byte that says that its body lies in a segment (bodies.go), the
//	                 number of that, where the body begins, and its length, 8 bytes each,
//	                 and the head, as the codec writes it
//	x when key       nothing: the record of the key expires before that moment
//	x when key token nothing: and so does this response
//
// Moments are milliseconds since 1970, 8 bytes, big-endian.
//
// The moments of the expiries are rounded up, to whole multiples of sweepStep. So the
// entry that was made for a claim is mostly also the one for the record of its end, and
// need not be replaced; and within one step, the sweeper comes to the keys in their
// order, so that it finds together on the disk what it removes together.
//
// A response that expires together with its record has no entry of its own: the
// sweeper removes it with the record (see [kept]).
const (
	dataTable   = 'd'
	expiryTable = 'x'

	ofRecord   = 0
	ofResponse = 1
)

const (
	momentSize = 8
	keySize    = len(idempotency.Key{})
	sweepStep  = time.Minute
)

func recordName(key idempotency.Key) []byte {
	name := make([]byte, 0, 1+keySize+1)
	name = append(name, dataTable)
	name = append(name, key[:]...)
	return append(name, ofRecord)
}

func responseName(key idempotency.Key, token string) []byte {
	name := make([]byte, 0, 1+keySize+1+len(token))
	name = append(name, dataTable)
	name = append(name, key[:]...)
	name = append(name, ofResponse)
	return append(name, token...)
}

// responsesOf returns between which names the responses of a key are.
func responsesOf(key idempotency.Key) (first, last []byte) {
	first = responseName(key, "")
	last = bytes.Clone(first)
	last[len(last)-1]++
	return first, last
}

// dueBy rounds the moment of an expiry up.
func dueBy(at time.Time) time.Time { return at.Truncate(sweepStep).Add(sweepStep) }

// expiryName returns the name of the entry for a record (no token) or for a response.
func expiryName(at time.Time, key idempotency.Key, token string) []byte {
	name := make([]byte, 0, 1+momentSize+keySize+len(token))
	name = append(appendMoment(append(name, expiryTable), dueBy(at)), key[:]...)
	return append(name, token...)
}

// parseExpiry reads what expiryName wrote.
func parseExpiry(name []byte) (at time.Time, key idempotency.Key, token string, ok bool) {
	if len(name) < 1+momentSize+keySize {
		return time.Time{}, idempotency.Key{}, "", false
	}
	at, name = moment(name[1:]), name[1+momentSize:]
	return at, idempotency.Key(name[:keySize]), string(name[keySize:]), true
}

func appendMoment(b []byte, at time.Time) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(at.UnixMilli()))
}

func moment(b []byte) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(b))).UTC()
}

// A slot of the file of claims (claims.go) has the length of what follows the key, 2 bytes,
// big-endian, the key, and its record as the codec writes it. It lies within one sector of
// a disk. An erased one has the length 0.
const (
	slotSize = 512
	slotHead = 2 + keySize
)

func appendSlot(b []byte, key idempotency.Key, form []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, uint16(len(form))) //nolint:gosec // it fits into a slot
	return append(append(b, key[:]...), form...)
}

func fitsSlot(form []byte) bool { return slotHead+len(form) <= slotSize }

func isErased(slot []byte) bool { return len(slot) >= slotHead && binary.BigEndian.Uint16(slot) == 0 }

// parseSlot reads what appendSlot wrote. Its errors are errSlot.
func parseSlot(slot []byte) (key idempotency.Key, form []byte, err error) {
	if len(slot) < slotHead {
		return key, nil, fmt.Errorf("%w: %w", errSlot, errCutOff)
	}
	key = idempotency.Key(slot[2:slotHead])
	end := slotHead + int(binary.BigEndian.Uint16(slot))
	if end > len(slot) {
		return key, nil, fmt.Errorf("%w: record %s: %w", errSlot, key, errCutOff)
	}
	return key, slot[slotHead:end], nil
}

var errSlot = errors.New("a slot cannot be read")

// get returns a copy of what is stored under a name, nil if there is nothing.
func (d *database) get(name []byte) (value []byte, err error) {
	defer rescue(&err)
	value, closer, err := d.db.Get(name)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value = append(make([]byte, 0, len(value)), value...)
	return value, closer.Close()
}

// find does what get does, and asks the filters of all tables before it reads from them.
// It costs a little more than get where something is found in memory, and much less
// where nothing is: pebble's Get leaves out the filters of the last level, in which most
// of what is stored is.
func (d *database) find(name []byte) (value []byte, err error) {
	defer rescue(&err)
	it, err := d.db.NewIter(&allFilters)
	if err != nil {
		return nil, err
	}
	defer closeIterator(it, &err)
	if it.SeekPrefixGE(name) && bytes.Equal(it.Key(), name) {
		if value, err = it.ValueAndErr(); err == nil {
			value = append(make([]byte, 0, len(value)), value...)
		}
	}
	return value, err
}

// closeIterator closes an iterator, in a deferred call. Its error counts if there is none yet.
func closeIterator(it *pebble.Iterator, err *error) {
	if closing := it.Close(); *err == nil {
		*err = closing
	}
}

var allFilters = pebble.IterOptions{UseL6Filters: true}

// record returns the key's record, expired or not, nil if there is none.
func (d *database) record(key idempotency.Key) (*idempotency.Record, error) {
	return d.recordBy(d.get, key)
}

// newRecord returns what record does. It is for keys that are mostly new.
func (d *database) newRecord(key idempotency.Key) (*idempotency.Record, error) {
	return d.recordBy(func(name []byte) ([]byte, error) {
		if d.filters.isNew(&key) {
			return nil, nil
		}
		return d.find(name)
	}, key)
}

func (d *database) recordBy(get func(name []byte) ([]byte, error), key idempotency.Key) (*idempotency.Record, error) {
	stored := d.slots.form(key)
	if stored == nil {
		var err error
		if stored, err = get(recordName(key)); err != nil {
			return nil, d.readError("record", key, err)
		}
	}
	if stored == nil {
		return nil, nil
	}
	record, err := idempotency.DecodeRecord(key, stored)
	if err != nil {
		return nil, d.unreadable("record", key, err)
	}
	return record, nil
}

func (d *database) unreadable(what string, key idempotency.Key, err error) error {
	return &idempotency.UnreadableError{Where: fmt.Sprintf("%s %s in the store directory %s", what, key, d.path), Err: err}
}

// readError tells what is damaged from what could not be read this time.
func (d *database) readError(what string, key idempotency.Key, err error) error {
	if isDamage(err) {
		return d.unreadable(what, key, err)
	}
	return fmt.Errorf("store directory %s: %w", d.path, err)
}

// live returns the record, or nil if it has expired. An expired record counts as absent
// even before the sweeper has removed it.
func live(record *idempotency.Record, now time.Time) *idempotency.Record {
	if record == nil || !now.Before(record.Expires) {
		return nil
	}
	return record
}

// decide applies the claim table. It also returns the stored record, which may have
// expired: putRecord needs it.
func (d *database) decide(c idempotency.Claim, now time.Time) (idempotency.Claimed, *idempotency.Record, error) {
	stored, err := d.newRecord(c.Key)
	if err != nil {
		return idempotency.Claimed{}, nil, err
	}
	found := live(stored, now).Effective(now)
	claimed := idempotency.Claimed{Verdict: idempotency.Decide(found, c, now), Record: found, Now: now}
	switch claimed.Verdict {
	case idempotency.Proceed:
		claimed.Previous = found
		claimed.Record = c.Record(found, now)
	case idempotency.ReplayKept:
		claimed.Response, err = d.response(c.Key, found.Token, now)
		if err == nil && claimed.Response == nil {
			err = d.unreadable("record", c.Key, idempotency.ErrResponseMissing)
		}
		if err != nil {
			return idempotency.Claimed{}, nil, err
		}
	}
	return claimed, stored, nil
}

// owned returns the record in flight that a claim may change, or an error. It returns
// neither if a settlement with the token is stored already.
func (d *database) owned(key idempotency.Key, token, follows, left string, now time.Time) (*idempotency.Record, error) {
	stored, err := d.record(key)
	if err != nil {
		return nil, err
	}
	found := live(stored, now)
	if open, err := found.Owned(token, follows, left); !open {
		return nil, err
	}
	return found, nil
}

// kept are the complete records in a record, whose responses expire with it: itself, or
// the one that a forced run is meant to replace.
func kept(r *idempotency.Record) *idempotency.Record {
	switch {
	case r == nil:
		return nil
	case r.State == idempotency.Complete:
		return r
	default:
		return r.Replaces
	}
}

// change is what one operation writes, in one step.
type change struct {
	*pebble.Batch
	// bodies are those that are not needed afterwards, nil for none.
	bodies *unneeded
}

// putRecord replaces the record that pebble has of the key (nil: none).
func (c change) putRecord(key idempotency.Key, stored, next *idempotency.Record) error {
	expiry := expiryName(next.Expires, key, "")
	var old []byte
	if stored != nil {
		old = expiryName(stored.Expires, key, "")
	}
	if !bytes.Equal(old, expiry) {
		if old != nil {
			if err := c.Delete(old, nil); err != nil {
				return err
			}
		}
		if err := c.Set(expiry, nil, nil); err != nil {
			return err
		}
	}
	if before, after := kept(stored), kept(next); before != nil && (after == nil || after.Token != before.Token) {
		if err := c.partWith(key, before); err != nil {
			return err
		}
	}
	return c.Set(recordName(key), idempotency.AppendRecord(nil, key, next), nil)
}

// partWith has the response of a complete record removed that the key's next record does not
// know any more. It stays until it expires, for those who still ask for it by its token. One
// that has expired goes at once: an entry among those that are due could be removed with
// them, by a sweeper that has not seen it.
func (c change) partWith(key idempotency.Key, before *idempotency.Record) error {
	if live(before, clock()) == nil {
		return c.Delete(responseName(key, before.Token), nil)
	}
	return c.Set(expiryName(before.Expires, key, before.Token), nil, nil)
}

// forget removes the record of a key and its responses. Stored is the record, nil if
// there is none or it cannot be read; its entry in the expiries then stays, as do those
// of its responses: the sweeper removes them when they are due.
func (c change) forget(key idempotency.Key, stored *idempotency.Record) error {
	if stored != nil {
		if err := c.Delete(expiryName(stored.Expires, key, ""), nil); err != nil {
			return err
		}
	}
	if err := c.Delete(recordName(key), nil); err != nil {
		return err
	}
	first, last := responsesOf(key)
	return c.DeleteRange(first, last, nil)
}
