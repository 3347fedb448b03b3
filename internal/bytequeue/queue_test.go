package bytequeue

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"
)

// model is a queue as it has to be: the strings from the oldest on, with their positions.
type model struct {
	at      []Position
	strings [][]byte
}

func (m *model) check(t *testing.T, q *Queue) {
	t.Helper()
	at, is := q.Oldest()
	for i, want := range m.strings {
		if !is || at != m.at[i] || !bytes.Equal(q.At(at), want) {
			t.Fatalf("string %d of %d: at %d, there: %v, want at %d", i, len(m.strings), at, is, m.at[i])
		}
		at, is = q.Next(at)
	}
	if len(m.strings) > 0 && is || len(m.strings) == 0 && (is || q.Bytes() != 0) {
		t.Fatalf("the queue has more than %d strings, or %d bytes without one", len(m.strings), q.Bytes())
	}
}

func add(t *testing.T, q *Queue, content []byte) Position {
	t.Helper()
	at, room := q.Add(len(content))
	if len(room) != len(content) || cap(room) != len(content) {
		t.Fatalf("a string of %d bytes has room for %d of %d", len(content), len(room), cap(room))
	}
	copy(room, content)
	return at
}

// Whatever is added and removed, the queue has what a list would have, in no more memory
// than it says, and two blocks.
func TestQueueIsAList(t *testing.T) {
	sizes := map[string]func(r *rand.Rand) int{
		"small":          func(r *rand.Rand) int { return 1 + r.IntN(2000) },
		"large":          func(r *rand.Rand) int { return Largest - r.IntN(5) },
		"all":            func(r *rand.Rand) int { return 1 + r.IntN(Largest) },
		"a quarter each": func(*rand.Rand) int { return BlockSize/4 - lengthSize },
		// What is left of the block is 0 to 8 bytes: without room for a length, and with it.
		"nearly a quarter each": func(r *rand.Rand) int { return BlockSize/4 - lengthSize - r.IntN(3) },
		"one byte":              func(*rand.Rand) int { return 1 },
	}
	for name, size := range sizes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			var q Queue
			var m model
			var last Position
			for step := range 4000 {
				grow := step/500%2 == 0 // fuller and emptier in turn
				switch n := r.IntN(10); {
				case n < 3 || n < 7 && grow:
					content := make([]byte, size(r))
					for i := range content {
						content[i] = byte(r.Uint32())
					}
					at := add(t, &q, content)
					if len(m.at) > 0 && at <= last {
						t.Fatalf("a string lies at %d, after the one at %d", at, last)
					}
					last = at
					m.at, m.strings = append(m.at, at), append(m.strings, content)
				case len(m.at) > 0:
					i := 0
					if step%3 == 0 { // from the middle
						i = r.IntN(len(m.at))
					}
					q.Remove(m.at[i])
					m.at, m.strings = slices.Delete(m.at, i, i+1), slices.Delete(m.strings, i, i+1)
				}
				if step%50 == 0 || len(m.at) < 4 {
					m.check(t, &q)
				}
				if taken := q.Taken(); taken > q.Bytes()+3*BlockSize {
					t.Fatalf("%d bytes are taken for %d", taken, q.Bytes())
				}
			}
			q.Free()
			if taken := q.Taken(); taken != 0 {
				t.Errorf("%d bytes are left after Free", taken)
			}
			if at := add(t, &q, []byte("again")); at <= last {
				t.Errorf("after Free a string lies at %d, where one was before: the last one at %d", at, last)
			}
		})
	}
}

// A queue that is always as long as before takes no more memory.
func TestQueueUsesItsBlocksAgain(t *testing.T) {
	var q Queue
	content := make([]byte, 1000)
	for range 300 {
		add(t, &q, content)
	}
	var most int64
	for n := range 3000 {
		add(t, &q, content)
		oldest, _ := q.Oldest()
		q.Remove(oldest)
		if n == 300 {
			most = q.Taken()
		}
		if n > 300 && q.Taken() > most {
			t.Fatalf("after %d more strings, %d bytes are taken, and %d before", n, q.Taken(), most)
		}
	}
}

// A string that stays while all that came after it has gone keeps its own block alone.
func TestOldStringKeepsItsBlockAlone(t *testing.T) {
	var q Queue
	old := add(t, &q, []byte("old"))
	content := make([]byte, 8<<10)
	const rounds = 10_000
	for _, later := range []int{0, 20} { // strings, until one is removed
		var few []Position
		for range rounds {
			if few = append(few, add(t, &q, content)); len(few) > later {
				q.Remove(few[0])
				few = few[1:]
			}
		}
		for _, at := range few {
			q.Remove(at)
		}
	}
	if at, is := q.Oldest(); at != old || !is || string(q.At(at)) != "old" {
		t.Errorf("the oldest is at %d: %v", at, is)
	}
	if taken := q.Taken(); taken > 4*BlockSize {
		t.Errorf("%d bytes are taken", taken)
	}
	if room := q.Bytes(); room > 3*BlockSize+2*rounds/7*blockSize {
		t.Errorf("there are %d bytes from the oldest string on", room)
	}
	q.Remove(old)
	if room := q.Bytes(); room != 0 || len(q.blocks) > 1 {
		t.Errorf("without a string there are %d bytes in %d blocks", room, len(q.blocks))
	}
}
