package memory

import (
	"errors"
	"hash/maphash"
	"time"
	"unsafe"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// taken is what the store takes of the heap, in bytes: all chunks and pages, however
// much of them is in use, and what does not depend on what is kept.
func (s *Store) taken() int64 {
	return int64(unsafe.Sizeof(*s)) + s.items.bytes + s.index.nodes.bytes + s.log.bytes + s.log.own
}

func (s *Store) budget() int64 { return s.limit - s.taken() }

// reclaimAtOnce is how many items one request looks at, at most, to make room. The
// sweeper removes more.
const reclaimAtOnce = 4096

// fewFree is how much of the chunks must be free, in parts of roomClasses, for a request
// to turn their room into room for something else.
const fewFree = 2

// makeRoom makes sure that there is room for the record of a key, of so many bytes where
// it needs a new place, and for a response. It returns the item of the key, 0 if there
// is none. Where there is no room, what has expired makes some.
func (s *Store) makeRoom(key *idempotency.Key, room int, response stored, now time.Time) (uint32, error) {
	for looked := 0; ; {
		n := s.index.find(key) // what has expired may go, and be this one
		if s.reserve(key, n, room, response) {
			return n, nil
		}
		some := 0
		if looked < reclaimAtOnce {
			some = s.removeExpired(now, 64)
			looked += some
		}
		if some == 0 && !s.log.condense(fewFree) {
			if s.tooLarge(response) {
				return 0, idempotency.ErrTooLarge
			}
			return 0, idempotency.ErrFull
		}
	}
}

func (s *Store) reserve(key *idempotency.Key, n uint32, room int, response stored) bool {
	items, nodes, bytes, slots, own := 0, 0, 0, 0, int64(0)
	if n == 0 {
		items, nodes = 1, s.index.nodesFor(key)
	}
	if n == 0 || s.tooSmall(n, len(s.scratch)) {
		if room > largest {
			own += ownBytes(room, 0)
		} else {
			bytes, slots = room, 1
		}
	}
	if response.head != nil {
		items++
		if response.body != nil {
			own += ownBytes(cap(response.head), cap(response.body))
		} else {
			bytes, slots = bytes+len(response.head), slots+1
		}
	}
	if !s.items.reserve(items, s.budget()) || !s.index.nodes.reserve(nodes, s.budget()) {
		return false
	}
	if slots > 0 && !s.log.reserve(bytes, slots, s.budget()-own) {
		return false
	}
	return own == 0 || own <= s.budget()
}

// tooLarge reports whether it is no use to wait for room for a response, because there may
// be none even when all else has expired. A store that was full once and is empty now takes
// more than a new one: the pages and the chunk that stay, and the one with the record of
// this key.
func (s *Store) tooLarge(response stored) bool {
	if response.head == nil {
		return false
	}
	least := int64(unsafe.Sizeof(*s)) + 2*s.items.pageBytes() + 2*s.index.nodes.pageBytes() + 2*chunkSize
	if response.body != nil {
		stays := max(powerOfTwo(2*largest), min(powerOfTwo(int(s.limit/16)), mostChunk))
		return least+int64(stays)+ownBytes(cap(response.head), cap(response.body)) > s.limit
	}
	// A chunk that stays has room for the response, or is no larger than the one for it.
	size := powerOfTwo(len(response.head) + slotHead)
	// Any store that can take a key at all takes the smallest chunk at some time.
	return size > leastChunk && least+2*int64(size) > s.limit
}

// An end of a run that found no room is tried again by its engine, every few seconds.
// endWaits is how long it counts as one that waits after a try: longer than any pause
// between two tries, so that a machine under load does not look like one that has given up.
const endWaits = 10 * time.Second

// waitingEnds are the ends of runs that wait for room: for each, by a hash of the token of
// its run, until when it counts as one that waits (a Unix time in milliseconds). There are
// at most as many as runs were in flight when the store became full, because while there is
// one, no new key is taken: a claim still fits where the response of its run does not.
type waitingEnds map[uint64]int64

// any reports whether an end waits. It drops those that nobody tries any more.
func (w waitingEnds) any(now time.Time) bool {
	for token, until := range w {
		if now.UnixMilli() < until {
			return true
		}
		delete(w, token)
	}
	return false
}

// noteEnd notes what has become of a try to store the end of a run.
func (s *Store) noteEnd(token string, err error, now time.Time) {
	full := errors.Is(err, idempotency.ErrFull)
	switch {
	case !full && len(s.waiting) == 0:
		return
	case full && s.waiting == nil:
		s.waiting = make(waitingEnds)
	}
	hash := maphash.String(s.seed, token)
	if !full {
		delete(s.waiting, hash)
		return
	}
	s.waiting[hash] = now.Add(endWaits).UnixMilli()
}
