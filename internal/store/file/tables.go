package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// The buckets of the file:
//
//	caddy-dedup   "format" -> the label of this layout
//	records       key -> record, as the codec writes it
//	responses     key, token -> when it expires, then the response, as the codec writes it
//	expiries      when, kind, key, token -> a marker
//
// Moments are milliseconds since 1970, 8 bytes, big-endian.
var (
	metaBucket      = []byte("caddy-dedup")
	recordsBucket   = []byte("records")
	responsesBucket = []byte("responses")
	expiriesBucket  = []byte("expiries")

	formatKey = []byte("format")
)

// format labels the layout. The store does not open a file with another label.
const format = "1"

// The kinds of entries in the expiries.
const (
	expiringRecord   = 'k'
	expiringResponse = 'r'
)

const (
	momentSize = 8
	keySize    = len(idempotency.Key{})
)

// marker is the value of every expiry. An empty value would do, but then a damaged
// leaf page that bbolt takes for a branch page could go unnoticed: bbolt would read
// the number of the next page from the place where the lengths of name and value
// are, and an empty value makes that a small number. With one byte it is a page far
// beyond the end of the file, which is noticed.
var marker = []byte{1}

// tables are the buckets of the file within one transaction.
type tables struct {
	path                         string
	records, responses, expiries *bolt.Bucket
	changed                      bool
}

func (s *Store) tables(tx *bolt.Tx) (*tables, error) {
	t := &tables{
		path:    s.path,
		records: tx.Bucket(recordsBucket), responses: tx.Bucket(responsesBucket), expiries: tx.Bucket(expiriesBucket),
	}
	if t.records == nil || t.responses == nil || t.expiries == nil {
		return nil, &idempotency.UnreadableError{Where: "store file " + s.path, Err: errors.New("one of its tables is missing")}
	}
	// Most new entries come after all others, because they are ordered by time. So
	// pages can be filled almost completely: few entries come between.
	t.expiries.FillPercent = 0.9
	return t, nil
}

func (t *tables) unreadable(what string, key idempotency.Key, err error) error {
	return &idempotency.UnreadableError{Where: fmt.Sprintf("%s %s in store file %s", what, key, t.path), Err: err}
}

// record returns the key's record, expired or not, nil if there is none.
func (t *tables) record(key idempotency.Key) (*idempotency.Record, error) {
	stored := t.records.Get(key[:])
	if stored == nil {
		return nil, nil
	}
	record, err := idempotency.DecodeRecord(key, stored)
	if err != nil {
		return nil, t.unreadable("record", key, err)
	}
	return record, nil
}

// live returns the record, or nil if it has expired. An expired record counts as
// absent even before the sweeper has removed it.
func live(record *idempotency.Record, now time.Time) *idempotency.Record {
	if record == nil || !now.Before(record.Expires) {
		return nil
	}
	return record
}

// response returns the response of the run with the token, expired or not, and when
// it expires; nil if there is none.
func (t *tables) response(key idempotency.Key, token string) (*idempotency.Response, time.Time, error) {
	stored := t.responses.Get(append(key[:], token...))
	if stored == nil {
		return nil, time.Time{}, nil
	}
	if len(stored) < momentSize {
		return nil, time.Time{}, t.unreadable("response", key, errors.New("it is cut off"))
	}
	until := moment(stored)
	// The body that is returned shares its memory with what is decoded. Memory of
	// the file's map must not be used after the transaction, so it is copied.
	response, err := idempotency.DecodeResponse(key, token, bytes.Clone(stored[momentSize:]))
	if err != nil {
		return nil, time.Time{}, t.unreadable("response", key, err)
	}
	return response, until, nil
}

// decide applies the claim table. It also returns the stored record, which may have
// expired: putRecord needs it to remove its entry from the expiries.
func (t *tables) decide(c idempotency.Claim, now time.Time) (idempotency.Claimed, *idempotency.Record, error) {
	stored, err := t.record(c.Key)
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
		claimed.Response, _, err = t.response(c.Key, found.Token)
		if err == nil && claimed.Response == nil {
			err = t.unreadable("record", c.Key, errors.New("it is complete, but its response is missing"))
		}
		if err != nil {
			return idempotency.Claimed{}, nil, err
		}
	}
	return claimed, stored, nil
}

// owned returns the record in flight that a claim may change, or an error. It
// returns neither if a settlement with the token is stored already.
func (t *tables) owned(key idempotency.Key, token, follows string, now time.Time) (*idempotency.Record, error) {
	stored, err := t.record(key)
	if err != nil {
		return nil, err
	}
	found := live(stored, now)
	if open, err := found.Owned(token, follows); !open {
		return nil, err
	}
	return found, nil
}

// putRecord replaces the stored record of the key (nil: none).
func (t *tables) putRecord(key idempotency.Key, stored, next *idempotency.Record) error {
	if stored != nil {
		if err := t.unexpire(stored.Expires, expiringRecord, key, ""); err != nil {
			return err
		}
	}
	if err := t.put(t.records, key[:], idempotency.EncodeRecord(key, next)); err != nil {
		return err
	}
	return t.put(t.expiries, expiry(next.Expires, expiringRecord, key, ""), marker)
}

// putResponse keeps an encoded response until the given time.
func (t *tables) putResponse(key idempotency.Key, token string, response []byte, until time.Time) error {
	value := make([]byte, 0, momentSize+len(response))
	value = append(appendMoment(value, until), response...)
	if err := t.put(t.responses, append(key[:], token...), value); err != nil {
		return err
	}
	return t.put(t.expiries, expiry(until, expiringResponse, key, token), marker)
}

// forget removes the record of a key and its responses. Stored is the record, nil if
// there is none or it cannot be read. The entries of its responses in the expiries
// stay; the sweeper removes them when they are due.
func (t *tables) forget(key idempotency.Key, stored *idempotency.Record) error {
	if stored != nil {
		if err := t.unexpire(stored.Expires, expiringRecord, key, ""); err != nil {
			return err
		}
	}
	if err := t.delete(t.records, key[:]); err != nil {
		return err
	}
	var names [][]byte
	cursor := t.responses.Cursor()
	for name, _ := cursor.Seek(key[:]); bytes.HasPrefix(name, key[:]); name, _ = cursor.Next() {
		names = append(names, bytes.Clone(name))
	}
	for _, name := range names {
		if err := t.delete(t.responses, name); err != nil {
			return err
		}
	}
	return nil
}

func (t *tables) unexpire(at time.Time, kind byte, key idempotency.Key, token string) error {
	return t.delete(t.expiries, expiry(at, kind, key, token))
}

func (t *tables) put(bucket *bolt.Bucket, name, value []byte) error {
	t.changed = true
	if err := bucket.Put(name, value); err != nil {
		return &abortError{err}
	}
	return nil
}

func (t *tables) delete(bucket *bolt.Bucket, name []byte) error {
	if bucket.Get(name) == nil {
		return nil
	}
	t.changed = true
	if err := bucket.Delete(name); err != nil {
		return &abortError{err}
	}
	return nil
}

// expiry returns the name of an entry in the expiries.
func expiry(at time.Time, kind byte, key idempotency.Key, token string) []byte {
	name := make([]byte, 0, momentSize+1+keySize+len(token))
	name = append(appendMoment(name, at), kind)
	name = append(name, key[:]...)
	return append(name, token...)
}

func appendMoment(b []byte, at time.Time) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(at.UnixMilli()))
}

func moment(b []byte) time.Time {
	return time.UnixMilli(int64(binary.BigEndian.Uint64(b))).UTC()
}
