package engine

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// CopyBound is how long a copy answers duplicates by itself after the store has last
// confirmed it. So it is also the time within which all replicas see what an operator
// has freed or forgotten on another one, or what a forced run has replaced there.
const CopyBound = 5 * time.Second

// Copies are complete records of this process with their responses, so that a duplicate
// is answered without asking the store. All engines of a process share them, and their
// limit. They are let go in the order in which they were last used.
//
// It is written by hand because libraries that count bytes (otter, ristretto) admit by
// frequency: nearly all keys are asked for once or twice, and soon after their run, and so
// most of their duplicates would find that the copy was not admitted. The numbers of drops
// need one lock with the entries, too.
type Copies struct {
	mu   sync.Mutex
	most int64 // bytes; 0 keeps none
	// entries are the copies with objects of their own, which take so many bytes: those of
	// which one was asked for, and large ones. A key has a copy either here or in encoded.
	entries   map[copyOf]*copied
	ofEntries int64
	// recent is before the first of a ring of them: the one that was used last comes first.
	recent  copied
	encoded encodedCopies
	// uses counts how often a copy was made or used, and owners the engines.
	uses, owners uint64
}

// NewCopies returns copies of at most so many bytes; with 0 there are none.
func NewCopies(most int64) *Copies {
	c := &Copies{most: max(most, 0), entries: make(map[copyOf]*copied)}
	c.recent.before, c.recent.after = &c.recent, &c.recent
	return c
}

// SetLimit changes how many bytes there are at most. What is over it is let go at once;
// with 0 that is everything.
func (c *Copies) SetLimit(most int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.most = max(most, 0)
	if c.most == 0 { // maps do not become smaller
		c.entries, c.ofEntries = make(map[copyOf]*copied), 0
		c.recent.before, c.recent.after = &c.recent, &c.recent
		c.encoded.free()
	}
	c.shrinkLocked()
}

// holds reports whether there is room for a copy of so many bytes, beside others or in
// their place.
func (c *Copies) holds(size int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return size <= c.most
}

// Bytes returns how many bytes the copies take.
func (c *Copies) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.heldLocked()
}

func (c *Copies) heldLocked() int64 { return c.ofEntries + c.encoded.bytes() }

// mostOfNew returns which part of a limit new keys may take: three eighths. The rest is left to
// copies of which one was asked for. Most keys never are, and however many of them come, they
// take no more; with the garbage that the collector allows for it, that is twice as much
// memory.
func mostOfNew(limit int64) int64 { return limit / 8 * 3 }

// shrinkLocked lets go what was not used for the longest time, until the rest is within the
// limit.
func (c *Copies) shrinkLocked() {
	for c.encoded.bytes() > mostOfNew(c.most) && len(c.encoded.index) > 1 {
		oldest, _, _ := c.encoded.oldest()
		c.encoded.remove(oldest)
	}
	for c.heldLocked() > c.most {
		last := c.recent.before // c.recent itself if there is none, with no uses
		at, used, is := c.encoded.oldest()
		if is && (last == &c.recent || used < last.used) {
			c.encoded.remove(at)
		} else {
			c.removeLocked(last)
		}
	}
}

func (c *Copies) removeLocked(gone *copied) {
	gone.unlink()
	delete(c.entries, gone.of)
	c.ofEntries -= gone.size
}

// dropLocked lets the copy of a key go.
func (c *Copies) dropLocked(of copyOf) {
	if last := c.entries[of]; last != nil {
		c.removeLocked(last)
	} else if at, is := c.encoded.at(of); is {
		c.encoded.remove(at)
	}
}

// putLocked puts a copy among the entries, in the place of the one of the same key, if there is one.
func (c *Copies) putLocked(next *copied) {
	c.dropLocked(next.of)
	c.ofEntries += next.size
	c.entries[next.of] = next
	c.usedLocked(next)
	c.shrinkLocked()
}

// usedLocked makes a copy, which is in no place of the ring, the first of it.
func (c *Copies) usedLocked(first *copied) {
	c.uses++
	first.used = c.uses
	first.before, first.after = &c.recent, c.recent.after
	first.before.after, first.after.before = first, first
}

// unlink takes a copy out of the ring.
func (c *copied) unlink() {
	c.before.after, c.after.before = c.after, c.before
}

// ownCopies are the copies of one engine. The lock of the Copies guards them.
type ownCopies struct {
	all    *Copies
	number uint64 // from 1 on; no two engines of a process have the same
	closed bool
	// drops counts how often a copy was dropped, of all keys that share a place. What was
	// read before a drop must not become a copy after it. They are changed under the lock.
	drops [places]atomic.Uint32
}

// own returns the copies of one more engine.
func (c *Copies) own() *ownCopies {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.owners++
	return &ownCopies{all: c, number: c.owners}
}

// reading is a time at which the store is asked about a key.
type reading struct {
	of    copyOf
	drops uint32
	asked time.Time
}

// begin notes that the store is about to be asked.
func (o *ownCopies) begin(key idempotency.Key) reading {
	return reading{of: copyOf{o, key}, drops: o.drops[placeOf(key)].Load(), asked: time.Now()}
}

// places is how many counts of drops there are. With more of them, fewer responses are not
// copied because another key was dropped.
const places = 4096

// placeOf returns the place of a key in the counts of drops. A key is a hash.
func placeOf(key idempotency.Key) int {
	return int(binary.LittleEndian.Uint16(key[len(key)-2:])) % places
}

// keep makes a copy of what was read, or settled: a complete record, which had so much of
// its retention left when the store was asked. The copy takes so many bytes. It
// does nothing if a copy of the key was dropped since.
func (o *ownCopies) keep(read reading, form copyForm, life time.Duration, size int64) {
	o.all.mu.Lock()
	defer o.all.mu.Unlock()
	if o.mayKeepLocked(read, size) {
		o.all.putLocked(&copied{of: read.of, asked: instantOf(read.asked), life: life, size: size, copyForm: form})
	}
}

// keepEncoded is keep for a copy that is to be packed, which needs no allocation.
func (o *ownCopies) keepEncoded(read reading, f encodedForm, body []byte, life time.Duration) {
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	if !o.mayKeepLocked(read, int64(sizeOfEncoded+len(f.parts)+len(body))) {
		return
	}
	c.dropLocked(read.of)
	c.uses++
	c.encoded.put(read, f, body, life, c.uses)
	c.shrinkLocked()
}

// mayKeepLocked reports whether what was read may become a copy, of so many bytes.
func (o *ownCopies) mayKeepLocked(read reading, size int64) bool {
	switch {
	case o.closed, read.drops != o.drops[placeOf(read.of.key)].Load():
		return false
	case size > o.all.most:
		o.all.dropLocked(read.of) // what is there is older
		return false
	default:
		return true
	}
}

// find returns the copy of a key, nil if there is none, and its age. One whose retention is
// over is there no more.
func (o *ownCopies) find(key idempotency.Key) (found *copied, age time.Duration) {
	c, of := o.all, copyOf{o, key}
	c.mu.Lock()
	defer c.mu.Unlock()
	if found = c.entries[of]; found != nil {
		found.unlink()
		c.usedLocked(found)
	} else if at, is := c.encoded.at(of); is {
		found = c.encoded.get(of, at)
	} else {
		return nil, 0
	}
	if age = found.asked.age(); age >= found.life {
		c.dropLocked(of)
		return nil, 0
	}
	return found, age
}

// decoded returns a copy that was found as a decoded one, nil if there is none. One that was
// encoded is decoded from now on, unless it has been dropped or replaced since, or would be
// too large then.
func (o *ownCopies) decoded(found *copied) *copied {
	if found == nil || found.record != nil {
		return found
	}
	form, err := found.decode(found.of.key)
	if err != nil { // as of a status that HTTP does not have: the store must be asked
		o.drop(found.of.key)
		return nil
	}
	next := &copied{of: found.of, asked: found.asked, life: found.life, size: sizeOf(form), copyForm: form}
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	if next.size <= c.most && c.hasLocked(found) {
		c.putLocked(next)
	}
	return next
}

// hasLocked reports whether what was found is still the copy of its key.
func (c *Copies) hasLocked(found *copied) bool {
	if !found.packed {
		return c.entries[found.of] == found
	}
	at, is := c.encoded.at(found.of)
	return is && at == found.at
}

// is reports whether the copy of a key is that of this record.
func (o *ownCopies) is(key idempotency.Key, record *idempotency.Record) bool {
	found, _ := o.find(key)
	if found == nil || record.State != idempotency.Complete {
		return false
	}
	copied, err := found.decodeRecord(key)
	return err == nil && record.Token == copied.Token
}

// drop lets the copy of a key go, and keeps what was read before from becoming one.
func (o *ownCopies) drop(key idempotency.Key) {
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	o.drops[placeOf(key)].Add(1)
	c.dropLocked(copyOf{o, key})
}

// dropAll drops the copies of all keys.
func (o *ownCopies) dropAll() {
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	for place := range o.drops {
		o.drops[place].Add(1)
	}
	for of, found := range c.entries {
		if of.owner == o {
			c.removeLocked(found)
		}
	}
	c.encoded.removeOf(o.number)
}

// close drops all, for ever.
func (o *ownCopies) close() {
	o.all.mu.Lock()
	o.closed = true
	o.all.mu.Unlock()
	o.dropAll()
}
