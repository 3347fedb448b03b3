package main

import (
	"crypto/sha256"
	"encoding/binary"
	"math/rand/v2"
)

// entry is what is written for one key, in the sizes that the file store has: a key of 32
// bytes, a claim, and a record with its response.
type entry struct {
	key    [32]byte
	claim  []byte
	record []byte
	// expiry is the key of the entry in the order of time.
	expiry [40]byte
}

const (
	claimSize  = 200
	recordSize = 200 + 512
)

func entryOf(n uint64) entry {
	e := entry{key: keyOf(n)}
	// What cannot be compressed takes the most room.
	random := rand.NewChaCha8(e.key)
	value := make([]byte, claimSize+recordSize)
	_, _ = random.Read(value) // never fails
	e.claim, e.record = value[:claimSize], value[claimSize:]
	binary.BigEndian.PutUint64(e.expiry[:8], n)
	copy(e.expiry[8:], e.key[:])
	return e
}

func keyOf(n uint64) [32]byte { return sha256.Sum256(binary.BigEndian.AppendUint64(nil, n)) }

// expires is the moment in the expiry, as a number.
func (e entry) expires() int64 { return int64(binary.BigEndian.Uint64(e.expiry[:8])) }
