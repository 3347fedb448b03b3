package file

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// claim is a run in flight of this process. While it exists, its record is the key's record, not the
// one in the database.
type claim struct {
	record *idempotency.Record
	// base is the value of the key in the database from, without its response; nil if there is none. After
	// the store has opened another database, the base must be read again: the old database was
	// abandoned, perhaps in the middle of a write.
	base *value
	from *database
	body *bodyWrite // of the response that the run has ended with; nil for none
}

// withoutBase returns the claim without its base, which must then be read again.
func (c *claim) withoutBase() *claim { return &claim{record: c.record, body: c.body} }

// keyTable has an entry for each key that an operation has locked or that has a claim.
//
// Readers lock a key too: they would see a batch before it is flushed, and no caller may act on what
// a crash can still undo.
type keyTable [64]keyShard

type keyShard struct {
	mu      sync.Mutex
	entries map[idempotency.Key]*keyEntry
}

type keyEntry struct {
	locked   bool
	unlocked chan struct{} // closed at the next unlock; nil while no operation waits for it
	claim    *claim        // nil for none; only the operation that has locked the key sets it
}

func (t *keyTable) shard(key *idempotency.Key) *keyShard { return &t[key[len(key)-1]%byte(len(t))] }

// lock locks a key and returns its claim.
func (t *keyTable) lock(ctx context.Context, key idempotency.Key) (*claim, error) {
	for {
		c, unlocked := t.tryLock(key)
		if unlocked == nil {
			return c, nil
		}
		select {
		case <-unlocked:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryLock locks a key and returns its claim. If another operation has locked the key, it returns a
// channel that is closed at the next unlock.
func (t *keyTable) tryLock(key idempotency.Key) (c *claim, unlocked <-chan struct{}) {
	s := t.shard(&key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	switch {
	case e == nil:
		if s.entries == nil {
			s.entries = make(map[idempotency.Key]*keyEntry)
		}
		s.entries[key] = &keyEntry{locked: true}
		return nil, nil
	case !e.locked:
		e.locked = true
		return e.claim, nil
	case e.unlocked == nil:
		e.unlocked = make(chan struct{})
	}
	return nil, e.unlocked
}

// unlock unlocks a key, and sets its claim.
func (t *keyTable) unlock(key idempotency.Key, c *claim) {
	s := t.shard(&key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e.unlocked != nil {
		close(e.unlocked)
	}
	e.locked, e.unlocked, e.claim = false, nil, c
	if c == nil {
		delete(s.entries, key)
	}
}

// claimed returns the keys that have a claim and are not less than from, sorted.
func (t *keyTable) claimed(from []byte) []idempotency.Key {
	var keys []idempotency.Key
	for i := range t {
		s := &t[i]
		s.mu.Lock()
		for key, e := range s.entries {
			if e.claim != nil && bytes.Compare(key[:], from) >= 0 {
				keys = append(keys, key)
			}
		}
		s.mu.Unlock()
	}
	slices.SortFunc(keys, func(a, b idempotency.Key) int { return bytes.Compare(a[:], b[:]) })
	return keys
}

// peek returns the record of a key's claim, nil if there is none, without locking the key. locked
// reports whether an operation has locked the key.
func (t *keyTable) peek(key idempotency.Key) (r *idempotency.Record, locked bool) {
	s := t.shard(&key)
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.entries[key]
	if e == nil {
		return nil, false
	}
	if e.claim != nil {
		r = clone(e.claim.record)
	}
	return r, e.locked
}

// dropExpired removes the claims whose records have expired. A claim stays until its base has expired
// too: without the claim, the base would count again.
func (t *keyTable) dropExpired(now time.Time) {
	for i := range t {
		s := &t[i]
		s.mu.Lock()
		for key, e := range s.entries {
			if !e.locked && live(e.claim.record, now) == nil && (e.claim.base == nil || e.claim.base.due() <= now.UnixMilli()) {
				delete(s.entries, key)
			}
		}
		s.mu.Unlock()
	}
}

// clone returns a copy of a record that shares no memory with it.
func clone(r *idempotency.Record) *idempotency.Record {
	copied := *r
	if r.Previous != nil {
		copied.Previous = clone(r.Previous)
	}
	return &copied
}

// live returns the record, nil if there is none or it has expired: an expired record counts as
// absent even before the sweeper has removed it.
func live(r *idempotency.Record, now time.Time) *idempotency.Record {
	if r == nil || !now.Before(r.Expires) {
		return nil
	}
	return r
}
