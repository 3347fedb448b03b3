// Package file is the durable store of one process: a single bbolt file. What a
// call returned is on the disk; a crash of the process or of the machine loses
// nothing that was answered.
//
// Reads run in the caller's goroutine. All writes go through one committer,
// which takes whatever is queued into one transaction and so shares the disk's
// flush between all callers of the moment (commit.go).
package file

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

// Store keeps records and responses in one file. [Open] returns one.
type Store struct {
	path    string
	db      *bolt.DB
	file    *os.File // the one that db holds, and with it the lock
	logger  *zap.Logger
	waiters wakeup.Subscribers
	// These are set when a damaged file made bbolt panic in a way that left its
	// locks taken: nothing may be written, or asked, any more.
	brokenWrites, broken atomic.Pointer[idempotency.UnreadableError]

	queue     chan *operation
	closing   chan struct{}
	committed chan struct{} // closed when the committer has ended
	swept     chan struct{} // closed when the sweeper has ended
	close     func() error
}

var _ idempotency.Store = (*Store)(nil)

// start runs the store over an opened file.
func start(path string, db *bolt.DB, file *os.File, logger *zap.Logger) *Store {
	s := &Store{
		path:      path,
		db:        db,
		file:      file,
		logger:    logger,
		queue:     make(chan *operation, queued),
		closing:   make(chan struct{}),
		committed: make(chan struct{}),
		swept:     make(chan struct{}),
	}
	s.close = sync.OnceValue(s.shut)
	go s.commitQueued()
	go s.sweepExpired()
	return s
}

// clock is the store's clock: other processes' times must be comparable after a
// restart, so it is the wall clock.
func clock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Claim implements [idempotency.Store]. Where the claim may not proceed it
// writes nothing and waits for no disk.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	if err := ctx.Err(); err != nil {
		return idempotency.Claimed{}, err
	}
	var claimed idempotency.Claimed
	err := s.read(func(t *tables) (err error) {
		claimed, _, err = t.decide(c, clock())
		return err
	})
	if err != nil {
		return idempotency.Claimed{}, err
	}
	if claimed.Verdict != idempotency.Proceed {
		return claimed, nil
	}
	intended := claimed.Record
	op := &operation{apply: func(t *tables) (err error) {
		var stored *idempotency.Record
		claimed, stored, err = t.decide(c, clock())
		if err != nil || claimed.Verdict != idempotency.Proceed {
			return err
		}
		return t.putRecord(c.Key, stored, claimed.Record)
	}}
	if mayBeApplied, err := s.commit(ctx, op); err != nil {
		if mayBeApplied {
			return idempotency.Claimed{Record: intended}, err
		}
		return idempotency.Claimed{}, err
	}
	return claimed, nil
}

// Renew implements [idempotency.Store].
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	op := &operation{apply: func(t *tables) error {
		now := clock()
		found, err := t.owned(c.Key, c.Token, now)
		if found == nil {
			return err
		}
		return t.putRecord(c.Key, found, found.Renewed(c.Terms, now))
	}}
	_, err := s.commit(ctx, op)
	return err
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	var response []byte
	if settlement.Response != nil {
		response = idempotency.EncodeResponse(key, claimed.Token, settlement.Response)
	}
	settled := false
	op := &operation{
		size: len(response),
		apply: func(t *tables) error {
			now := clock()
			found, err := t.owned(key, claimed.Token, now)
			settled = found != nil
			if found == nil {
				return err
			}
			if response != nil {
				if err := t.putResponse(key, claimed.Token, response, now.Add(settlement.ResponseFor())); err != nil {
					return err
				}
			}
			return t.putRecord(key, found, found.CountedAs(claimed).Settled(settlement, now))
		},
		// Not by the caller, which may have given up.
		applied: func() {
			if settled {
				s.waiters.Wake(key)
			}
		},
	}
	_, err := s.commit(ctx, op)
	return err
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	if err := ctx.Err(); err != nil {
		return nil, time.Time{}, err
	}
	now := clock()
	var found *idempotency.Record
	err := s.read(func(t *tables) error {
		stored, err := t.record(key)
		found = live(stored, now).Effective(now)
		return err
	})
	return found, now, err
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var found *idempotency.Response
	err := s.read(func(t *tables) error {
		response, until, err := t.response(key, token)
		if clock().Before(until) {
			found = response
		}
		return err
	})
	return found, err
}

// Free implements [idempotency.Store].
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string) (*idempotency.Record, error) {
	var found *idempotency.Record
	op := &operation{
		apply: func(t *tables) error {
			now := clock()
			stored, err := t.record(key)
			if err != nil {
				return err
			}
			freed, err := live(stored, now).Freed(token, now)
			if err != nil {
				return err
			}
			found = stored.Effective(now)
			return t.putRecord(key, stored, freed)
		},
		applied: func() { s.waiters.Wake(key) },
	}
	if _, err := s.commit(ctx, op); err != nil {
		return nil, err
	}
	return found, nil
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key) error {
	op := &operation{
		apply: func(t *tables) error {
			now := clock()
			stored, unreadable := t.record(key)
			if unreadable == nil {
				if err := live(stored, now).Effective(now).MayBeTaken(now); err != nil {
					return err
				}
			}
			return t.forget(key, stored)
		},
		applied: func() { s.waiters.Wake(key) },
	}
	_, err := s.commit(ctx, op)
	return err
}

// Subscribe implements [idempotency.Store].
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return s.waiters.Subscribe(wake)
}

// Close implements [idempotency.Store]. What is queued is still committed.
func (s *Store) Close() error { return s.close() }
