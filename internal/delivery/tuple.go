package delivery

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

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
