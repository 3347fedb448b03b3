// Package memory is a store in the memory of the process. It is empty after a
// restart, so it is for trying caddy-dedup out, and for tests.
package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

// Store keeps records and responses in maps. If there is no room, it refuses what is
// new. It never drops what has not expired: a request whose key was forgotten too
// early would run twice.
type Store struct {
	limit   int64
	started time.Time
	waiters wakeup.Subscribers

	mu      sync.Mutex
	closed  bool
	size    int64
	shards  [shards]map[idempotency.Key]*entry
	expires expiryHeap

	stop    chan struct{}
	stopped chan struct{}
}

var _ idempotency.Store = (*Store)(nil)

// shards is the number of maps: there is one for each first byte of a key, so that
// [Store.List] sorts the keys of one map at a time, and not all of them.
const shards = 256

// entry is what is kept of one key.
type entry struct {
	record *item
	// responses are by the token of their run. A response stays when the key is
	// claimed again, for requests that waited for the run before.
	responses map[string]*item
}

// New returns an empty store that takes about limit bytes. It starts a sweeper, which
// [Store.Close] ends.
func New(limit int64) *Store {
	s := &Store{
		limit:   limit,
		started: time.Now(),
		stop:    make(chan struct{}),
		stopped: make(chan struct{}),
	}
	for i := range s.shards {
		s.shards[i] = make(map[idempotency.Key]*entry)
	}
	go s.sweep()
	return s
}

// SetLimit changes how many bytes the store takes, about. What it has already stays,
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
	if err := s.lock(ctx); err != nil {
		return idempotency.Claimed{}, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found := s.record(c.Key, now).Effective(now)
	claimed := idempotency.Claimed{Verdict: idempotency.Decide(found, c, now), Record: copyRecord(found), Now: now}
	switch claimed.Verdict {
	case idempotency.Proceed:
		record := c.Record(found, now)
		if err := s.putRecord(c.Key, record, now); err != nil {
			return idempotency.Claimed{}, err
		}
		claimed.Previous, claimed.Record = claimed.Record, copyRecord(record)
	case idempotency.ReplayKept:
		response := s.response(c.Key, found.Token, now)
		if response == nil {
			return idempotency.Claimed{}, &idempotency.UnreadableError{
				Where: "memory record " + c.Key.String(), Err: fmt.Errorf("it is complete, but its response is missing"),
			}
		}
		claimed.Response = copyResponse(response)
	}
	return claimed, nil
}

// Renew implements [idempotency.Store].
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	now := s.now()
	found := s.record(c.Key, now)
	if open, err := found.Owned(c.Token, c.Follows); !open {
		return err
	}
	return s.putRecord(c.Key, found.Renewed(c.Terms, now), now)
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	settled, err := s.settle(ctx, key, claimed, settlement)
	if settled {
		s.waiters.Wake(key)
	}
	return err
}

// settle reports whether it has ended a run, so that the waiters must be woken.
func (s *Store) settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) (bool, error) {
	if err := s.lock(ctx); err != nil {
		return false, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found := s.record(key, now)
	if open, err := found.Owned(claimed.Token, claimed.Follows); !open {
		return false, err
	}
	if settlement.Response != nil {
		response := copyResponse(settlement.Response)
		if err := s.putResponse(key, claimed.Token, response, now.Add(settlement.ResponseFor()), now); err != nil {
			return false, err
		}
	}
	// The new record is not larger than the one in flight, so it always fits.
	return true, s.putRecord(key, found.CountedAs(claimed).Settled(settlement, now), now)
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	if err := s.lock(ctx); err != nil {
		return nil, time.Time{}, err
	}
	defer s.mu.Unlock()
	now := s.now()
	return copyRecord(s.record(key, now).Effective(now)), now, nil
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	return copyResponse(s.response(key, token, s.now())), nil
}

// Free implements [idempotency.Store].
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string) (*idempotency.Record, error) {
	found, err := s.free(ctx, key, token)
	if err == nil {
		s.waiters.Wake(key)
	}
	return found, err
}

func (s *Store) free(ctx context.Context, key idempotency.Key, token string) (*idempotency.Record, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	now := s.now()
	found := s.record(key, now)
	freed, err := found.Freed(token, now)
	if err != nil {
		return nil, err
	}
	return copyRecord(found.Effective(now)), s.putRecord(key, freed, now)
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key) error {
	err := s.forget(ctx, key)
	if err == nil {
		s.waiters.Wake(key)
	}
	return err
}

func (s *Store) forget(ctx context.Context, key idempotency.Key) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	now := s.now()
	if err := s.record(key, now).Effective(now).MayBeTaken(now); err != nil {
		return err
	}
	e := s.shard(key)[key]
	s.remove(e.record)
	for _, response := range e.responses {
		s.remove(response)
	}
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
