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
	mu      sync.Mutex
	most    int64 // bytes; 0 keeps none
	held    int64
	entries map[copyOf]*copied
	// recent is before the first of a ring of all copies: the one that was used last comes
	// first.
	recent copied
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
	c.shrinkLocked()
	if c.most == 0 {
		c.entries = make(map[copyOf]*copied) // a map does not become smaller
	}
}

// Bytes returns how many bytes the copies take.
func (c *Copies) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

func (c *Copies) shrinkLocked() {
	for c.held > c.most {
		c.removeLocked(c.recent.before)
	}
}

func (c *Copies) removeLocked(gone *copied) {
	gone.unlink()
	delete(c.entries, gone.of)
	c.held -= gone.size
}

// usedLocked makes a copy, which is in no place of the ring, the first of it.
func (c *Copies) usedLocked(first *copied) {
	first.before, first.after = &c.recent, c.recent.after
	first.before.after, first.after.before = first, first
}

// unlink takes a copy out of the ring.
func (c *copied) unlink() {
	c.before.after, c.after.before = c.after, c.before
}

// copyOf is whose copy it is. Two stores may have a record of the same key.
type copyOf struct {
	owner *ownCopies
	key   idempotency.Key
}

// copied is a record with its response, as the store had it when it was asked. Only its
// place in the ring is changed.
type copied struct {
	before, after *copied // under the lock

	of       copyOf
	record   *idempotency.Record
	response *idempotency.Response
	// asked is when the store was asked that said so.
	asked time.Time
	// life is how much of the retention was left then. It is rather too short than too
	// long: the store's clock was read later.
	life time.Duration
	size int64
}

// now is the time by the clock of the store, when the copy has this age.
func (c *copied) now(age time.Duration) time.Time { return c.record.Expires.Add(age - c.life) }

// ageSince returns the time that has passed. Go's monotonic clock may stand still while the
// machine sleeps, and the wall clock may be set back.
func ageSince(then time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(then), now.Round(0).Sub(then.Round(0)))
}

// What the parts of a copy take besides their texts, in bytes: rather too much than too
// little. TestCopiesTakeWhatTheySay compares it with the heap.
const (
	sizeOfCopy  = 850 // copied, Record, Response, slots of the map
	sizeOfField = 96  // name and values in a map
	sizeOfValue = 16
)

// sizeOfRead is sizeOf for what a store has read. Of a response that was stored in one piece,
// the body is part of all of it: the header's texts are then there once more. Both pieces
// are as large as the allocator makes them, which is up to an eighth more, or some pages.
func sizeOfRead(record *idempotency.Record, response *idempotency.Response) int64 {
	head := 0
	for name, values := range response.Header {
		head += len(name)
		for _, value := range values {
			head += len(value)
		}
	}
	return sizeOf(record, response) + int64(head+min((2*head+cap(response.Body))/8, 16<<10))
}

// sizeOf returns how many bytes a copy takes in memory.
func sizeOf(record *idempotency.Record, response *idempotency.Response) int64 {
	n := sizeOfCopy + cap(response.Body) +
		len(record.Token) + len(record.ExecutionID) + len(record.ParentID) + len(record.Fingerprint) +
		len(record.DeliveryID) + len(record.SealedBy)
	for name, values := range response.Header {
		n += sizeOfField + len(name) + sizeOfValue*cap(values)
		for _, value := range values {
			n += len(value)
		}
	}
	return int64(n)
}

// ownCopies are the copies of one engine. The lock of the Copies guards them.
type ownCopies struct {
	all    *Copies
	closed bool
	// drops counts how often a copy was dropped, of all keys that share a place. What was
	// read before a drop must not become a copy after it. They are changed under the lock.
	drops [places]atomic.Uint32
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
// its retention left when the store was asked. The copy takes so many bytes. It does nothing
// if a copy of the key was dropped since.
func (o *ownCopies) keep(read reading, record *idempotency.Record, response *idempotency.Response, life time.Duration, size int64) {
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.closed || size > c.most || read.drops != o.drops[placeOf(read.of.key)].Load() {
		return
	}
	next := &copied{of: read.of, record: record, response: response, asked: read.asked, life: life, size: size}
	if last := c.entries[read.of]; last != nil {
		last.unlink()
		c.held -= last.size
	}
	c.held += size
	c.entries[read.of] = next
	c.usedLocked(next)
	c.shrinkLocked()
}

// find returns the copy of a key, nil if there is none, and its age. One whose retention is
// over is there no more.
func (o *ownCopies) find(key idempotency.Key) (found *copied, age time.Duration) {
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	found = c.entries[copyOf{o, key}]
	if found == nil {
		return nil, 0
	}
	if age = ageSince(found.asked); age >= found.life {
		c.removeLocked(found)
		return nil, 0
	}
	found.unlink()
	c.usedLocked(found)
	return found, age
}

// is reports whether the copy of a key is that of this record.
func (o *ownCopies) is(key idempotency.Key, record *idempotency.Record) bool {
	found, _ := o.find(key)
	return found != nil && record.State == idempotency.Complete && record.Token == found.record.Token
}

// drop lets the copy of a key go, and keeps what was read before from becoming one.
func (o *ownCopies) drop(key idempotency.Key) {
	c := o.all
	c.mu.Lock()
	defer c.mu.Unlock()
	o.drops[placeOf(key)].Add(1)
	if found := c.entries[copyOf{o, key}]; found != nil {
		c.removeLocked(found)
	}
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
}

// close drops all, for ever.
func (o *ownCopies) close() {
	o.all.mu.Lock()
	o.closed = true
	o.all.mu.Unlock()
	o.dropAll()
}

// decideByCopy answers a request from a copy that the store has confirmed not long ago. Nil
// means that the store must be asked. So it always is for a request that belongs to a run of
// a dedup in front ([idempotency.Claim.Proof]): that run may be meant to replace what was
// copied, and would end with it as its own response.
func (e *Engine) decideByCopy(c idempotency.Claim) Decision {
	if c.Proof != "" {
		return nil
	}
	found, age := e.copies.find(c.Key)
	if found == nil || age >= CopyBound {
		return nil
	}
	switch idempotency.Decide(found.record, c, found.now(age)) {
	case idempotency.ReplayKept:
		return Replay{Record: found.record, Response: found.response}
	case idempotency.RefuseReused:
		return refusalBeside(ReasonReused, found.record)
	default:
		return nil
	}
}

// copyWhileAway returns the copy of a key, however old it is, if the store could not be
// asked. It says nothing to a request that would run.
func (e *Engine) copyWhileAway(key idempotency.Key, err error) idempotency.Claimed {
	if !away(err) {
		return idempotency.Claimed{}
	}
	found, age := e.copies.find(key)
	if found == nil {
		return idempotency.Claimed{}
	}
	return idempotency.Claimed{Record: found.record, Response: found.response, Now: found.now(age)}
}

// away reports whether an error says nothing of the key: the store could not be asked.
func away(err error) bool { return refusalFor(err).Reason == ReasonUnavailable }

// copyClaimed notes what the store has answered to a claim: the copy of the key is that, or
// there is none any more.
func (e *Engine) copyClaimed(read reading, got idempotency.Claimed, err error) {
	switch {
	case err != nil && away(err):
	case err == nil && got.Verdict == idempotency.ReplayKept:
		e.copyFound(read, got)
	case err == nil && got.Verdict == idempotency.RefuseReused && e.copies.is(read.of.key, got.Record):
	default:
		e.copies.drop(read.of.key)
	}
}

// copyFound keeps a copy of what the store has answered, if that is complete.
func (e *Engine) copyFound(read reading, found idempotency.Claimed) {
	if found.Record == nil || found.Record.State != idempotency.Complete || found.Response == nil {
		return
	}
	if e.store.Readable(found.Record) {
		e.copies.keep(read, found.Record, found.Response, found.Record.Expires.Sub(found.Now), sizeOfRead(found.Record, found.Response))
	}
}

// inProcess is a store in the memory of this process. It is never away, so that a copy only
// saves the first duplicate some work. That one makes it: most keys have none, and to copy
// all of them took a tenth of a first delivery.
type inProcess interface{ InProcess() }

// copyKept keeps a copy of the response of a run, which is stored now.
func (r *Run) copyKept(read reading, s idempotency.Settlement, ended idempotency.Claimed) {
	if r.engine.inProcess {
		return
	}
	if s.State == idempotency.Complete && s.Response != nil && r.engine.store.Readable(ended.Record) {
		r.engine.copies.keep(read, ended.Record, s.Response, s.Retention-read.asked.Sub(r.settling), sizeOf(ended.Record, s.Response))
	}
}
