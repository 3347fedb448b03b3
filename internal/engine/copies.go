package engine

import (
	"bytes"
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/seal"
)

// CopyBound is how long a copy answers duplicates by itself after the store has last
// confirmed it. Within this time all replicas see what an operator has released or forgotten
// on another one, or what a forced run has replaced there.
const CopyBound = 5 * time.Second

// Copies are the local copies of a process: complete records with their responses, so that a
// duplicate is answered without asking the store. All engines of the process share them and
// their limit.
//
// The list is the one of hashicorp/golang-lru: v2.0.7 of 2023, finished rather than abandoned,
// used by Consul, Vault and go-ethereum, without dependencies. It has no lock, so that the
// bytes and the generation are guarded together with the entries. Caches that count bytes
// themselves (otter, ristretto) admit by frequency: most keys are asked for once or twice,
// soon after their run, and would not be admitted.
type Copies struct {
	limit atomic.Int64 // bytes; 0 keeps none
	// generation counts the invalidations, of any key. What was read before one must not
	// become a copy after it. It changes under the lock.
	generation atomic.Uint64

	mu    sync.Mutex
	lru   *simplelru.LRU[copyKey, *localCopy]
	bytes int64
}

// copyKey distinguishes equal keys of different stores.
type copyKey struct {
	owner *ownCopies
	key   idempotency.Key
}

// localCopy is a record and its response in their stored form: two or three objects for the
// garbage collector, where the decoded ones are about 25. Most copies are never asked for.
type localCopy struct {
	asked time.Time
	// life is how much of the retention was left when the store was asked. It is rather too
	// short than too long: the store's clock was read later.
	life time.Duration
	size int64

	stored    []byte // the record, and from recordEnd on the response without its body
	recordEnd int
	body      []byte
	// decoded is set by the first duplicate, for those that follow.
	decoded atomic.Pointer[idempotency.Claimed]
}

// NewCopies returns copies of at most limit bytes; with 0 there are none.
func NewCopies(limit int64) *Copies {
	c := new(Copies)
	lru, err := simplelru.NewLRU(math.MaxInt, func(_ copyKey, evicted *localCopy) { c.bytes -= evicted.size })
	if err != nil {
		panic("engine: " + err.Error()) // the size is positive
	}
	c.lru = lru
	c.SetLimit(limit)
	return c
}

// SetLimit changes the limit. What exceeds it is evicted at once.
func (c *Copies) SetLimit(limit int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.limit.Store(max(limit, 0))
	c.shrinkLocked()
}

func (c *Copies) shrinkLocked() {
	for c.bytes > c.limit.Load() {
		c.lru.RemoveOldest()
	}
}

// Bytes returns how many bytes count against the limit.
func (c *Copies) Bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bytes
}

func (c *Copies) get(of copyKey) *localCopy {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, _ := c.lru.Get(of)
	return found
}

// put adds a copy that was read in this generation, unless there is a new one, or the engine is
// closed.
func (c *Copies) put(of copyKey, generation uint64, next *localCopy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if generation != c.generation.Load() || of.owner.ctx.Err() != nil {
		return
	}
	c.lru.Remove(of)
	if next.size <= c.limit.Load() {
		c.lru.Add(of, next)
		c.bytes += next.size
		c.shrinkLocked()
	}
}

// What a copy takes besides its bytes once it is decoded, rounded up:
// TestCopiesCountTheirBytes compares it with the heap.
const (
	copyOverhead  = 1000 // localCopy, list and map, Record, Response
	fieldOverhead = 110  // a name and its value in a map
)

// newCopy returns a copy of a complete record and its response. It counts from the beginning
// as if it were decoded, with its texts there twice.
func newCopy(key idempotency.Key, record *idempotency.Record, response *idempotency.Response) *localCopy {
	head := *response
	head.Body = nil // its checksum is not needed here
	stored := idempotency.AppendRecord(make([]byte, 0, 1<<10), key, record)
	c := &localCopy{recordEnd: len(stored), body: response.Body}
	c.stored = bytes.Clone(idempotency.AppendResponseHead(stored, key, record.Token, &head))
	if cap(c.body)-len(c.body) > len(c.body)/8 { // a small body must not keep a large buffer
		c.body = bytes.Clone(c.body)
	}
	c.size = int64(copyOverhead + 2*cap(c.stored) + cap(c.body) + fieldOverhead*len(response.Header))
	return c
}

// age returns the time since the store was asked. The monotonic clock may stand still while
// the machine sleeps, and the wall clock may be set back.
func (c *localCopy) age() time.Duration {
	now := time.Now()
	return max(now.Sub(c.asked), now.Round(0).Sub(c.asked.Round(0)))
}

// decode returns record and response as the store would, without the time.
func (c *localCopy) decode(key idempotency.Key) (*idempotency.Claimed, error) {
	if decoded := c.decoded.Load(); decoded != nil {
		return decoded, nil
	}
	record, err := idempotency.DecodeRecord(key, c.stored[:c.recordEnd])
	if err != nil {
		return nil, err
	}
	response, err := idempotency.DecodeResponseParts(key, record.Token, c.stored[c.recordEnd:], nil)
	if err != nil {
		return nil, err
	}
	if len(c.body) > 0 {
		response.Body = c.body
	}
	decoded := &idempotency.Claimed{Record: record, Response: response}
	c.decoded.Store(decoded)
	return decoded, nil
}

// ownCopies are the copies of one engine.
type ownCopies struct {
	all   *Copies
	store *seal.Store
	ctx   context.Context // ends when the engine is closed
}

// snapshot is what copies are when the store is asked.
type snapshot struct {
	asked      time.Time
	generation uint64
}

// snapshot must be taken before the store is asked for what may become a copy.
func (o *ownCopies) snapshot() snapshot {
	return snapshot{generation: o.all.generation.Load(), asked: time.Now()}
}

// find returns the copy of a key as the store would return it, and its age. It has no
// record if there is no copy, or if the retention is over.
func (o *ownCopies) find(key idempotency.Key) (found idempotency.Claimed, age time.Duration) {
	c := o.all.get(copyKey{o, key})
	if c == nil {
		return found, 0
	}
	if age = c.age(); age >= c.life {
		return found, 0
	}
	decoded, err := c.decode(key)
	if err != nil { // as of a status that HTTP does not have: the store has to say so
		return found, 0
	}
	found = *decoded
	found.Now = found.Record.Expires.Add(age - c.life)
	return found, age
}

// stale returns the copy of a key, however old it is, if the store is unavailable.
func (o *ownCopies) stale(key idempotency.Key, err error) (found idempotency.Claimed) {
	if isUnavailable(err) {
		found, _ = o.find(key)
	}
	return found
}

// isUnavailable reports whether an error says nothing about the key: the store could not be
// asked.
func isUnavailable(err error) bool { return refusalFor(err).Reason == ReasonUnavailable }

// keep keeps a copy of a complete record, of whose retention so much was left when the store
// was asked.
func (o *ownCopies) keep(key idempotency.Key, read snapshot, record *idempotency.Record, response *idempotency.Response, life time.Duration) {
	if int64(len(response.Body)) >= o.all.limit.Load() {
		o.evict(key) // what is there is older
		return
	}
	if o.store.Readable(record) {
		next := newCopy(key, record, response)
		next.asked, next.life = read.asked, life
		o.all.put(copyKey{o, key}, read.generation, next)
	}
}

// keepFound keeps a copy of what the store has returned, if that is complete.
func (o *ownCopies) keepFound(key idempotency.Key, read snapshot, found idempotency.Claimed) {
	if found.Record != nil && found.Record.State == idempotency.Complete && found.Response != nil {
		o.keep(key, read, found.Record, found.Response, found.Record.Expires.Sub(found.Now))
	}
}

// keepClaimed keeps a copy of what the store has answered to a claim, or evicts the one that
// the answer contradicts.
func (o *ownCopies) keepClaimed(key idempotency.Key, read snapshot, got idempotency.Claimed, err error) {
	switch {
	case err != nil && isUnavailable(err):
		return
	case err == nil && got.Verdict == idempotency.ReplayKept:
		o.keepFound(key, read, got)
		return
	case err == nil && got.Verdict == idempotency.RefuseReused && got.Record.State == idempotency.Complete:
		if found, _ := o.find(key); found.Record != nil && found.Record.Token == got.Record.Token {
			return
		}
	}
	o.evict(key)
}

// evict removes the copy of a key.
func (o *ownCopies) evict(key idempotency.Key) {
	o.all.mu.Lock()
	defer o.all.mu.Unlock()
	o.all.lru.Remove(copyKey{o, key})
}

// invalidate evicts the copy of a key, and keeps what was read before from becoming one.
func (o *ownCopies) invalidate(key idempotency.Key) {
	o.all.mu.Lock()
	defer o.all.mu.Unlock()
	o.all.generation.Add(1)
	o.all.lru.Remove(copyKey{o, key})
}

// invalidateAll invalidates the copies of all keys.
func (o *ownCopies) invalidateAll() {
	o.all.mu.Lock()
	defer o.all.mu.Unlock()
	o.all.generation.Add(1)
	for _, of := range o.all.lru.Keys() {
		if of.owner == o {
			o.all.lru.Remove(of)
		}
	}
}

// copyResponse keeps a copy of the response of the run, which is stored now.
//
// A store in this process is always available, so that a copy only saves a duplicate some
// work, and the first duplicate makes it: to copy every run took a tenth of a first delivery.
func (r *Run) copyResponse(read snapshot, s idempotency.Settlement) {
	if s.State == idempotency.Complete && s.Response != nil && !r.engine.inProcess {
		life := s.Retention + s.Ago - read.asked.Sub(r.endedAt)
		r.engine.copies.keep(r.claim.Key, read, r.current().Settled(s, time.Now()), s.Response, life)
	}
}

// inProcess is a store in the memory of this process. It ends with the process
// ([Engine.Drain]).
type inProcess interface{ InProcess() }

// decideByCopy answers a request from a copy that the store has confirmed within [CopyBound].
// Nil means that the store must be asked. A request within another run
// ([idempotency.Claim.Within]) always asks: the run may be a forced one of this key on
// another replica, which the copy would answer.
func (e *Engine) decideByCopy(c idempotency.Claim) Decision {
	if c.Within != "" {
		return nil
	}
	found, age := e.copies.find(c.Key)
	if found.Record == nil || age >= CopyBound {
		return nil
	}
	switch idempotency.Decide(found.Record, c, found.Now) {
	case idempotency.ReplayKept:
		return Replay{Record: found.Record, Response: found.Response}
	case idempotency.RefuseReused:
		return newRefusal(ReasonReused, found.Record)
	default:
		return nil
	}
}
