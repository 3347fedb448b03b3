package memory

import (
	"container/heap"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// item is one record or one response, with the moment at which it expires.
type item struct {
	key      idempotency.Key
	token    string // of a response
	record   *idempotency.Record
	response *idempotency.Response
	expires  time.Time
	size     int64
	index    int // in the heap
}

func (s *Store) shard(key idempotency.Key) map[idempotency.Key]*entry { return s.shards[key[0]] }

// record returns the record of the key, or nil if it has expired or there is none.
func (s *Store) record(key idempotency.Key, now time.Time) *idempotency.Record {
	if e := s.shard(key)[key]; e != nil && e.record != nil && now.Before(e.record.expires) {
		return e.record.record
	}
	return nil
}

// response returns the response of the run with the token, or nil if it has expired
// or there is none.
func (s *Store) response(key idempotency.Key, token string, now time.Time) *idempotency.Response {
	if e := s.shard(key)[key]; e != nil && e.responses[token] != nil && now.Before(e.responses[token].expires) {
		return e.responses[token].response
	}
	return nil
}

// putRecord replaces the record of the key. If there is no room, it changes nothing
// and returns [idempotency.ErrFull].
func (s *Store) putRecord(key idempotency.Key, record *idempotency.Record, now time.Time) error {
	var old *item
	if e := s.shard(key)[key]; e != nil {
		old = e.record
	}
	return s.replace(old, &item{key: key, record: record, expires: record.Expires, size: recordSize(record)}, now)
}

// putResponse keeps the response of the run with the token. If there is no room, it
// changes nothing and returns [idempotency.ErrFull].
func (s *Store) putResponse(key idempotency.Key, token string, response *idempotency.Response, expires, now time.Time) error {
	var old *item
	if e := s.shard(key)[key]; e != nil {
		old = e.responses[token]
	}
	return s.replace(old, &item{key: key, token: token, response: response, expires: expires, size: responseSize(token, response)}, now)
}

func (s *Store) replace(old, next *item, now time.Time) error {
	grows := next.size
	if old != nil {
		grows -= old.size
	}
	if grows > 0 && s.size+grows > s.limit {
		// Make room by removing what has expired. That may remove the old item too.
		s.removeExpired(now, len(s.expires))
		if old != nil && old.index < 0 {
			old, grows = nil, next.size
		}
		if s.size+grows > s.limit {
			return idempotency.ErrFull
		}
	}
	s.remove(old)
	e := s.shard(next.key)[next.key]
	if e == nil {
		e = new(entry)
		s.shard(next.key)[next.key] = e
	}
	switch {
	case next.record != nil:
		e.record = next
	case e.responses == nil:
		e.responses = map[string]*item{next.token: next}
	default:
		e.responses[next.token] = next
	}
	heap.Push(&s.expires, next)
	s.size += next.size
	return nil
}

// remove takes an item out of its map and out of the heap. For nil it does nothing.
func (s *Store) remove(i *item) {
	if i == nil {
		return
	}
	e := s.shard(i.key)[i.key]
	if i.record != nil {
		e.record = nil
	} else {
		delete(e.responses, i.token)
	}
	if e.record == nil && len(e.responses) == 0 {
		delete(s.shard(i.key), i.key)
	}
	heap.Remove(&s.expires, i.index)
	s.size -= i.size
}

// perItem is about how many bytes an item takes besides its texts: its structs, and
// its part of the maps and of the heap.
const perItem = 512

// recordSize is about how many bytes a record takes. It counts the record that a
// forced run is meant to replace too, so that there is always room to put it back.
func recordSize(r *idempotency.Record) int64 {
	if r == nil {
		return 0
	}
	texts := len(r.Token) + len(r.ExecutionID) + len(r.ParentID) + len(r.Fingerprint) + len(r.Provider) + len(r.DeliveryID)
	return perItem + int64(texts) + recordSize(r.Replaces)
}

func responseSize(token string, r *idempotency.Response) int64 {
	size := perItem + len(token) + len(r.Body)
	for name, values := range r.Header {
		size += 64 + len(name)
		for _, value := range values {
			size += 16 + len(value)
		}
	}
	return int64(size)
}

func copyRecord(r *idempotency.Record) *idempotency.Record {
	if r == nil {
		return nil
	}
	next := *r
	next.Replaces = copyRecord(r.Replaces)
	return &next
}

func copyResponse(r *idempotency.Response) *idempotency.Response {
	if r == nil {
		return nil
	}
	next := *r
	next.Body = append([]byte(nil), r.Body...)
	if r.Header != nil {
		next.Header = make(map[string][]string, len(r.Header))
		for name, values := range r.Header {
			next.Header[name] = append([]string(nil), values...)
		}
	}
	return &next
}
