// Package memory implements [idempotency.Store] in the memory of one process, for trying caddy-dedup
// and for tests. A restart empties the store.
//
// Records and responses are values in 256 maps, by the first byte of their key, so that a page of
// [Store.List] reads few of them. They are encoded as in every store, in blocks of one size without
// pointers (blocks.go): marking separate objects would cost the garbage collector a fifth of a first
// delivery. Two things are neither encoded nor copied: the record of a run in flight, which would soon
// be decoded again, and a large body, which no caller modifies ([idempotency.Response]).
//
// A heap orders the times at which values expire (expiry.go). An expired value counts as absent at
// once. A timer, or an operation that needs the room, removes it later. Other values reuse the room,
// and the process gets it back when the store is empty.
//
// One mutex guards everything. Nothing blocks while it is held, and responses are encoded and decoded
// without it.
//
// The store counts bytes against its limit (values.go). It never evicts, because a key that is
// forgotten too early would run twice. Instead:
//
//   - A new key needs room within seven eighths of the limit. Otherwise the store refuses the claim
//     with [idempotency.ErrFull].
//   - The response of a run needs room within the limit. Otherwise the store refuses a response of up
//     to an eighth of the limit with [idempotency.ErrFull], and the engine tries again. The store
//     accepts no new key meanwhile, so there is room as soon as enough values have expired. It refuses
//     a larger response with [idempotency.ErrTooLarge], and the engine keeps it without its body. A
//     release succeeds without the response, which waiting requests get from their engine.
//   - The record of a known key always has room. It grows by at most some hundred bytes.
package memory

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

// Store is the store. [New] returns one.
type Store struct {
	started time.Time
	seed    maphash.Seed
	waiters wakeup.Subscribers

	mu      sync.Mutex
	closed  bool
	limit   int64
	scratch []byte // a record while it is encoded or decoded

	values     [256]map[name]value // by the first byte of the key
	count      int                 // of all values
	blocks     blocks
	claims     map[idempotency.Key]*idempotency.Record // the records of runs in flight
	bodies     map[name][]byte                         // large ones
	bodiesSize int64

	expiries expiries
	sweeper  *time.Timer // calls sweep at sweepAt
	sweepAt  int64
}

var _ idempotency.Store = (*Store)(nil)

// New returns an empty store that keeps up to limit bytes.
func New(limit int64) *Store {
	s := &Store{
		started: time.Now(), seed: maphash.MakeSeed(), limit: limit, sweepAt: never,
		claims: make(map[idempotency.Key]*idempotency.Record), bodies: make(map[name][]byte),
	}
	s.sweeper = time.AfterFunc(never, s.sweep)
	return s
}

// InProcess marks a store that is lost with its process and always available.
func (*Store) InProcess() {}

// SetLimit changes the limit, in bytes. Values that exceed the new limit stay until they expire.
func (s *Store) SetLimit(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
}

// do calls f with the store locked, and returns its error. If the context has ended or the store is
// closed, it returns an error without calling f.
func (s *Store) do(ctx context.Context, f func(now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return idempotency.ErrClosed
	}
	return f(s.now())
}

// now returns the store's time. It follows the monotonic clock, so that no lease lapses because someone
// sets the wall clock.
func (s *Store) now() time.Time {
	return s.started.Add(time.Since(s.started)).UTC().Truncate(time.Millisecond)
}

// Claim implements [idempotency.Store].
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (claimed idempotency.Claimed, err error) {
	var kept encoded
	err = s.do(ctx, func(now time.Time) error {
		stored, err := s.find(c.Key, now)
		if err != nil {
			return err
		}
		found := stored.Effective(now)
		claimed = idempotency.Claimed{Verdict: idempotency.Decide(found, c, now), Record: found, Now: now}
		switch claimed.Verdict {
		case idempotency.Proceed:
			if stored == nil && !s.makeRoom(claimCost, s.limit-s.limit/reserveDivisor, now) {
				return idempotency.ErrFull
			}
			claimed.Previous, claimed.Record = found, c.Record(found, now)
			s.putRecord(c.Key, claimed.Record, now)
		case idempotency.ReplayKept:
			if found.LargeBody > 0 {
				return nil
			}
			if kept = s.response(s.nameOf(c.Key, found.Token), now); kept.head == nil {
				return unreadable("record", c.Key, idempotency.ErrResponseMissing)
			}
		}
		return nil
	})
	if kept.head != nil {
		claimed.Response, err = kept.decode(c.Key, claimed.Record.Token)
	}
	if err != nil {
		return idempotency.Claimed{}, err
	}
	return claimed, nil
}

// Renew implements [idempotency.Store].
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	return s.do(ctx, func(now time.Time) error {
		found, err := s.find(c.Key, now)
		if err != nil {
			return err
		}
		open, err := found.Owned(c.Token, c.PrevToken, "")
		if open {
			s.putRecord(c.Key, found.Renewed(c.Terms, now), now)
		}
		return err
	})
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	buffer, settled := buffers.Get().(*[]byte), false
	defer buffers.Put(buffer)
	response := encode(buffer, key, claimed.Token, settlement.Response)
	err := s.do(ctx, func(now time.Time) error {
		found, err := s.find(key, now)
		if err != nil {
			return err
		}
		if open, err := found.Owned(claimed.Token, claimed.PrevToken, claimed.LeftToken(settlement)); !open {
			return err
		}
		if response.head != nil {
			err := s.putResponse(s.nameOf(key, claimed.Token), response, now.Add(settlement.ResponseRetention()), now)
			if err != nil && settlement.State != idempotency.Released { // release the key without the response
				return err
			}
		}
		s.putRecord(key, found.WithAttempts(claimed).Settled(settlement, now), now)
		settled = true
		return nil
	})
	if settled {
		s.waiters.Wake(key)
	}
	return err
}

// Ready implements [idempotency.Store].
func (s *Store) Ready(ctx context.Context) error {
	return s.do(ctx, func(time.Time) error { return nil })
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (found *idempotency.Record, at time.Time, err error) {
	err = s.do(ctx, func(now time.Time) (err error) {
		found, err = s.find(key, now)
		found, at = found.Effective(now), now
		return err
	})
	return found, at, err
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	var kept encoded
	err := s.do(ctx, func(now time.Time) error {
		kept = s.response(s.nameOf(key, token), now)
		return nil
	})
	if kept.head == nil {
		return nil, err
	}
	return kept.decode(key, token)
}

// Change implements [idempotency.Store].
func (s *Store) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (found *idempotency.Record, err error) {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	response := encode(buffer, key, c.Token, c.Response)
	err = s.do(ctx, func(now time.Time) error {
		stored, err := s.find(key, now)
		if err != nil {
			return err
		}
		changed, err := stored.Changed(c, now)
		if err != nil {
			return err
		}
		if response.head != nil {
			if err := s.putResponse(s.nameOf(key, c.Token), response, changed.Expires, now); err != nil {
				return err
			}
		}
		found = stored.Effective(now)
		s.putRecord(key, changed, now)
		return nil
	})
	if err == nil {
		s.waiters.Wake(key)
	}
	return found, err
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	err := s.do(ctx, func(now time.Time) error {
		found, err := s.find(key, now)
		if err != nil {
			err = pre.CheckUnreadable()
		} else {
			err = found.Effective(now).CheckChange(pre, now)
		}
		if err != nil {
			return err
		}
		for n, v := range s.values[key[0]] {
			if n.key == key {
				s.remove(n, v)
			}
		}
		return nil
	})
	if err == nil {
		s.waiters.Wake(key)
	}
	return err
}

// Subscribe implements [idempotency.Store].
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return s.waiters.Subscribe(wake)
}

// Close implements [idempotency.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.sweeper.Stop()
	return nil
}
