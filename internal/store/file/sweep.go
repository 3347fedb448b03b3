package file

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What has expired counts as absent at once. The sweeper only returns its space.
const (
	sweepInterval = 5 * time.Second
	roomInterval  = time.Second // of sweepBodies
	// sweepDelay is how long a value is due before it is removed: longer than an operation takes
	// that writes a value which is due at once.
	sweepDelay = 10 * time.Second
	// sweepSize is how many values one step removes. Their keys are locked meanwhile.
	sweepSize = 512
	// sweepRest is how long the sweeper rests after a step, as a multiple of what the step took.
	sweepRest = 2
)

// pause waits, and reports false as soon as the context ends.
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

// sweep calls remove, which removes what has expired, at an interval until the context ends.
func (s *Store) sweep(ctx context.Context, interval time.Duration, remove func(context.Context) error) {
	failing := false
	for {
		err := remove(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			s.logger.Warn("what has expired stays in the store", zap.String("path", s.path), plainError(err))
		}
		failing = err != nil
		if !pause(ctx, interval) {
			return
		}
	}
}

// sweepBodies needs no database: the room that it returns may be what the database waits for.
func (s *Store) sweepBodies(context.Context) error {
	if err := s.bodies.roomFor(0); err != nil {
		_ = s.bodies.setFull(err)
	}
	return s.bodies.removeExpired(clock())
}

func (s *Store) sweepRecords(ctx context.Context) error {
	db, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer db.users.Done()
	s.keys.dropExpired(clock())
	return errors.Join(s.filter.rebuild(ctx, db), s.sweepValues(ctx, db))
}

func (s *Store) sweepValues(ctx context.Context, db *database) error {
	for from := []byte{expiryTable}; ; {
		began := time.Now()
		due, err := db.expiries(from, expiryName(clock().Add(-sweepDelay).UnixMilli(), idempotency.Key{}, ""), sweepSize)
		if len(due) == 0 || err != nil {
			return err
		}
		removed, err := s.removeDue(ctx, db, due)
		if removed < sweepSize || err != nil {
			return err // the rest is in use, or not due
		}
		from = append(due[removed-1], 0)
		if !pause(ctx, max(sweepRest*time.Since(began), time.Millisecond)) {
			return nil
		}
	}
}

// removeDue removes the values that these expiries name, in their order, up to one whose key is in
// use. It returns how many it has removed.
func (s *Store) removeDue(ctx context.Context, db *database, due [][]byte) (removed int, err error) {
	locked := make(map[idempotency.Key]*claim)
	unlock := func(o outcome) {
		for key, c := range locked {
			if c != nil && o != notApplied {
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
		c, ok := s.keys.tryLock(key)
		if !ok {
			break
		}
		locked[key] = c
	}
	// Before it was locked, a key may have been given another value, which is not due. Then its
	// expiry is another one, too.
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
		// One range for all expiries: the next sweep does not pass the removed ones again.
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

// expiries returns up to so many expiries from one name to another.
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
