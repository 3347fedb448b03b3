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

// CopyBound is how long a copy answers duplicates after the store last confirmed it. So it is also
// the longest time until a replica notices that another one has changed or forgotten a
// key, or that a forced run has replaced a response there.
const CopyBound = 5 * time.Second

// Copies are the local copies of a process: complete records with their responses, so that a
// duplicate is answered without asking the store. All engines of the process share them and
// their limit.
//
// The list is that of hashicorp/golang-lru: v2.0.7 of 2023, finished rather than abandoned,
// used by Consul, Vault and go-ethereum, without dependencies. It has no lock of its own, so that
// one lock guards entries, bytes and generation. Caches that count bytes (otter, ristretto)
// admit by frequency, and would admit few keys: most are asked for once or twice, soon after
// their run.
type Copies struct {
	limit atomic.Int64 // bytes; 0 keeps none
	// generation counts the invalidations of all keys. What was read before one must not become
	// a copy after it. It changes under the lock.
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
// garbage collector, instead of about 25 decoded ones. Most copies are never used.
type localCopy struct {
	asked time.Time
	// life is how much of the retention was left when the store was asked. It is a lower bound:
	// the store read its clock later.
	life time.Duration
	size int64

	stored    []byte // the record, and from recordEnd on the response without its body
	recordEnd int
	body      []byte
	// decoded is set by the first duplicate.
	decoded atomic.Pointer[idempotency.Claimed]
}

// NewCopies returns copies of at most limit bytes together; with 0 it keeps none.
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

// SetLimit changes the limit, and evicts at once what exceeds it.
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

// put adds a copy that was read in this generation, unless the generation has changed since or the
// engine is closed.
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

// What a decoded copy takes besides its bytes, rounded up. TestCopiesCountTheirBytes compares it
// with the heap.
const (
	copyOverhead  = 1000 // localCopy, list and map, Record, Response
	fieldOverhead = 110  // a name and its value in a map
)

// newCopy returns a copy of a complete record and its response. Its size is that after decoding,
// with two copies of its texts.
func newCopy(key idempotency.Key, record *idempotency.Record, response *idempotency.Response) *localCopy {
	head := *response
	head.Body = nil // no checksum: the body does not leave this process
	stored := idempotency.AppendRecord(make([]byte, 0, 1<<10), key, record)
	c := &localCopy{recordEnd: len(stored), body: response.Body}
	c.stored = bytes.Clone(idempotency.AppendResponseHead(stored, key, record.Token, &head))
	if cap(c.body)-len(c.body) > len(c.body)/8 { // a small body must not keep a large buffer
		c.body = bytes.Clone(c.body)
	}
	c.size = int64(copyOverhead + 2*cap(c.stored) + cap(c.body) + fieldOverhead*len(response.Header))
	return c
}

// age returns the time since the store was asked, by the clock on which more time has passed: the
// monotonic clock may stop while the machine sleeps, and the wall clock may be set back.
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

// snapshot is when the store was asked, and the generation of the copies at that time.
type snapshot struct {
	asked      time.Time
	generation uint64
}

// snapshot returns the snapshot for a copy of what the store is about to return.
func (o *ownCopies) snapshot() snapshot {
	return snapshot{generation: o.all.generation.Load(), asked: time.Now()}
}

// find returns the copy of a key as the store would return it, and its age. found has no record if
// there is no copy, or if its retention is over.
func (o *ownCopies) find(key idempotency.Key) (found idempotency.Claimed, age time.Duration) {
	c := o.all.get(copyKey{o, key})
	if c == nil {
		return found, 0
	}
	if age = c.age(); age >= c.life {
		return found, 0
	}
	decoded, err := c.decode(key)
	if err != nil { // such as a status that HTTP does not have: the store reports it
		return found, 0
	}
	found = *decoded
	found.Now = found.Record.Expires.Add(age - c.life)
	return found, age
}

// stale returns the copy of a key, of any age, if err is that of an unavailable store.
func (o *ownCopies) stale(key idempotency.Key, err error) (found idempotency.Claimed) {
	if isUnavailable(err) {
		found, _ = o.find(key)
	}
	return found
}

// isUnavailable reports whether an error means that the store could not be asked.
func isUnavailable(err error) bool { return refusalFor(err).Reason == ReasonUnavailable }

// keep keeps a copy of a complete record and its response. life is what was left of the retention
// when the store was asked.
func (o *ownCopies) keep(key idempotency.Key, read snapshot, record *idempotency.Record, response *idempotency.Response, life time.Duration) {
	if int64(len(response.Body)) >= o.all.limit.Load() {
		o.evict(key) // an existing copy is outdated
		return
	}
	if o.store.Readable(record) {
		next := newCopy(key, record, response)
		next.asked, next.life = read.asked, life
		o.all.put(copyKey{o, key}, read.generation, next)
	}
}

// keepFound keeps a copy of what the store has returned, if it is complete and has its response.
func (o *ownCopies) keepFound(key idempotency.Key, read snapshot, found idempotency.Claimed) {
	if found.Record != nil && found.Record.State == idempotency.Complete && found.Response != nil {
		o.keep(key, read, found.Record, found.Response, found.Record.Expires.Sub(found.Now))
	}
}

// keepClaimed keeps a copy of the store's reply to a claim, or evicts the copy that the reply
// contradicts.
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

// invalidate evicts the copy of a key, and prevents that a value read earlier becomes a copy.
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

// copyResponse keeps a copy of the response of the run, which the store has just stored.
//
// An inProcess store is always available, and a copy only saves work. There the first duplicate
// makes the copy: copying every response took a tenth of a first delivery's time.
func (r *Run) copyResponse(read snapshot, s idempotency.Settlement) {
	if s.State == idempotency.Complete && s.Response != nil && !r.engine.inProcess {
		life := s.Retention + s.Ago - read.asked.Sub(r.endedAt)
		r.engine.copies.keep(r.claim.Key, read, r.current().Settled(s, time.Now()), s.Response, life)
	}
}

// inProcess is a store in the memory of this process, which loses its records with the process
// ([Engine.Drain]).
type inProcess interface{ InProcess() }

// decideByCopy answers a request from a copy that the store has confirmed within [CopyBound].
// Nil means that the request must ask the store. One within another run
// ([idempotency.Claim.Within]) always asks: it may be part of a forced run of this key on
// another replica, and a copy would replay the response that the run is to replace.
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
		return Replay{Record: found.Record, Response: found.Response, Differs: c.Differs(found.Record)}
	case idempotency.RefuseReused:
		return newRefusal(ReasonReused, found.Record, c)
	default:
		return nil
	}
}
