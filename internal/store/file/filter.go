package file

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// keyFilter is a Bloom filter of the keys in the database. Most requests have a new key, and looking it
// up in pebble would be a third of the store's work for a first delivery.
//
// A key sets four bits of one word; word and bits are parts of the key, which is a hash. Keys cannot be
// removed from the filter, so a full one is rebuilt without those that have expired.
type keyFilter struct {
	current atomic.Pointer[filterBits] // nil until the first one is built; then no key is known to be new
	next    atomic.Pointer[filterBits] // under construction; else nil
	// rebuildAt is the number of keys at which current counts as full.
	rebuildAt int64
}

type filterBits struct {
	words [filterWords]atomic.Uint64
	keys  atomic.Int64 // added
}

const (
	filterWords    = 1 << 18 // 2 MiB
	filterCapacity = 1 << 21 // keys; a filter that is full does not recognise about 5 % of the new ones
	filterStep     = 4096    // keys between two pauses of rebuild
)

func (b *filterBits) word(key *idempotency.Key) (word *atomic.Uint64, bits uint64) {
	n := binary.LittleEndian.Uint64(key[16:])
	bits = 1<<(n&63) | 1<<(n>>6&63) | 1<<(n>>12&63) | 1<<(n>>18&63)
	return &b.words[binary.LittleEndian.Uint64(key[24:])%filterWords], bits
}

func (b *filterBits) add(key *idempotency.Key) {
	word, bits := b.word(key)
	word.Or(bits)
	b.keys.Add(1)
}

// isNew reports whether the database is known to have nothing of a key. The caller has locked the key.
func (f *keyFilter) isNew(key *idempotency.Key) bool {
	current := f.current.Load()
	if current == nil {
		return false
	}
	word, bits := current.word(key)
	return word.Load()&bits != bits
}

// add adds a key that was written and is still locked. Either add sees a filter under construction, or
// the iterator of rebuild sees the key. add loads next first, because rebuild stores the new filter in
// current before it clears next.
func (f *keyFilter) add(key *idempotency.Key) {
	for _, b := range []*filterBits{f.next.Load(), f.current.Load()} {
		if b != nil {
			b.add(key)
		}
	}
}

// rebuild builds the filter if there is none or it is full. Only the sweeper calls it.
func (f *keyFilter) rebuild(ctx context.Context, db *database) error {
	if current := f.current.Load(); current != nil && current.keys.Load() < f.rebuildAt {
		return nil
	}
	b := new(filterBits)
	f.next.Store(b)
	defer f.next.Store(nil)
	keys := int64(0)
	// Each key has an expiry, and expiries are small.
	err := db.scanExpiries([]byte{expiryTable}, []byte{expiryTable + 1}, func(name []byte) bool {
		key := keyOfExpiry(name)
		b.add(&key)
		keys++
		return keys%filterStep != 0 || pause(ctx, time.Millisecond)
	})
	if err == nil && ctx.Err() == nil {
		f.rebuildAt = max(filterCapacity, 2*keys)
		f.current.Store(b)
	}
	return err
}
