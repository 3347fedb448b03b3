package budget

import (
	"iter"
	"sort"
	"sync"
)

// Chunks holds bytes in chunks as they come. It does not move them when more come, and
// allocates at most twice as much as has come, and one small chunk.
//
// It is not safe for concurrent use.
type Chunks struct {
	// first is the first chunk, and More are the others. Most bodies have only one.
	first chunk
	More  []chunk
	// The bytes from the offset Start to the offset End are held.
	Start, End int64
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
func (p *Chunks) Len() int { return int(p.End - p.Start) }

// Reserve makes room for n bytes in one chunk. The buffer must be empty.
func (p *Chunks) Reserve(n int) { p.first.bytes = make([]byte, 0, n) }

// Append appends a copy of the bytes.
func (p *Chunks) Append(bytes []byte) {
	for len(bytes) > 0 {
		room := p.room(max(p.Len(), len(bytes)))
		n := copy(room[:cap(room)], bytes)
		p.Grow(n)
		bytes = bytes[n:]
	}
}

// Room returns room for the next bytes, at most maxBytes. The caller adds those that it has written
// with [Chunks.Grow].
func (p *Chunks) Room(maxBytes int64) []byte {
	room := p.room(int(min(maxBytes, int64(max(p.Len(), minChunk)))))
	return room[:min(maxBytes, int64(cap(room)))]
}

// room returns the room behind the last byte. If there is none, it adds a chunk of n bytes, at most
// maxChunk.
func (p *Chunks) room(n int) []byte {
	last := p.last()
	if len(last.bytes) == cap(last.bytes) {
		if len(last.bytes) > 0 {
			p.More = append(p.More, chunk{})
			last = p.last()
		}
		last.at = p.End
		if n < maxChunk {
			last.bytes = make([]byte, 0, n)
		} else {
			last.bytes = chunkPool.Get().(*[maxChunk]byte)[:0]
		}
	}
	return last.bytes[len(last.bytes):]
}

// Grow adds the n bytes that were written into the room.
func (p *Chunks) Grow(n int) {
	last := p.last()
	last.bytes = last.bytes[:len(last.bytes)+n]
	p.End += int64(n)
}

func (p *Chunks) last() *chunk {
	if n := len(p.More); n > 0 {
		return &p.More[n-1]
	}
	return &p.first
}

// All returns all bytes, chunk by chunk. None may have been dropped, and the caller must not keep
// them.
func (p *Chunks) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		if p.Len() == 0 || !yield(p.first.bytes) {
			return
		}
		for _, chunk := range p.More {
			if len(chunk.bytes) > 0 && !yield(chunk.bytes) {
				return
			}
		}
	}
}

// JoinCost returns how many bytes Join allocates.
func (p *Chunks) JoinCost() int {
	if len(p.More) == 0 {
		return 0
	}
	return p.Len()
}

// Join returns all bytes in one slice, which is not changed afterwards. None may have been dropped.
func (p *Chunks) Join() []byte {
	if len(p.More) > 0 {
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

// From returns the bytes from the offset to the end of its chunk. The caller may keep them.
func (p *Chunks) From(offset int64) []byte {
	p.shared = true
	return p.at(offset)
}

// at is [Chunks.From] for a caller that does not keep the bytes.
func (p *Chunks) at(offset int64) []byte {
	n := sort.Search(len(p.More), func(n int) bool { return p.More[n].at > offset })
	in := p.first
	if n > 0 {
		in = p.More[n-1]
	}
	return in.bytes[offset-in.at:]
}

// Take moves the first bytes into to, as many as fit, and returns how many.
func (p *Chunks) Take(to []byte) int {
	n := 0
	for n < len(to) && p.Len() > 0 {
		moved := copy(to[n:], p.at(p.Start))
		p.DropTo(p.Start + int64(moved))
		n += moved
	}
	return n
}

// Drop drops all bytes.
func (p *Chunks) Drop() { p.DropTo(p.End) }

// DropTo drops the bytes before an offset.
func (p *Chunks) DropTo(offset int64) {
	p.Start = offset
	for p.first.bytes != nil && p.first.at+int64(len(p.first.bytes)) <= offset {
		p.discardFirst()
	}
}

func (p *Chunks) discardFirst() {
	if bytes := p.first.bytes; cap(bytes) == maxChunk && !p.shared {
		chunkPool.Put((*[maxChunk]byte)(bytes[:maxChunk]))
	}
	p.first = chunk{at: p.End}
	if len(p.More) > 0 {
		p.first, p.More[0] = p.More[0], chunk{}
		p.More = p.More[1:]
	}
}
