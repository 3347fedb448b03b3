package engine

import (
	"bytes"
	"encoding/binary"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/bytequeue"
	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// encodedCopies are copies of runs' ends that no duplicate has asked for yet, packed into
// blocks: most copies never have one. The lock of the Copies guards them.
//
// The oldest one is let go first. What a duplicate asks for is decoded, and has objects of its
// own from then on, so that they are also in the order in which they were last used.
type encodedCopies struct {
	queue bytequeue.Queue
	// index has the copies by hashOf. Of two keys with the same one, the later copy stays.
	index map[uint64]bytequeue.Position
}

// The head of an encoded copy in the queue.
const (
	ownerAt     = 0 // ownCopies.number
	keyAt       = ownerAt + 8
	usedAt      = keyAt + len(idempotency.Key{}) // Copies.uses
	monotonicAt = usedAt + 8                     // asked
	wallAt      = monotonicAt + 8
	lifeAt      = wallAt + 8 // a time.Duration
	recordEndAt = lifeAt + 8
	headEndAt   = recordEndAt + 4
	encodedHead = headEndAt + 4

	// sizeOfIndexed is what an encoded copy takes in the index, in bytes: two words and a
	// byte in each slot of a map, of which at least seven sixteenths are in use.
	sizeOfIndexed = 40
	// sizeOfEncoded is what one takes besides its bytes, with the length in the queue.
	sizeOfEncoded = encodedHead + 4 + sizeOfIndexed
)

func hashOf(owner uint64, key *idempotency.Key) uint64 {
	return binary.LittleEndian.Uint64(key[len(key)-8:]) ^ owner
}

// bytes returns how many bytes they take, with the room that what was dropped among them has
// left.
func (e *encodedCopies) bytes() int64 { return e.queue.Bytes() + int64(len(e.index))*sizeOfIndexed }

// roomFor reports whether a copy with so many bytes can be one of these. A larger body stays
// as it is: to copy it would take longer than the collector needs for one object.
func roomFor(n int) bool { return encodedHead+n <= bytequeue.Largest }

// put adds a copy of a key that has none, at this count of uses.
func (e *encodedCopies) put(read reading, f encodedForm, body []byte, life time.Duration, used uint64) {
	at, room := e.queue.Add(encodedHead + len(f.parts) + len(body))
	le := binary.LittleEndian
	le.PutUint64(room[ownerAt:], read.of.owner.number)
	copy(room[keyAt:], read.of.key[:])
	le.PutUint64(room[usedAt:], used)
	asked := instantOf(read.asked)
	le.PutUint64(room[monotonicAt:], uint64(asked.monotonic))
	le.PutUint64(room[wallAt:], uint64(asked.wall))
	le.PutUint64(room[lifeAt:], uint64(life))
	le.PutUint32(room[recordEndAt:], uint32(f.recordEnd))
	le.PutUint32(room[headEndAt:], uint32(len(f.parts)))
	n := encodedHead + copy(room[encodedHead:], f.parts)
	copy(room[n:], body)
	hash := hashOf(read.of.owner.number, &read.of.key)
	if other, is := e.index[hash]; is { // of another key
		e.remove(other)
	}
	if e.index == nil {
		e.index = make(map[uint64]bytequeue.Position)
	}
	e.index[hash] = at
}

// at returns where the copy of a key lies, and whether there is one.
func (e *encodedCopies) at(of copyOf) (bytequeue.Position, bool) {
	at, is := e.index[hashOf(of.owner.number, &of.key)]
	if !is || e.owner(at) != of.owner.number || e.key(at) != of.key {
		return 0, false
	}
	return at, true
}

func (e *encodedCopies) owner(at bytequeue.Position) uint64 {
	return binary.LittleEndian.Uint64(e.queue.At(at)[ownerAt:])
}

func (e *encodedCopies) key(at bytequeue.Position) idempotency.Key {
	return idempotency.Key(e.queue.At(at)[keyAt:])
}

// get returns what lies at a position, so that it can be read without the lock.
func (e *encodedCopies) get(of copyOf, at bytequeue.Position) *copied {
	raw, le := e.queue.At(at), binary.LittleEndian
	return &copied{
		of: of, packed: true, at: at,
		asked: instant{time.Duration(le.Uint64(raw[monotonicAt:])), int64(le.Uint64(raw[wallAt:]))},
		life:  time.Duration(le.Uint64(raw[lifeAt:])),
		copyForm: copyForm{
			encoded:   bytes.Clone(raw[encodedHead:]),
			recordEnd: int(le.Uint32(raw[recordEndAt:])), headEnd: int(le.Uint32(raw[headEndAt:])),
		},
	}
}

// remove lets the copy at a position go.
func (e *encodedCopies) remove(at bytequeue.Position) {
	key := e.key(at)
	delete(e.index, hashOf(e.owner(at), &key))
	e.queue.Remove(at)
}

// oldest returns the copy that was added before all others, and the count of uses then.
func (e *encodedCopies) oldest() (at bytequeue.Position, used uint64, is bool) {
	if at, is = e.queue.Oldest(); is {
		used = binary.LittleEndian.Uint64(e.queue.At(at)[usedAt:])
	}
	return at, used, is
}

// removeOf lets all copies of an engine go.
func (e *encodedCopies) removeOf(owner uint64) {
	for at, is := e.queue.Oldest(); is; {
		next, more := e.queue.Next(at)
		if e.owner(at) == owner {
			e.remove(at)
		}
		at, is = next, more
	}
	if len(e.index) == 0 {
		e.free() // a map does not become smaller
	}
}

// free lets all copies and their room go.
func (e *encodedCopies) free() {
	e.queue.Free()
	e.index = nil
}
