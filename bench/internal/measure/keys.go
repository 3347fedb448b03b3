package measure

import (
	"crypto/rand"
	"encoding/hex"
	"sync/atomic"
)

// keys are the idempotency keys of a run. They have the form of a UUID, as most clients
// send them, and as Fiber's middleware wants them.
type keys struct {
	run  [4]byte // no two runs share keys, should they ever share a store
	next atomic.Uint64
}

func newKeys() *keys {
	k := new(keys)
	_, _ = rand.Read(k.run[:]) // never fails
	return k
}

func (k *keys) name(n uint64) string {
	var raw [16]byte
	copy(raw[:], k.run[:])
	raw[6] = 0x40 // version 4
	raw[8] = 0x80
	for i := range 6 {
		raw[15-i] = byte(n >> (8 * i))
	}
	var text [36]byte
	hex.Encode(text[0:8], raw[0:4])
	hex.Encode(text[9:13], raw[4:6])
	hex.Encode(text[14:18], raw[6:8])
	hex.Encode(text[19:23], raw[8:10])
	hex.Encode(text[24:36], raw[10:16])
	text[8], text[13], text[18], text[23] = '-', '-', '-', '-'
	return string(text[:])
}

// fresh are keys that nobody has had.
func (k *keys) fresh(int64) string { return k.name(k.next.Add(1)) }

// none is the key of requests without one.
func (k *keys) none(int64) string { return "" }

// some returns n keys that nobody has had, which then come again and again.
func (k *keys) some(n int) func(int64) string {
	first := k.next.Add(uint64(n)) - uint64(n) + 1
	return func(i int64) string { return k.name(first + uint64(i)%uint64(n)) }
}
