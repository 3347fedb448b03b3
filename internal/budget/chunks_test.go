package budget

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
)

// allocated is how many bytes the pieces take.
func (p *Chunks) allocated() int {
	n := 0
	for _, part := range p.chunks {
		n += cap(part.bytes)
	}
	return n
}

// The bytes that go out are those that came, in pieces of any size, and take room that is
// bounded by their number. A chunk that nobody else holds is used again, and nobody sees another's bytes.
func TestPiecesHoldWhatCame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sizes := []int{0, 1, 10, 511, 4 << 10, 32 << 10, maxChunk - 1, maxChunk, maxChunk + 1, 200_000}
	for round := range 200 {
		var p Chunks
		var came []byte
		if round%3 == 0 {
			p.Reserve(1 + random.IntN(100_000))
		}
		for range random.IntN(12) {
			next := make([]byte, sizes[random.IntN(len(sizes))])
			for i := range next {
				next[i] = byte(random.Uint32())
			}
			came = append(came, next...)
			if round%2 == 0 {
				p.Append(next)
				continue
			}
			for len(next) > 0 {
				room := p.Room(int64(len(next)))
				n := copy(room[:1+random.IntN(len(room))], next)
				p.Grow(n)
				next = next[n:]
			}
		}
		if most := 2*len(came) + minChunk; round%3 != 0 && p.allocated() > most {
			t.Fatalf("round %d: %d bytes take %d", round, len(came), p.allocated())
		}
		if got := bytes.Join(slices.Collect(p.All()), nil); !bytes.Equal(got, came) || p.Len() != len(came) {
			t.Fatalf("round %d: %d bytes are held, and are said to be %d; %d came", round, len(got), p.Len(), len(came))
		}
		for offset := int64(0); offset < p.End; {
			shown := p.at(offset)
			if len(shown) == 0 || !bytes.HasPrefix(came[offset:], shown) {
				t.Fatalf("round %d: other bytes at %d of %d", round, offset, len(came))
			}
			offset += int64(len(shown))
		}
		if round%5 == 0 {
			if joined := p.Join(); !bytes.Equal(joined, came) {
				t.Fatalf("round %d: %d of %d bytes are joined, or others", round, len(joined), len(came))
			}
			continue
		}
		var out []byte
		for p.Len() > 0 {
			to := make([]byte, sizes[1+random.IntN(len(sizes)-1)])
			out = append(out, to[:p.Take(to)]...)
		}
		if !bytes.Equal(out, came) || p.allocated() > maxChunk && round%3 != 0 {
			t.Fatalf("round %d: %d of %d bytes were taken, %d are allocated", round, len(out), len(came), p.allocated())
		}
	}
}

// What somebody else has is never used again for other bytes.
func TestSharedPiecesAreNotUsedAgain(t *testing.T) {
	shown := func(p *Chunks) (shown [][]byte) {
		for offset := int64(0); offset < p.End; offset += int64(len(shown[len(shown)-1])) {
			shown = append(shown, p.From(offset))
		}
		return shown
	}
	joined := func(p *Chunks) [][]byte { return [][]byte{p.Join()} }
	for name, c := range map[string]struct {
		size int
		show func(*Chunks) [][]byte
	}{
		"shown":                {4 * maxChunk, shown},
		"joined, of one chunk": {maxChunk, joined},
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // the pool drops some of what it gets under the race detector
				var p Chunks
				p.Append(bytes.Repeat([]byte("a"), c.size))
				shown := c.show(&p)
				p.Join()
				p.Drop()
				var other Chunks
				other.Append(bytes.Repeat([]byte("b"), c.size))
				if got := bytes.Join(shown, nil); !bytes.Equal(got, bytes.Repeat([]byte("a"), c.size)) {
					t.Fatal("the bytes have changed")
				}
			}
		})
	}
}

// A large body that nobody else has parts of costs nothing but its list of pieces, when
// there was one before.
func TestRoomIsUsedAgain(t *testing.T) {
	const size = 16 * maxChunk
	body := make([]byte, size)
	const times = 200
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range times {
		var p Chunks
		p.Append(body)
		p.Drop()
	}
	runtime.ReadMemStats(&after)
	// The race detector has the pool drop a quarter of what it gets.
	if got := (after.TotalAlloc - before.TotalAlloc) / times; got > size/2 {
		t.Errorf("%d bytes are allocated for each %d", got, size)
	}
}
