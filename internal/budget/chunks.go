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
	chunks []chunk
	// first is the initial array of chunks: most bodies have only one.
	first [1]chunk
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
func (p *Chunks) Reserve(n int) { p.chunks = append(p.first[:0], chunk{bytes: make([]byte, 0, n)}) }

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
	if len(p.chunks) == 0 {
		p.chunks = p.first[:0]
	} else if last := p.last().bytes; len(last) < cap(last) {
		return last[len(last):]
	}
	var bytes []byte
	if n < maxChunk {
		bytes = make([]byte, 0, n)
	} else {
		bytes = chunkPool.Get().(*[maxChunk]byte)[:0]
	}
	p.chunks = append(p.chunks, chunk{p.End, bytes})
	return bytes
}

// Grow adds the n bytes that were written into the room.
func (p *Chunks) Grow(n int) {
	last := p.last()
	last.bytes = last.bytes[:len(last.bytes)+n]
	p.End += int64(n)
}

func (p *Chunks) last() *chunk { return &p.chunks[len(p.chunks)-1] }

// All returns all bytes, chunk by chunk. None may have been dropped, and the caller must not keep
// them.
func (p *Chunks) All() iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for _, chunk := range p.chunks {
			if len(chunk.bytes) > 0 && !yield(chunk.bytes) {
				return
			}
		}
	}
}

// JoinCost returns how many bytes Join allocates.
func (p *Chunks) JoinCost() int {
	if len(p.chunks) > 1 {
		return p.Len()
	}
	return 0
}

// Join returns all bytes in one slice, which is not changed afterwards. None may have been dropped.
func (p *Chunks) Join() []byte {
	if len(p.chunks) > 1 {
		whole := make([]byte, 0, p.Len())
		for bytes := range p.All() {
			whole = append(whole, bytes...)
		}
		for len(p.chunks) > 0 {
			p.discardFirst()
		}
		p.chunks = append(p.first[:0], chunk{bytes: whole})
	}
	return p.From(0)
}

// From returns the bytes from the offset to the end of its chunk. The caller may keep them.
func (p *Chunks) From(offset int64) []byte {
	p.shared = true
	return p.at(offset)
}

// at is [Chunks.From] for a caller that does not keep the bytes.
func (p *Chunks) at(offset int64) []byte {
	n := sort.Search(len(p.chunks), func(n int) bool { return p.chunks[n].at > offset })
	if n == 0 {
		return nil
	}
	in := p.chunks[n-1]
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
	for len(p.chunks) > 0 && p.chunks[0].at+int64(len(p.chunks[0].bytes)) <= offset {
		p.discardFirst()
	}
}

func (p *Chunks) discardFirst() {
	if bytes := p.chunks[0].bytes; cap(bytes) == maxChunk && !p.shared {
		chunkPool.Put((*[maxChunk]byte)(bytes[:maxChunk]))
	}
	p.chunks[0] = chunk{}
	p.chunks = p.chunks[1:]
}
