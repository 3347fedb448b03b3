// Package memory is a store in the memory of one process, for trying caddy-dedup out and for
// tests. A restart empties it.
//
// Records and responses are values in 256 maps, by the first byte of their key, so that a page of
// [Store.List] goes through a small part of them. Their bytes are as in every store, and lie in
// blocks of one size without pointers (blocks.go): to have the garbage collector mark each of them
// costs a fifth of a first delivery. Two things are not encoded or copied: the record of a run in
// flight, which would be decoded again soon, and a large body, which is never written to
// ([idempotency.Response]).
//
// A heap orders the times at which values expire (expiry.go). A value that has expired counts as
// absent at once. A timer removes it a little later, or an operation that needs its room. Other
// values use the room again; the process gets it back when the store is empty.
//
// One mutex guards everything. Nothing blocks while it is held, and responses are encoded and
// decoded without it.
//
// The store counts bytes against its limit (values.go). It never evicts, because a key that is
// forgotten too early runs twice. Instead:
//
//   - A new key needs room within seven eighths of the limit. Without it, the claim is refused with
//     [idempotency.ErrFull].
//   - The response of a run needs room within the limit. Without it, one of up to an eighth of the
//     limit is refused with [idempotency.ErrFull], and its engine tries again. No new key is taken
//     meanwhile, so there is room as soon as enough of the others have expired. A larger one is
//     refused with [idempotency.ErrTooLarge], and its engine keeps it without its body. A key
//     that is released is released without the response, which the requests that waited get
//     from their engine.
//   - The record of a known key always has room. It grows by some hundred bytes at most.
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

// InProcess marks a store that ends with its process and is always available.
func (*Store) InProcess() {}

// SetLimit changes the limit. What is kept stays, even if it exceeds the new limit.
func (s *Store) SetLimit(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
}

// do calls f with the store locked. The error is that of f, or says that the context has ended or
// the store is closed.
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

// now returns the store's time. It follows the monotonic clock: no lease lapses because the wall
// clock is set.
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
			if stored == nil && !s.makeRoom(claimCost, s.limit-s.limit/reserve, now) {
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
	buffer, ended := buffers.Get().(*[]byte), false
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
			switch cost := response.cost(); {
			case s.makeRoom(cost, s.limit, now):
				s.put(s.nameOf(key, claimed.Token), response, now.Add(settlement.ResponseFor()), now)
			case settlement.State == idempotency.Released: // the key is free all the same
			case cost > s.limit/reserve:
				return idempotency.ErrTooLarge
			default:
				return idempotency.ErrFull
			}
		}
		s.putRecord(key, found.WithAttempts(claimed).Settled(settlement, now), now)
		ended = true
		return nil
	})
	if ended {
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

// Release implements [idempotency.Store].
func (s *Store) Release(ctx context.Context, key idempotency.Key, token string, pre idempotency.Precondition) (found *idempotency.Record, err error) {
	err = s.do(ctx, func(now time.Time) error {
		stored, err := s.find(key, now)
		if err != nil {
			return err
		}
		released, err := stored.Release(token, pre, now)
		if err == nil {
			found = stored.Effective(now)
			s.putRecord(key, released, now)
		}
		return err
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
