// Package file is the durable store of one process, in a single bbolt file. When a
// call returns without an error, its change is on the disk. So a crash of the
// process or of the machine loses nothing that a client has been told.
//
// Reads run in the goroutine of the caller. Writes run in one goroutine, the
// committer: it puts all operations that are queued into one transaction, so that
// they share one flush of the disk (commit.go).
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
	file    *os.File // the file that db has open and locked
	logger  *zap.Logger
	waiters wakeup.Subscribers
	// A damaged file can make bbolt panic before it has unlocked its own locks, and
	// the next call would wait for them for ever. Once brokenWrites is set, nothing
	// is written any more. Once broken is set, nothing is read either.
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

// clock is the clock of the store. It is the wall clock, because after a restart the
// times in the file must still be comparable with it.
func clock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Claim implements [idempotency.Store]. It reads first: a duplicate, which needs no
// write, then does not wait for the committer and the disk.
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
		found, err := t.owned(c.Key, c.Token, c.Follows, now)
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
			found, err := t.owned(key, claimed.Token, claimed.Follows, now)
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
		// The committer wakes the waiters, because the caller may have given up.
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

// Close implements [idempotency.Store]. It still commits what is queued.
func (s *Store) Close() error { return s.close() }
