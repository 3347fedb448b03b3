package delivery

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"unicode/utf8"
)

// maxShownID is the maximum length of the first ID in a summary, in bytes.
const maxShownID = 64

// tuple hashes several texts in order, each with its length: otherwise "ab" and "c" would have the
// same hash as "a" and "bc".
type tuple struct{ hash hash.Hash }

// newTuple returns a tuple that starts with a label. Each kind of hash of this module has its own
// label, so hashes of different kinds are never equal.
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

// summary combines several IDs into one. It shows operators their number and the first one; the
// hash over all IDs makes it unique.
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
