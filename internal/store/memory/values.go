package memory

import (
	"bytes"
	"container/heap"
	"hash/maphash"
	"sync"
	"time"
	"unsafe"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// name names a value: the record of a key, or the response of one of its runs.
type name struct {
	key   idempotency.Key
	token uint64 // a hash of the run's token; 0 for the record
}

func (s *Store) nameOf(key idempotency.Key, token string) name {
	return name{key, maphash.String(s.seed, token)}
}

// value says where a record or a response is. Its times are Unix times in milliseconds.
type value struct {
	expires     int64
	due         int64 // time of the value's expiry in the heap that counts
	first, size uint32
}

// encoded is an encoded response. body is set only if it is large; head has the rest.
type encoded struct{ head, body []byte }

// largeBody is the minimum size of a body that is not copied into blocks.
const largeBody = 16 << 10

// buffers are for encoding responses.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// encode encodes a response into the buffer. If r is nil, the result has no head. A large body is copied
// only if much of its array is unused.
func encode(buffer *[]byte, key idempotency.Key, token string, r *idempotency.Response) encoded {
	if r == nil {
		return encoded{}
	}
	if len(r.Body) < largeBody {
		*buffer = idempotency.AppendResponse((*buffer)[:0], key, token, r)
		return encoded{head: *buffer}
	}
	*buffer = idempotency.AppendResponseHead((*buffer)[:0], key, token, r)
	if cap(r.Body)-len(r.Body) > len(r.Body)/8 {
		return encoded{*buffer, bytes.Clone(r.Body)}
	}
	return encoded{*buffer, r.Body}
}

func (r encoded) decode(key idempotency.Key, token string) (response *idempotency.Response, err error) {
	if r.body == nil {
		response, err = idempotency.DecodeResponse(key, token, r.head)
	} else {
		response, err = idempotency.DecodeResponseParts(key, token, r.head, r.body)
	}
	if err != nil {
		return nil, unreadable("response", key, err)
	}
	return response, nil
}

func unreadable(what string, key idempotency.Key, err error) error {
	return &idempotency.UnreadableError{Where: "memory " + what + " " + key.String(), Err: err}
}

// find returns the record of the key, nil if there is none or it has expired.
func (s *Store) find(key idempotency.Key, now time.Time) (*idempotency.Record, error) {
	v := s.values[key[0]][name{key: key}]
	if v.expires <= now.UnixMilli() {
		return nil, nil
	}
	if claim := s.claims[key]; claim != nil {
		record := *claim
		return &record, nil
	}
	s.scratch = s.blocks.read(s.scratch[:0], v.first, v.size)
	record, err := idempotency.DecodeRecord(key, s.scratch)
	if err != nil {
		return nil, unreadable("record", key, err)
	}
	return record, nil
}

// response returns a response. It has no head if there is none or it has expired.
func (s *Store) response(n name, now time.Time) encoded {
	v := s.values[n.key[0]][n]
	if v.expires <= now.UnixMilli() {
		return encoded{}
	}
	return encoded{s.blocks.read(make([]byte, 0, v.size), v.first, v.size), s.bodies[n]}
}

// putRecord adds or replaces the record of the key.
func (s *Store) putRecord(key idempotency.Key, record *idempotency.Record, now time.Time) {
	if record.State == idempotency.InFlight {
		s.put(name{key: key}, encoded{}, record.Expires, now)
		claim := *record
		s.claims[key] = &claim
		return
	}
	s.scratch = idempotency.AppendRecord(s.scratch[:0], key, record)
	s.put(name{key: key}, encoded{head: s.scratch}, record.Expires, now)
}

// putResponse adds a response, if there is room for it.
func (s *Store) putResponse(n name, r encoded, expires, now time.Time) error {
	switch cost := r.cost(); {
	case s.makeRoom(cost, s.limit, now):
		s.put(n, r, expires, now)
		return nil
	case cost > s.limit/reserveDivisor:
		return idempotency.ErrTooLarge
	default:
		return idempotency.ErrFull
	}
}

// put adds or replaces a value.
func (s *Store) put(n name, e encoded, expires, now time.Time) {
	values := s.values[n.key[0]]
	if values == nil {
		values = make(map[name]value)
		s.values[n.key[0]] = values
	}
	old, found := values[n]
	if found {
		s.free(n, old)
	} else {
		s.count++
	}
	v := value{expires.UnixMilli(), old.due, s.blocks.add(e.head), uint32(len(e.head))}
	if e.body != nil {
		s.bodies[n] = e.body
		s.bodiesSize += int64(cap(e.body))
	}
	if !found || v.expires < old.due {
		v.due = v.expires
		s.expiries = append(s.expiries, expiry{v.due, n})
		heap.Fix(&s.expiries, len(s.expiries)-1) // heap.Push would allocate
		s.scheduleSweep(now)
	}
	values[n] = v
}

// remove removes a value.
func (s *Store) remove(n name, v value) {
	s.free(n, v)
	s.count--
	values := s.values[n.key[0]]
	if delete(values, n); len(values) == 0 {
		s.values[n.key[0]] = nil // a map does not shrink
	}
}

// free removes what a value refers to.
func (s *Store) free(n name, v value) {
	s.blocks.remove(v.first)
	if n.token == 0 {
		delete(s.claims, n.key)
	} else {
		s.bodiesSize -= int64(cap(s.bodies[n]))
		delete(s.bodies, n)
	}
}

const (
	// limit/reserveDivisor is the part of the limit that new keys leave to the responses of
	// runs in flight.
	reserveDivisor = 8
	blockCost      = int64(unsafe.Sizeof(block{}))
	valueCost      = int64(unsafe.Sizeof(name{})+unsafe.Sizeof(value{})) * 3 / 2 // a map is never full
	expiryCost     = int64(unsafe.Sizeof(expiry{})) * 9 / 8
	// claimCost estimates the bytes of a run in flight: a value, its record and the texts in it.
	claimCost = 1 << 10
)

// size estimates how many bytes of the heap the store takes.
func (s *Store) size() int64 {
	return int64(s.count)*valueCost + int64(len(s.expiries))*expiryCost + int64(len(s.claims))*claimCost +
		s.blocks.used*blockCost + s.bodiesSize
}

// cost estimates by how many bytes the response increases size.
func (r encoded) cost() int64 {
	return valueCost + expiryCost + (int64(len(r.head)/len(block{}.bytes))+1)*blockCost + int64(cap(r.body))
}

// makeRoom reports whether the store can grow by so many bytes within the limit. If necessary, it
// removes expired values.
func (s *Store) makeRoom(bytes, limit int64, now time.Time) bool {
	for s.size()+bytes > limit {
		if !s.removeExpired(now) {
			return false
		}
	}
	return true
}
