package file

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Expired records and responses count as absent at once. The sweeper only frees their space.
const (
	sweepInterval     = 5 * time.Second
	bodySweepInterval = time.Second // of sweepBodies
	// sweepDelay is how long everything is due before it is removed: see [Store.removable].
	sweepDelay = time.Minute
	// sweepSize is the maximum number of values that one step removes. Their keys are locked meanwhile.
	sweepSize = 512
	// sweepPauseFactor is the sweeper's pause after a step, as a multiple of the step's duration.
	sweepPauseFactor = 2
)

// pause waits for d and reports true. If the context ends, it returns false at once.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sweep calls remove at an interval, until the context ends. It logs the first of several errors.
func (s *Store) sweep(ctx context.Context, interval time.Duration, remove func(context.Context) error) {
	failing := false
	for {
		err := remove(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			s.logger.Warn("expired data could not be removed from the store", zap.String("path", s.path), plainError(err))
		}
		failing = err != nil
		if !pause(ctx, interval) {
			return
		}
	}
}

// readings are two readings of the clock, the older one for at least sweepDelay.
type readings struct {
	mu           sync.Mutex
	older, newer reading
}

type reading struct {
	wall time.Time
	at   time.Time // with the reading of the monotonic clock
}

// removable returns the time up to which everything that is due is removed. It was due sweepDelay ago
// as well, so a clock that is ahead for a shorter time removes nothing: a value and its body count
// again when the clock is set back. sweepDelay is longer than an operation that writes a value that is
// due at once.
func (s *Store) removable() time.Time {
	r := &s.readings
	r.mu.Lock()
	defer r.mu.Unlock()
	now := reading{s.clock(), time.Now()}
	if r.newer.at.IsZero() || now.at.Sub(r.newer.at) >= sweepDelay {
		r.older, r.newer = r.newer, now
	}
	return earliest(r.older.wall, now.wall)
}

// sweepBodies does not use the database, which may be waiting for the space that sweepBodies frees.
func (s *Store) sweepBodies(context.Context) error {
	s.bodies.measure()
	return s.bodies.removeExpired(s.removable())
}

func (s *Store) sweepRecords(ctx context.Context) error {
	db, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer db.users.Done()
	by := s.removable()
	s.keys.dropExpired(by)
	return errors.Join(s.filter.rebuild(ctx, db), s.sweepValues(ctx, db, by))
}

// sweepValues removes the values that were due by a time.
func (s *Store) sweepValues(ctx context.Context, db *database, by time.Time) error {
	to := expiryName(max(by.UnixMilli(), 0), idempotency.Key{}, "")
	for from := []byte{expiryTable}; ; {
		start := time.Now()
		due, err := db.expiries(from, to, sweepSize)
		if len(due) == 0 || err != nil {
			return err
		}
		removed, err := s.removeDue(ctx, db, due)
		if removed < sweepSize || err != nil {
			return err // the next key is in use, or no other value is due
		}
		from = append(due[removed-1], 0)
		if !pause(ctx, max(sweepPauseFactor*time.Since(start), time.Millisecond)) {
			return nil
		}
	}
}

// removeDue removes the values that these expiries name, in their order, until it meets one whose key
// is in use. It returns how many it has removed.
func (s *Store) removeDue(ctx context.Context, db *database, due [][]byte) (removed int, err error) {
	locked := make(map[idempotency.Key]*claim)
	unlock := func(result writeResult) {
		for key, c := range locked {
			if c != nil && result != notApplied {
				c = c.withoutBase()
			}
			s.keys.unlock(key, c)
		}
	}
	for _, name := range due {
		key := keyOfExpiry(name)
		if _, ok := locked[key]; ok {
			continue
		}
		c, unlocked := s.keys.tryLock(key)
		if unlocked != nil {
			break
		}
		locked[key] = c
	}
	// Before removeDue locked a key, its value may have been replaced by one that is not due. Then the
	// expiry is gone, so the expiries are read again.
	to := append(bytes.Clone(due[len(due)-1]), 0)
	if due, err = db.expiries(due[0], to, len(due)); err != nil {
		unlock(notApplied)
		return 0, err
	}
	batch := db.db.NewBatch()
	for _, name := range due {
		if _, ok := locked[keyOfExpiry(name)]; !ok {
			break
		}
		err = errors.Join(err, batch.Delete(valueName(keyOfExpiry(name), tokenOfExpiry(name)), nil))
		removed++
	}
	if removed > 0 {
		// One range deletion for all expiries lets the next sweep skip them.
		err = errors.Join(err, batch.DeleteRange(due[0], append(bytes.Clone(due[removed-1]), 0), nil))
	}
	if removed == 0 || err != nil {
		unlock(notApplied)
		return 0, errors.Join(err, batch.Close())
	}
	_, err = db.commit(ctx, batch, unlock)
	return removed, err
}

// scanExpiries calls visit with the expiries from one name to another, in order, until it returns
// false.
func (d *database) scanExpiries(from, to []byte, visit func(name []byte) bool) (err error) {
	defer recoverPanic(func(panicked error) { err = panicked })
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return err
	}
	defer closeIterator(it, &err)
	for valid := it.First(); valid && visit(it.Key()); valid = it.Next() {
	}
	return nil
}

// expiries returns up to limit expiries from one name to another.
func (d *database) expiries(from, to []byte, limit int) (names [][]byte, err error) {
	if bytes.Compare(from, to) >= 0 {
		return nil, nil
	}
	err = d.scanExpiries(from, to, func(name []byte) bool {
		names = append(names, bytes.Clone(name))
		return len(names) < limit
	})
	return names, err
}

// expiriesOf returns the expiries of a key's value and answers. It reads all expiries.
func (d *database) expiriesOf(key idempotency.Key) (names [][]byte, err error) {
	err = d.scanExpiries([]byte{expiryTable}, []byte{expiryTable + 1}, func(name []byte) bool {
		if keyOfExpiry(name) == key {
			names = append(names, bytes.Clone(name))
		}
		return true
	})
	return names, err
}

func keyOfExpiry(name []byte) idempotency.Key {
	return idempotency.Key(name[1+momentSize : 1+momentSize+keySize])
}

func tokenOfExpiry(name []byte) string { return string(name[1+momentSize+keySize:]) }
