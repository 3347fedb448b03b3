package memory

import (
	"encoding/binary"
	"math/bits"
	"unsafe"
)

// byteLog keeps byte strings in chunks, one behind the other. What is removed leaves a
// gap. A chunk that is half gaps is closed up and filled again before another one is
// allocated, and if no more may be allocated, so is the chunk with the most gaps. So the
// work for one string is bounded by the size of a chunk, however much is kept.
//
// In a chunk, each string has a slot:
//
//	number of its item, 4 bytes, 0 for a gap | room, 4 bytes | as many bytes as there is room
//
// A string of more than [largest] bytes has an allocation of its own.
type byteLog struct {
	// chunks are by their numbers. There is none with the number 0.
	chunks []chunk
	// dropped are the numbers of chunks that were given back.
	dropped []uint32
	// head is the chunk that is being filled, 0 if there is none.
	head uint32
	// roomy are lists of the chunks by how much of them is free, in parts of
	// roomClasses: their first chunks.
	roomy [roomClasses + 1]uint32
	// bytes is what the chunks take, free how much of that is no live string, and own what
	// the strings with allocations of their own take.
	bytes, free, own int64
	// moved is told where the string of an item lies now.
	moved func(item uint32, to place)
}

const (
	slotHead    = 8
	largest     = 32 << 10
	heapPage    = 8 << 10
	leastChunk  = 4 << 10
	mostChunk   = 256 << 10
	roomClasses = 16
	// halfFree is the class of chunks of which half is free.
	halfFree = roomClasses / 2
)

// place is where a string lies.
type place struct{ chunk, offset uint32 }

type chunk struct {
	buf []byte
	// body is the second part of a string that has an allocation of its own.
	body []byte
	own  bool
	// end is where the next slot begins; live are the bytes of slots that are no gaps.
	end, live int
	// class, before and after are its place in the lists by free room.
	class         int
	before, after uint32
}

const chunkSize = int64(unsafe.Sizeof(chunk{}))

func (c *chunk) freeBytes() int { return len(c.buf) - c.live }

func newByteLog(moved func(item uint32, to place)) byteLog {
	return byteLog{chunks: make([]chunk, 1), moved: moved}
}

// reserve makes sure that the head has room for strings of n bytes in so many slots,
// and reports whether it could do that with at most so many bytes more. n is at most
// twice [largest].
func (l *byteLog) reserve(n, slots int, budget int64) bool {
	n += slots * slotHead
	if l.head != 0 && l.tail(l.head) >= n {
		return true
	}
	if c := l.roomiest(n, halfFree); c != 0 {
		l.fill(c, n)
		return true
	}
	if size := l.nextChunk(n); int64(size)+chunkSize <= budget {
		l.addChunk(size)
		return true
	}
	if size := powerOfTwo(n); int64(size)+chunkSize <= budget {
		l.addChunk(size)
		return true
	}
	if c := l.roomiest(n, 0); c != 0 {
		l.fill(c, n)
		return true
	}
	return false
}

func (l *byteLog) tail(number uint32) int { return len(l.chunks[number].buf) - l.chunks[number].end }

// nextChunk returns how large the next chunk should be: at most an eighth of what there
// is, so that a small store stays small.
func (l *byteLog) nextChunk(n int) int {
	return max(powerOfTwo(n), min(powerOfTwo(int(l.bytes/16)), mostChunk))
}

func powerOfTwo(n int) int { return max(leastChunk, 1<<bits.Len(uint(max(n-1, 0)))) }

// roomiest returns a chunk of those with the most free room, in a class of at least
// this one, if it has n bytes free; else 0.
func (l *byteLog) roomiest(n, least int) uint32 {
	for class := roomClasses; class >= least; class-- {
		if c := l.roomy[class]; c != 0 && l.chunks[c].freeBytes() >= n {
			return c
		}
	}
	return 0
}

// fill makes a chunk with n free bytes the head.
func (l *byteLog) fill(number uint32, n int) {
	if l.tail(number) < n {
		l.closeUp(number)
	}
	l.head = number
}

// closeUp moves the strings of a chunk together, so that its gaps are room at its end.
func (l *byteLog) closeUp(number uint32) {
	c := &l.chunks[number]
	to := 0
	for from := 0; from < c.end; {
		item, size := c.slot(from)
		if item != 0 {
			if from != to {
				copy(c.buf[to:], c.buf[from:from+size])
				l.moved(item, place{number, uint32(to)})
			}
			to += size
		}
		from += size
	}
	c.end = to
}

// slot returns the item of the slot at an offset, and the size of the slot.
func (c *chunk) slot(at int) (item uint32, size int) {
	return binary.LittleEndian.Uint32(c.buf[at:]), slotHead + int(binary.LittleEndian.Uint32(c.buf[at+4:]))
}

// put returns a new slot with room for n bytes. There must be room in the head.
func (l *byteLog) put(item uint32, n int) place {
	c := &l.chunks[l.head]
	at := place{l.head, uint32(c.end)}
	binary.LittleEndian.PutUint32(c.buf[c.end:], item)
	binary.LittleEndian.PutUint32(c.buf[c.end+4:], uint32(n))
	c.end += slotHead + n
	l.occupy(l.head, slotHead+n)
	return at
}

// putOwn keeps a string in allocations of its own, in one part or two.
func (l *byteLog) putOwn(buf, body []byte) place {
	l.own += ownBytes(cap(buf), cap(body))
	return place{l.addNumber(chunk{buf: buf, body: body, own: true}), 0}
}

// ownBytes is what a string with allocations of its own takes, of which these are the
// sizes: what is large, in whole pages.
func ownBytes(sizes ...int) int64 {
	taken := chunkSize
	for _, size := range sizes {
		if size > largest {
			size = (size + heapPage - 1) &^ (heapPage - 1)
		}
		taken += int64(size)
	}
	return taken
}

// room returns the bytes of the slot, to read or to write.
func (l *byteLog) room(at place) []byte {
	c := &l.chunks[at.chunk]
	if c.own {
		return c.buf
	}
	_, size := c.slot(int(at.offset))
	return c.buf[int(at.offset)+slotHead : int(at.offset)+size : int(at.offset)+size]
}

// body returns the second part of a string with an allocation of its own. Nobody
// changes it, not even after its removal.
func (l *byteLog) body(at place) (body []byte, own bool) {
	c := &l.chunks[at.chunk]
	return c.body, c.own
}

// remove makes a gap of a slot.
func (l *byteLog) remove(at place) {
	c := &l.chunks[at.chunk]
	if c.own {
		l.own -= ownBytes(cap(c.buf), cap(c.body))
		l.dropNumber(at.chunk)
		return
	}
	_, size := c.slot(int(at.offset))
	binary.LittleEndian.PutUint32(c.buf[at.offset:], 0)
	if int(at.offset)+size == c.end {
		c.end = int(at.offset)
	}
	l.occupy(at.chunk, -size)
	switch {
	case c.live > 0:
	case at.chunk == l.head:
		c.end = 0 // the head stays, to be filled again
	default:
		l.dropChunk(at.chunk)
	}
}

// occupy notes that so many bytes of a chunk more are live.
func (l *byteLog) occupy(number uint32, n int) {
	c := &l.chunks[number]
	c.live += n
	l.free -= int64(n)
	if class := c.freeBytes() * roomClasses / len(c.buf); class != c.class {
		l.unlink(number)
		c.class = class
		l.link(number)
	}
}

func (l *byteLog) addChunk(size int) {
	l.bytes += chunkSize + int64(size)
	l.free += int64(size)
	l.head = l.addNumber(chunk{buf: make([]byte, size), class: roomClasses})
	l.link(l.head)
}

func (l *byteLog) dropChunk(number uint32) {
	c := &l.chunks[number]
	l.bytes -= chunkSize + int64(len(c.buf))
	l.free -= int64(len(c.buf))
	l.unlink(number)
	l.dropNumber(number)
}

func (l *byteLog) addNumber(c chunk) uint32 {
	if last := len(l.dropped) - 1; last >= 0 {
		number := l.dropped[last]
		l.dropped = l.dropped[:last]
		l.chunks[number] = c
		return number
	}
	l.chunks = append(l.chunks, c)
	return uint32(len(l.chunks) - 1)
}

func (l *byteLog) dropNumber(number uint32) {
	l.chunks[number] = chunk{}
	l.dropped = append(l.dropped, number)
}

func (l *byteLog) link(number uint32) {
	c := &l.chunks[number]
	c.before, c.after = 0, l.roomy[c.class]
	if c.after != 0 {
		l.chunks[c.after].before = number
	}
	l.roomy[c.class] = number
}

func (l *byteLog) unlink(number uint32) {
	c := &l.chunks[number]
	if c.before != 0 {
		l.chunks[c.before].after = c.after
	} else {
		l.roomy[c.class] = c.after
	}
	if c.after != 0 {
		l.chunks[c.after].before = c.before
	}
}

// condense empties the chunk with the most free room into the others, and reports
// whether it could give it back. It does that only where so many parts of roomClasses
// of all are free.
func (l *byteLog) condense(parts int) bool {
	if l.free*roomClasses < l.bytes*int64(parts) {
		return false
	}
	sparse := uint32(0)
	for class := roomClasses; class >= parts && sparse == 0; class-- {
		if sparse = l.roomy[class]; sparse != 0 && sparse == l.head {
			sparse = l.chunks[sparse].after
		}
	}
	if sparse == 0 {
		return false
	}
	l.unlink(sparse) // so that it is not filled itself
	emptied := l.moveAll(sparse)
	c := &l.chunks[sparse]
	c.class = c.freeBytes() * roomClasses / len(c.buf)
	l.link(sparse)
	if emptied {
		l.dropChunk(sparse)
	}
	return emptied
}

// moveAll moves the strings of a chunk into others, as long as they have room.
func (l *byteLog) moveAll(number uint32) (emptied bool) {
	c := &l.chunks[number]
	for from := 0; from < c.end; {
		item, size := c.slot(from)
		if item != 0 {
			if !l.reserve(size-slotHead, 1, 0) {
				return false
			}
			to := l.put(item, size-slotHead)
			copy(l.room(to), c.buf[from+slotHead:from+size])
			l.moved(item, to)
			binary.LittleEndian.PutUint32(c.buf[from:], 0)
			c.live -= size
			l.free += int64(size)
		}
		from += size
	}
	return true
}
