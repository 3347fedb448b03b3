package exchange

import (
	"iter"
	"sort"
	"sync"
)

// chunkBuffer are bytes that are held as they come. What has come is not moved when more
// comes, and the room that is allocated is at most twice what has come, and a little.
//
// They are not safe for use by several goroutines at a time.
type chunkBuffer struct {
	// first is the first piece: most bodies have one alone. more are those behind it.
	first part
	more  []part
	// The bytes from the offset begin to the offset end are held.
	begin, end int64
	// shared reports whether others may have parts of the pieces. Their memory is not used
	// again then.
	shared bool
}

// part is a piece that begins at an offset.
type part struct {
	at    int64
	bytes []byte
}

const (
	// minChunk is how much room a sender has before it has sent anything, in bytes: its
	// connection alone takes as much.
	minChunk = 4 << 10
	// maxChunk is the size of the pieces of a large body, in bytes.
	maxChunk = 64 << 10
)

// chunkPool has room for pieces of the size maxChunk.
var chunkPool = sync.Pool{New: func() any { return new([maxChunk]byte) }}

// Len returns how many bytes are held.
func (p *chunkBuffer) Len() int { return int(p.end - p.begin) }

// Reserve makes room for n bytes in one piece. Nothing may be held yet.
func (p *chunkBuffer) Reserve(n int) { p.first.bytes = make([]byte, 0, n) }

// Append appends a copy of the bytes.
func (p *chunkBuffer) Append(bytes []byte) {
	for len(bytes) > 0 {
		room := p.room(max(p.Len(), len(bytes)))
		n := copy(room[:cap(room)], bytes)
		p.Grow(n)
		bytes = bytes[n:]
	}
}

// Room returns room for the next bytes, of which no more than that many can come.
// [chunkBuffer.Grow] says how many came.
func (p *chunkBuffer) Room(most int64) []byte {
	room := p.room(int(min(most, int64(max(p.Len(), minChunk)))))
	return room[:min(most, int64(cap(room)))]
}

// room returns the room behind the last byte. Where there is none, there is another
// piece then, of n bytes, but not larger than maxChunk.
func (p *chunkBuffer) room(n int) []byte {
	last := p.last()
	if len(last.bytes) == cap(last.bytes) {
		if len(last.bytes) > 0 {
			p.more = append(p.more, part{})
			last = p.last()
		}
		last.at = p.end
		if n < maxChunk {
			last.bytes = make([]byte, 0, n)
		} else {
			last.bytes = chunkPool.Get().(*[maxChunk]byte)[:0]
		}
	}
	return last.bytes[len(last.bytes):]
}

// Grow says that n bytes were written into the room.
func (p *chunkBuffer) Grow(n int) {
	last := p.last()
	last.bytes = last.bytes[:len(last.bytes)+n]
	p.end += int64(n)
}

func (p *chunkBuffer) last() *part {
	if n := len(p.more); n > 0 {
		return &p.more[n-1]
	}
	return &p.first
}

// All goes through the bytes, none of which was dropped. Nobody may keep them.
func (p *chunkBuffer) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if p.Len() == 0 || !yield(p.first.bytes) {
			return
		}
		for _, part := range p.more {
			if len(part.bytes) > 0 && !yield(part.bytes) {
				return
			}
		}
	}
}

// JoinCost returns how many bytes Join allocates.
func (p *chunkBuffer) JoinCost() int {
	if len(p.more) == 0 {
		return 0
	}
	return p.Len()
}

// Join returns all bytes in one piece, none of which was dropped. They stay as they
// are.
func (p *chunkBuffer) Join() []byte {
	if len(p.more) > 0 {
		whole := make([]byte, 0, p.Len())
		for bytes := range p.All() {
			whole = append(whole, bytes...)
		}
		for p.first.bytes != nil {
			p.discardFirst()
		}
		p.first = part{bytes: whole}
	}
	p.shared = true
	return p.first.bytes
}

// from returns bytes from the offset on, as many as lie in one piece.
func (p *chunkBuffer) from(offset int64) []byte {
	p.shared = true
	return p.at(offset)
}

func (p *chunkBuffer) at(offset int64) []byte {
	n := sort.Search(len(p.more), func(n int) bool { return p.more[n].at > offset })
	in := p.first
	if n > 0 {
		in = p.more[n-1]
	}
	return in.bytes[offset-in.at:]
}

// Take moves the first bytes out, as many as there is room for.
func (p *chunkBuffer) Take(to []byte) int {
	n := 0
	for n < len(to) && p.Len() > 0 {
		moved := copy(to[n:], p.at(p.begin))
		p.dropTo(p.begin + int64(moved))
		n += moved
	}
	return n
}

// Drop drops all.
func (p *chunkBuffer) Drop() { p.dropTo(p.end) }

// dropTo drops the bytes before an offset.
func (p *chunkBuffer) dropTo(offset int64) {
	p.begin = offset
	for p.first.bytes != nil && p.first.at+int64(len(p.first.bytes)) <= offset {
		p.discardFirst()
	}
}

func (p *chunkBuffer) discardFirst() {
	if bytes := p.first.bytes; cap(bytes) == maxChunk && !p.shared {
		chunkPool.Put((*[maxChunk]byte)(bytes[:maxChunk]))
	}
	p.first = part{at: p.end}
	if len(p.more) > 0 {
		p.first, p.more[0] = p.more[0], part{}
		p.more = p.more[1:]
	}
}
