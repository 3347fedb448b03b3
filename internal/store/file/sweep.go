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

// sweep removes what has expired until the context ends.
func (s *Store) sweep(ctx context.Context) {
	failing := false
	for {
		err := s.sweepOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !failing {
			s.logger.Warn("expired records stay in the store", zap.String("path", s.path), plainError(err))
		}
		failing = err != nil
		if !pause(ctx, sweepInterval) {
			return
		}
	}
}

func (s *Store) sweepOnce(ctx context.Context) error {
	db, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer db.users.Done()
	s.keys.dropExpired(clock())
	err = errors.Join(s.filter.rebuild(ctx, db), s.bodies.removeExpired(clock()))
	for from := []byte(nil); err == nil; {
		began := time.Now()
		if from, err = s.sweepStep(ctx, db, from); from == nil || !pause(ctx, max(sweepRest*time.Since(began), time.Millisecond)) {
			break
		}
	}
	return err
}

// sweepStep removes the next values that are due, from an expiry on. It returns where to go on, nil
// if nothing more is due.
func (s *Store) sweepStep(ctx context.Context, db *database, from []byte) (next []byte, err error) {
	due, err := db.due(from, clock().Add(-sweepDelay))
	if len(due) == 0 || err != nil {
		return nil, err
	}
	locked := make(map[idempotency.Key]*claim)
	unlock := func(o outcome) {
		for key, c := range locked {
			if c != nil && o != notApplied {
				c = &claim{record: c.record} // whose base is gone
			}
			s.keys.unlock(key, c)
		}
	}
	for _, expiry := range due {
		key := keyOfExpiry(expiry)
		if _, ok := locked[key]; ok {
			continue
		}
		c, ok := s.keys.tryLock(key)
		if !ok {
			break // it is in use; the next sweep comes to it
		}
		locked[key] = c
	}
	// A key may have been written before it was locked, and its expiry replaced. So the expiries
	// count that are there now. The last of them whose key is locked ends the step.
	if due, err = db.due(from, clock().Add(-sweepDelay)); err != nil {
		unlock(notApplied)
		return nil, err
	}
	batch := db.db.NewBatch()
	swept := 0
	for _, expiry := range due {
		key := keyOfExpiry(expiry)
		if _, ok := locked[key]; !ok {
			break
		}
		err = errors.Join(err, batch.Delete(valueName(key, string(expiry[1+momentSize+keySize:])), nil))
		swept++
	}
	if swept == 0 || err != nil {
		unlock(notApplied)
		return nil, errors.Join(err, batch.Close())
	}
	next = append(due[swept-1], 0)
	// One range for all: the next sweep does not pass each of them again.
	if err := batch.DeleteRange(due[0], next, nil); err != nil {
		unlock(notApplied)
		return nil, errors.Join(err, batch.Close())
	}
	if _, err = db.commit(ctx, batch, unlock); err != nil || swept < sweepSize {
		return nil, err
	}
	return next, nil
}

// due returns up to sweepSize expiries from there on that are before a moment.
func (d *database) due(from []byte, before time.Time) (due [][]byte, err error) {
	defer recoverPanic(func(panicked error) { err = panicked })
	if from == nil {
		from = []byte{expiryTable}
	}
	end := expiryName(before.UnixMilli(), idempotency.Key{}, "")
	if bytes.Compare(from, end) >= 0 {
		return nil, nil
	}
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: end})
	if err != nil {
		return nil, err
	}
	defer closeIterator(it, &err)
	for valid := it.First(); valid && len(due) < sweepSize; valid = it.Next() {
		due = append(due, bytes.Clone(it.Key()))
	}
	return due, nil
}

// keyOfExpiry returns the key that an expiry names.
func keyOfExpiry(expiry []byte) idempotency.Key {
	return idempotency.Key(expiry[1+momentSize : 1+momentSize+keySize])
}

// expiriesOf returns the expiries of a key's value and answers. It reads all expiries.
func (d *database) expiriesOf(key idempotency.Key) (expiries [][]byte, err error) {
	defer recoverPanic(func(panicked error) { err = panicked })
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: []byte{expiryTable}, UpperBound: []byte{expiryTable + 1}})
	if err != nil {
		return nil, err
	}
	defer closeIterator(it, &err)
	for valid := it.First(); valid; valid = it.Next() {
		if keyOfExpiry(it.Key()) == key {
			expiries = append(expiries, bytes.Clone(it.Key()))
		}
	}
	return expiries, nil
}
