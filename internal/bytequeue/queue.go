// Package bytequeue keeps byte strings in large blocks: the garbage collector has few objects
// to find, and nothing to look at in them.
package bytequeue

import (
	"encoding/binary"
	"unsafe"
)

// Queue keeps byte strings in the order in which they were added, in blocks. It is made for
// the oldest one to be removed first. What is removed before older ones leaves its room only
// with its whole block. The zero value is an empty queue. It must not be used by two
// goroutines at the same time.
type Queue struct {
	// blocks has those from the first that is in use on; spare is one that was given back.
	blocks []block
	spare  []byte
	// emptied is how many of blocks were given back because all their strings were removed.
	emptied int64
	// first is the number of blocks[0].
	first uint64
	// oldest is where the oldest string begins, and end where the next one does. They are
	// the same if there is none.
	oldest, end Position
}

// block has so many strings that were not removed. Without bytes it was given back.
type block struct {
	bytes   []byte
	strings int
}

// blockSize is what a block takes besides its bytes, in a list that may have twice the room.
const blockSize = 2 * int64(unsafe.Sizeof(block{}))

// Position is where a string of a queue lies. No two strings of a queue ever have the same,
// and one that was added later has a larger one.
type Position uint64

const (
	// BlockSize is how many bytes a block has. A string does not go beyond the end of one.
	BlockSize = 64 << 10
	// Largest is how many bytes a string can have.
	Largest = 8 << 10

	// lengthSize is the room for the length of a string, in front of it. A length of 0 says
	// that the block has no more strings.
	lengthSize = 4
	// removed is added to the length of a string that was removed.
	removed = 1 << 31
)

func (p Position) block() uint64 { return uint64(p) / BlockSize }
func (p Position) offset() int   { return int(p % BlockSize) }

// next is the beginning of the next block.
func (p Position) next() Position { return Position((p.block() + 1) * BlockSize) }

// Add adds a string of n bytes, from 1 to [Largest], and returns its room, to be written to.
func (q *Queue) Add(n int) (at Position, room []byte) {
	at = q.end
	if rest := BlockSize - at.offset(); rest < lengthSize+n {
		at = at.next()
	}
	if at.block()-q.first == uint64(len(q.blocks)) {
		q.addBlock()
	}
	q.closeBlock(at)
	binary.LittleEndian.PutUint32(q.from(at), uint32(n))
	q.blockOf(at).strings++
	q.end = at + lengthSize + Position(n)
	return at, q.At(at)
}

// closeBlock notes that the block of the end has no more strings, if the next one begins in
// another block.
func (q *Queue) closeBlock(next Position) {
	if next == q.end {
		return
	}
	if q.oldest == q.end {
		q.oldest = next
	} else if of := q.blockOf(q.end); of.strings == 0 {
		q.empty(of)
		return
	}
	if BlockSize-q.end.offset() >= lengthSize {
		binary.LittleEndian.PutUint32(q.from(q.end), 0)
	}
}

func (q *Queue) addBlock() {
	bytes := q.spare
	if q.spare = nil; bytes == nil {
		bytes = make([]byte, BlockSize)
	}
	q.blocks = append(q.blocks, block{bytes: bytes})
}

// from returns the rest of the block from a position on.
func (q *Queue) from(at Position) []byte { return q.blockOf(at).bytes[at.offset():] }

func (q *Queue) blockOf(at Position) *block { return &q.blocks[at.block()-q.first] }

func (q *Queue) length(at Position) uint32 { return binary.LittleEndian.Uint32(q.from(at)) }

// At returns the string at a position, until it is removed.
func (q *Queue) At(at Position) []byte {
	block := q.from(at)
	n := lengthSize + int(binary.LittleEndian.Uint32(block))
	return block[lengthSize:n:n]
}

// Oldest returns the string that was added before all others, and whether there is one.
func (q *Queue) Oldest() (Position, bool) { return q.oldest, q.oldest != q.end }

// Next returns the string that was added after the one at a position, and whether there is
// one.
func (q *Queue) Next(at Position) (Position, bool) {
	for at += lengthSize + Position(q.length(at)&^removed); at != q.end; {
		switch {
		case q.blockOf(at).bytes == nil, BlockSize-at.offset() < lengthSize, q.length(at) == 0:
			at = at.next()
		case q.length(at)&removed != 0:
			at += lengthSize + Position(q.length(at)&^removed)
		default:
			return at, true
		}
	}
	return at, false
}

// Remove removes the string at a position, which must be there.
func (q *Queue) Remove(at Position) {
	binary.LittleEndian.PutUint32(q.from(at), q.length(at)|removed)
	if at == q.oldest {
		q.oldest, _ = q.Next(at)
	}
	of := q.blockOf(at)
	if of.strings--; of.strings == 0 && at.block() < q.end.block() {
		q.empty(of)
	}
	for ; q.first < q.oldest.block(); q.first++ {
		if first := &q.blocks[0]; first.bytes != nil {
			q.empty(first)
		}
		q.emptied--
		q.blocks = q.blocks[1:]
	}
}

// empty takes the bytes of a block, and keeps the last ones for the next block.
func (q *Queue) empty(of *block) {
	q.spare, of.bytes = of.bytes, nil
	q.emptied++
}

// Bytes is how much room there is from the oldest string on, without the blocks that were
// given back.
func (q *Queue) Bytes() int64 { return int64(q.end-q.oldest) - q.emptied*(BlockSize-blockSize) }

// Taken is how much room the blocks have, with the one that is kept for the next strings.
func (q *Queue) Taken() (bytes int64) {
	for _, block := range q.blocks {
		bytes += int64(len(block.bytes))
	}
	return bytes + int64(len(q.spare))
}

// Free removes all strings, and lets all blocks go.
func (q *Queue) Free() {
	// What is added next has a position that no string has had.
	end := q.end
	if end.offset() > 0 {
		end = end.next()
	}
	*q = Queue{first: end.block(), oldest: end, end: end}
}
