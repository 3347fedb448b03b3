package exchange

import (
	"iter"
	"sort"
	"sync"
)

// chunkBuffer holds bytes in chunks as they come. It does not move them when more come, and
// allocates at most twice as much as has come, and one small chunk.
//
// It is not safe for concurrent use.
type chunkBuffer struct {
	// first is the first chunk, and more are the others. Most bodies have only one.
	first chunk
	more  []chunk
	// The bytes from the offset start to the offset end are held.
	start, end int64
	// shared reports whether others may hold parts of the chunks, whose memory is then not used again.
	shared bool
}

// chunk holds the bytes from the offset at on.
type chunk struct {
	at    int64
	bytes []byte
}

const (
	// minChunk is the size in bytes of the chunk that a sender gets before it has sent anything: its
	// connection alone takes as much.
	minChunk = 4 << 10
	// maxChunk is the size in bytes of the chunks of a large body.
	maxChunk = 64 << 10
)

// chunkPool has chunks of the size maxChunk.
var chunkPool = sync.Pool{New: func() any { return new([maxChunk]byte) }}

// Len returns how many bytes are held.
func (p *chunkBuffer) Len() int { return int(p.end - p.start) }

// Reserve makes room for n bytes in one chunk. The buffer must be empty.
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

// Room returns room for the next bytes, at most maxBytes. The caller adds those that it has written
// with [chunkBuffer.Grow].
func (p *chunkBuffer) Room(maxBytes int64) []byte {
	room := p.room(int(min(maxBytes, int64(max(p.Len(), minChunk)))))
	return room[:min(maxBytes, int64(cap(room)))]
}

// room returns the room behind the last byte. If there is none, it adds a chunk of n bytes, at most
// maxChunk.
func (p *chunkBuffer) room(n int) []byte {
	last := p.last()
	if len(last.bytes) == cap(last.bytes) {
		if len(last.bytes) > 0 {
			p.more = append(p.more, chunk{})
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

// Grow adds the n bytes that were written into the room.
func (p *chunkBuffer) Grow(n int) {
	last := p.last()
	last.bytes = last.bytes[:len(last.bytes)+n]
	p.end += int64(n)
}

func (p *chunkBuffer) last() *chunk {
	if n := len(p.more); n > 0 {
		return &p.more[n-1]
	}
	return &p.first
}

// All returns all bytes, chunk by chunk. None may have been dropped, and the caller must not keep
// them.
func (p *chunkBuffer) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if p.Len() == 0 || !yield(p.first.bytes) {
			return
		}
		for _, chunk := range p.more {
			if len(chunk.bytes) > 0 && !yield(chunk.bytes) {
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

// Join returns all bytes in one slice, which is not changed afterwards. None may have been dropped.
func (p *chunkBuffer) Join() []byte {
	if len(p.more) > 0 {
		whole := make([]byte, 0, p.Len())
		for bytes := range p.All() {
			whole = append(whole, bytes...)
		}
		for p.first.bytes != nil {
			p.discardFirst()
		}
		p.first = chunk{bytes: whole}
	}
	p.shared = true
	return p.first.bytes
}

// from returns the bytes from the offset to the end of its chunk. The caller may keep them.
func (p *chunkBuffer) from(offset int64) []byte {
	p.shared = true
	return p.at(offset)
}

// at is from for a caller that does not keep the bytes.
func (p *chunkBuffer) at(offset int64) []byte {
	n := sort.Search(len(p.more), func(n int) bool { return p.more[n].at > offset })
	in := p.first
	if n > 0 {
		in = p.more[n-1]
	}
	return in.bytes[offset-in.at:]
}

// Take moves the first bytes into to, as many as fit, and returns how many.
func (p *chunkBuffer) Take(to []byte) int {
	n := 0
	for n < len(to) && p.Len() > 0 {
		moved := copy(to[n:], p.at(p.start))
		p.dropTo(p.start + int64(moved))
		n += moved
	}
	return n
}

// Drop drops all bytes.
func (p *chunkBuffer) Drop() { p.dropTo(p.end) }

// dropTo drops the bytes before an offset.
func (p *chunkBuffer) dropTo(offset int64) {
	p.start = offset
	for p.first.bytes != nil && p.first.at+int64(len(p.first.bytes)) <= offset {
		p.discardFirst()
	}
}

func (p *chunkBuffer) discardFirst() {
	if bytes := p.first.bytes; cap(bytes) == maxChunk && !p.shared {
		chunkPool.Put((*[maxChunk]byte)(bytes[:maxChunk]))
	}
	p.first = chunk{at: p.end}
	if len(p.more) > 0 {
		p.first, p.more[0] = p.more[0], chunk{}
		p.more = p.more[1:]
	}
}
