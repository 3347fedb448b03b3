// Package memory is a store in the memory of the process. It is empty after a
// restart, so it is for trying caddy-dedup out, and for tests.
package memory

import (
	"context"
	"hash/maphash"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

// Store keeps records and responses as bytes, in chunks and pages without pointers, so
// that the garbage collector has nothing to do with what is kept. If there is no room, it
// refuses what is new, and goes on to do so while the end of a run waits for room. It never
// drops what has not expired: a request whose key was forgotten too early would run twice.
type Store struct {
	limit   int64
	started time.Time
	waiters wakeup.Subscribers
	seed    maphash.Seed
	// encoded has buffers to encode small responses in, before the store is locked.
	encoded sync.Pool

	mu      sync.Mutex
	closed  bool
	items   table[item]
	index   index
	log     byteLog
	expiry  expiry
	waiting waitingEnds
	scratch []byte // a record, while it is written

	stop    chan struct{}
	stopped chan struct{}
}

var _ idempotency.Store = (*Store)(nil)

// New returns an empty store that takes up to limit bytes of the heap. It starts a
// sweeper, which [Store.Close] ends.
func New(limit int64) *Store {
	s := &Store{
		limit:   limit,
		started: time.Now(),
		seed:    maphash.MakeSeed(),
		encoded: sync.Pool{New: func() any { return new([]byte) }},
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	s.index.keyOf = s.keyOf
	s.log = newByteLog(func(n uint32, to place) { s.items.at(n).at = to })
	s.expiry.items, s.expiry.due = &s.items, s.started.Unix()
	go s.sweep()
	return s
}

// InProcess says that the store is in the memory of this process, and so never away.
func (*Store) InProcess() {}

// SetLimit changes how many bytes of the heap the store takes. What it has already stays,
// even if that is more than the new limit.
func (s *Store) SetLimit(limit int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limit = limit
}

// now is the clock of the store. It follows the monotonic clock, so that no lease
// lapses because the wall clock was set.
func (s *Store) now() time.Time {
	return s.started.Add(time.Since(s.started)).UTC().Truncate(time.Millisecond)
}

// lock locks the store. It returns an error, without the lock, if the context has
// ended or the store is closed.
func (s *Store) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return idempotency.ErrClosed
	}
	return nil
}

// Claim implements [idempotency.Store].
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	claimed, response, err := s.claim(ctx, c)
	if err == nil && claimed.Verdict == idempotency.ReplayKept {
		claimed.Response, err = response.decode(c.Key, claimed.Record.Token)
	}
	if err != nil {
		return idempotency.Claimed{}, err
	}
	return claimed, nil
}

// claim returns a response to replay as it is stored.
func (s *Store) claim(ctx context.Context, c idempotency.Claim) (claimed idempotency.Claimed, response stored, err error) {
	if err := s.lock(ctx); err != nil {
		return claimed, response, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found, n, err := s.find(c.Key, now)
	if err != nil {
		return claimed, response, err
	}
	isNew := found == nil
	found = found.Effective(now)
	claimed = idempotency.Claimed{Verdict: idempotency.Decide(found, c, now), Record: found, Now: now}
	switch claimed.Verdict {
	case idempotency.Proceed:
		if isNew && s.waiting.any(now) {
			return claimed, response, idempotency.ErrFull
		}
		claimed.Previous, claimed.Record = found, c.Record(found, now)
		err = s.putRecord(c.Key, claimed.Record, now)
	case idempotency.ReplayKept:
		var kept bool
		if response, kept = s.response(n, found.Token, now); !kept {
			err = unreadable("record", c.Key, idempotency.ErrResponseMissing)
		}
	}
	return claimed, response, err
}

// Renew implements [idempotency.Store].
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	now := s.now()
	found, err := s.owned(c.Key, c.Token, c.Follows, "", now)
	if found == nil {
		return err
	}
	return s.putRecord(c.Key, found.Renewed(c.Terms, now), now)
}

// owned returns the record in flight that a claim may change, or an error. It returns
// neither if a settlement with the token is stored already.
func (s *Store) owned(key idempotency.Key, token, follows, left string, now time.Time) (*idempotency.Record, error) {
	found, _, err := s.find(key, now)
	if err != nil {
		return nil, err
	}
	if open, err := found.Owned(token, follows, left); !open {
		return nil, err
	}
	return found, nil
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	room := s.encoded.Get().(*[]byte)
	defer s.encoded.Put(room)
	var response stored
	if settlement.Response != nil {
		response = toStore((*room)[:0], key, claimed.Token, settlement.Response)
		if response.body == nil {
			*room = response.head
		}
	}
	settled, err := s.settle(ctx, key, claimed, settlement, response)
	if settled {
		s.waiters.Wake(key)
	}
	return err
}

// settle reports whether it has ended a run, so that the waiters must be woken.
func (s *Store) settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement, response stored) (bool, error) {
	if err := s.lock(ctx); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found, err := s.owned(key, claimed.Token, claimed.Follows, claimed.Leaves(settlement), now)
	settled := found != nil
	if settled {
		next := found.CountedAs(claimed).Settled(settlement, now)
		err = s.put(key, next, claimed.Token, response, now.Add(settlement.ResponseFor()), now)
		settled = err == nil
	}
	s.noteEnd(claimed.Token, err, now)
	return settled, err
}

// Ready implements [idempotency.Store].
func (s *Store) Ready(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	s.mu.Unlock()
	return nil
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	if err := s.lock(ctx); err != nil {
		return nil, time.Time{}, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found, _, err := s.find(key, now)
	if err != nil {
		return nil, time.Time{}, err
	}
	return found.Effective(now), now, nil
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	response, kept := s.response(s.index.find(&key), token, s.now())
	s.mu.Unlock()
	if !kept {
		return nil, nil
	}
	return response.decode(key, token)
}

// Free implements [idempotency.Store].
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string, seen idempotency.Seen) (*idempotency.Record, error) {
	found, err := s.free(ctx, key, token, seen)
	if err == nil {
		s.waiters.Wake(key)
	}
	return found, err
}

func (s *Store) free(ctx context.Context, key idempotency.Key, token string, seen idempotency.Seen) (*idempotency.Record, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found, _, err := s.find(key, now)
	if err != nil {
		return nil, err
	}
	freed, err := found.Freed(token, seen, now)
	if err != nil {
		return nil, err
	}
	return found.Effective(now), s.putRecord(key, freed, now)
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	err := s.forget(ctx, key, seen)
	if err == nil {
		s.waiters.Wake(key)
	}
	return err
}

func (s *Store) forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	now := s.now()
	found, n, err := s.find(key, now)
	if err != nil { // what cannot be read is removed
		err = seen.MayBeUnreadable()
	} else {
		err = found.Effective(now).MayBeTaken(seen, now)
	}
	if err != nil {
		return err
	}
	s.removeKey(n)
	return nil
}

// Subscribe implements [idempotency.Store].
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return s.waiters.Subscribe(wake)
}

// Close implements [idempotency.Store].
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if !closed {
		close(s.stop)
	}
	<-s.stopped
	return nil
}
