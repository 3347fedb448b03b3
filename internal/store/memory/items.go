package memory

import (
	"bytes"
	"hash/maphash"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// item is one record or one response: where its bytes lie, and when it expires. It
// refers to other items by their numbers in the table.
type item struct {
	// at is the place of the key and the encoded record, or of the encoded response.
	at place
	// size is how many of the bytes there are in use.
	size uint32
	// record is the item of the record to which a response belongs; 0 for a record.
	record uint32
	// before and after are the neighbours in the list of what expires in the same second.
	before, after uint32
	// later and earlier are the neighbours among the responses of the same key. For a
	// record, earlier is the latest response.
	later, earlier uint32
	// expires is a Unix time in milliseconds.
	expires int64
	// token is a hash of the token of the response's run.
	token uint64
}

// settleRoom is how much larger than that of a claim the record of its end can be: it
// has its end and a status, and can have a larger number of attempts.
const settleRoom = 16

// keyOf returns the key of a record's item, where it lies.
func (s *Store) keyOf(record uint32) *idempotency.Key {
	return (*idempotency.Key)(s.log.room(s.items.at(record).at))
}

// find returns the record of the key, and its item. The record is nil if it has expired
// or there is none; the item is 0 if nothing of the key is left, and it stays as long as
// the key has responses.
func (s *Store) find(key idempotency.Key, now time.Time) (*idempotency.Record, uint32, error) {
	n := s.index.find(&key)
	if n == 0 {
		return nil, 0, nil
	}
	i := s.items.at(n)
	if i.size == uint32(keySize) || now.UnixMilli() >= i.expires {
		return nil, n, nil
	}
	record, err := idempotency.DecodeRecord(key, s.log.room(i.at)[keySize:i.size])
	if err != nil {
		return nil, n, unreadable("record", key, err)
	}
	return record, n, nil
}

func unreadable(what string, key idempotency.Key, err error) error {
	return &idempotency.UnreadableError{Where: "memory " + what + " " + key.String(), Err: err}
}

// stored is an encoded response. It can be read without the lock of the store.
type stored struct{ head, body []byte }

// response returns the response of the run with the token, none if it has expired or
// there is none. record is the item of the key's record.
func (s *Store) response(record uint32, token string, now time.Time) (stored, bool) {
	if record == 0 {
		return stored{}, false
	}
	hash := maphash.String(s.seed, token)
	for n := s.items.at(record).earlier; n != 0; {
		i := s.items.at(n)
		if i.token != hash {
			n = i.earlier
			continue
		}
		if now.UnixMilli() >= i.expires {
			break
		}
		whole := s.log.room(i.at)[:i.size]
		if body, own := s.log.body(i.at); own {
			return stored{whole, body}, true
		}
		return stored{head: bytes.Clone(whole)}, true
	}
	return stored{}, false
}

func (r stored) decode(key idempotency.Key, token string) (*idempotency.Response, error) {
	var response *idempotency.Response
	var err error
	if r.body != nil {
		response, err = idempotency.DecodeResponseParts(key, token, r.head, r.body)
	} else {
		response, err = idempotency.DecodeResponse(key, token, r.head)
	}
	if err != nil {
		return nil, unreadable("response", key, err)
	}
	return response, nil
}

// toStore is a response that is to be stored, encoded. Its bytes may be used again when
// it has been stored, unless it has a body beside its head. That body is not copied,
// unless it has much more room than bytes.
func toStore(room []byte, key idempotency.Key, token string, r *idempotency.Response) stored {
	if len(r.Body) <= largest/2 {
		if whole := idempotency.AppendResponse(room, key, token, r); len(whole) <= largest {
			return stored{head: whole}
		}
	}
	body := r.Body
	if cap(body)-len(body) > len(body)/8 {
		body = append(make([]byte, 0, len(body)), body...)
	}
	return stored{bytes.Clone(idempotency.AppendResponseHead(room, key, token, r)), body}
}

// putRecord replaces the record of the key. If there is no room, it changes nothing and
// returns [idempotency.ErrFull].
func (s *Store) putRecord(key idempotency.Key, record *idempotency.Record, now time.Time) error {
	return s.put(key, record, "", stored{}, time.Time{}, now)
}

// put replaces the record of the key and keeps a response, if it has a head, until the
// given time. If there is no room, it changes nothing and returns [idempotency.ErrFull], or
// [idempotency.ErrTooLarge] for a response.
func (s *Store) put(key idempotency.Key, record *idempotency.Record, token string, response stored, until, now time.Time) error {
	s.scratch = idempotency.AppendRecord(append(s.scratch[:0], key[:]...), key, record)
	defer s.keepScratch()
	room := len(s.scratch)
	if record.State == idempotency.InFlight {
		room += settleRoom
	}
	n, err := s.makeRoom(&key, room, response, now)
	if err != nil {
		return err
	}
	if n == 0 {
		n = s.items.add()
		s.items.at(n).at = s.putBytes(n, room)
		copy(s.log.room(s.items.at(n).at), key[:])
		s.index.insert(&key, n)
	} else {
		s.expiry.unlink(n)
		if s.tooSmall(n, len(s.scratch)) {
			old := s.items.at(n).at
			s.items.at(n).at = s.putBytes(n, room)
			s.log.remove(old)
		}
	}
	i := s.items.at(n)
	copy(s.log.room(i.at), s.scratch)
	i.size = uint32(len(s.scratch))
	s.expiry.link(n, record.Expires, now)
	if response.head != nil {
		s.putResponse(n, token, response, until, now)
	}
	return nil
}

// keepScratch drops the buffer for records if an unusual record has made it large.
func (s *Store) keepScratch() {
	if cap(s.scratch) > largest {
		s.scratch = nil
	}
}

// tooSmall reports whether the slot of an item has not so much room.
func (s *Store) tooSmall(n uint32, size int) bool {
	return len(s.log.room(s.items.at(n).at)) < size
}

// putBytes returns a place with so much room. The room was reserved.
func (s *Store) putBytes(n uint32, room int) place {
	if room > largest {
		return s.log.putOwn(make([]byte, room), nil)
	}
	return s.log.put(n, room)
}

func (s *Store) putResponse(record uint32, token string, response stored, until, now time.Time) {
	n := s.items.add()
	i := s.items.at(n)
	if response.body != nil {
		i.at = s.log.putOwn(response.head, response.body)
	} else {
		i.at = s.log.put(n, len(response.head))
		copy(s.log.room(i.at), response.head)
	}
	i.size = uint32(len(response.head))
	i.token = maphash.String(s.seed, token)
	i.record = record
	of := s.items.at(record)
	if i.earlier = of.earlier; i.earlier != 0 {
		s.items.at(i.earlier).later = n
	}
	of.earlier = n
	s.expiry.link(n, until, now)
}

// remove takes out an item that has expired. A key whose responses have not expired yet
// keeps its item, without the record.
func (s *Store) remove(n uint32) {
	i := s.items.at(n)
	switch {
	case i.record != 0:
		s.removeResponse(n)
	case i.earlier != 0:
		s.expiry.unlink(n)
		i.size = uint32(keySize)
		// It is looked at again when the latest response has expired, and not before
		// the next second, because it is this one's list that is gone through now.
		i.expires = max(s.items.at(i.earlier).expires, (s.expiry.due+1)*1000)
		s.expiry.relink(n)
	default:
		s.expiry.unlink(n)
		s.index.remove(s.keyOf(n))
		s.log.remove(i.at)
		s.items.remove(n)
	}
}

func (s *Store) removeResponse(n uint32) {
	i := s.items.at(n)
	if i.later != 0 {
		s.items.at(i.later).earlier = i.earlier
	} else {
		s.items.at(i.record).earlier = i.earlier
	}
	if i.earlier != 0 {
		s.items.at(i.earlier).later = i.later
	}
	s.expiry.unlink(n)
	s.log.remove(i.at)
	s.items.remove(n)
}

// removeKey takes out all that is kept of a key.
func (s *Store) removeKey(n uint32) {
	for s.items.at(n).earlier != 0 {
		s.removeResponse(s.items.at(n).earlier)
	}
	s.remove(n)
}
