package delivery

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"unicode/utf8"
)

// maxShownID is how many bytes of the first ID a summary shows.
const maxShownID = 64

// tuple hashes several texts in their order. It hashes the length of each text too:
// without it, "ab" and "c" would have the same hash as "a" and "bc".
type tuple struct{ hash hash.Hash }

// newTuple returns a tuple that begins with a label. No other hash of this module
// has the same label, so that hashes of different kinds are never equal.
func newTuple(version string) tuple {
	t := tuple{sha256.New()}
	t.write([]byte(version))
	return t
}

func (t tuple) write(text []byte) {
	t.writeCount(len(text))
	t.hash.Write(text)
}

func (t tuple) writeCount(n int) {
	var count [8]byte
	binary.BigEndian.PutUint64(count[:], uint64(n))
	t.hash.Write(count[:])
}

func (t tuple) writeItem(i item) {
	t.write([]byte(i.kind))
	t.write([]byte(i.id))
}

func (t tuple) sum() string { return "sha256:" + hex.EncodeToString(t.hash.Sum(nil)) }

// summary combines several IDs into one. Operators read in it how many there are and
// the first of them. The hash over all IDs is what tells two summaries apart.
func summary(n int, what, first string, all tuple) string {
	if len(first) > maxShownID {
		cut := maxShownID
		for !utf8.RuneStart(first[cut]) {
			cut--
		}
		first = first[:cut] + "…"
	}
	return fmt.Sprintf("%d %s, first %s, %s", n, what, first, all.sum())
}
