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

// What has expired counts as absent at once. The sweeper only gives its space back.
const (
	sweepEvery = 5 * time.Second
	// sweepDelay is how long an entry of the expiries is due before the sweeper comes to
	// it. No operation is under way for so long, so no entry is made among those that
	// it removes.
	sweepDelay = 10 * time.Second
	// sweepAtOnce is how many entries one step removes. Their keys are locked meanwhile.
	sweepAtOnce = 512
	// sweepRest is how long the sweeper rests after a step, as a multiple of the time
	// that the step took: requests come first.
	sweepRest = 2
)

// sweepExpired is the sweeper: it removes what has expired, until Close.
func (s *Store) sweepExpired() {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failing := false
	var bodies time.Time // when they were swept
	for {
		_ = s.refreshFilter() // without one, each look for a key costs more
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
		err := s.sweepDue()
		if time.Since(bodies) >= sweepStep {
			bodies = time.Now()
			err = errors.Join(err, s.sweepBodies())
		}
		if err != nil && !failing {
			s.logger.Warn("expired records stay in the store", zap.String("path", s.path), reason(err))
		}
		failing = err != nil
	}
}

// sweepDue removes all that has expired by now.
func (s *Store) sweepDue() (err error) {
	defer rescue(&err)
	w := &sweep{from: []byte{expiryTable}, now: clock()}
	if err := s.sweepSlots(w.now); err != nil {
		return err
	}
	for !w.ended {
		began := time.Now()
		if err := s.sweepSome(w); err != nil {
			return err
		}
		if s.restAfter(began) {
			return nil
		}
	}
	return nil
}

// restAfter rests after a step of the sweeper. Closing says that the store is being closed.
func (s *Store) restAfter(began time.Time) (closing bool) {
	rest := time.NewTimer(max(sweepRest*time.Since(began), time.Millisecond))
	defer rest.Stop()
	select {
	case <-s.closing:
		return true
	case <-rest.C:
		return false
	}
}

// sweep is one way through the entries that are due.
type sweep struct {
	from  []byte // where the next step begins
	now   time.Time
	ended bool
}

// sweepSome removes what the next entries point to, and the entries.
func (s *Store) sweepSome(w *sweep) error {
	d, leave, err := s.enter(context.Background())
	if err != nil {
		return err
	}
	defer leave()
	due, err := d.due(w)
	if err != nil || len(due) == 0 {
		return err
	}
	change := d.change()
	locked := make(map[idempotency.Key]bool)
	unlock := func() {
		for key := range locked {
			d.locks.unlock(key)
		}
	}
	passedOn := false
	defer func() {
		if !passedOn {
			unlock()
		}
	}()
	swept := 0
	for _, entry := range due {
		_, key, token, ok := parseExpiry(entry)
		if ok && !locked[key] {
			if !d.locks.tryLock(key) {
				break // the key is in use: it comes first in the next step
			}
			locked[key] = true
		}
		if ok {
			if err := s.sweepEntry(d, change, key, token, w.now); err != nil {
				return err
			}
		}
		swept++
	}
	// One whose end took so long that it came after all were erased.
	if d.slots.hasStale(locked) {
		if err := d.eraseSlots(context.Background(), nil); err != nil {
			return err
		}
	}
	w.ended = w.ended && swept == len(due)
	if swept == 0 {
		w.ended = true // until the next time
		return change.Close()
	}
	// One tombstone for all the entries: those who look for the first entry later need
	// not go over each.
	after := append(bytes.Clone(due[swept-1]), 0)
	if err := change.DeleteRange(due[0], after, nil); err != nil {
		return err
	}
	w.from = after
	passedOn = true
	_, err = d.commit(context.Background(), &operation{batch: change.Batch, ended: func(bool) { unlock() }})
	return err
}

// sweepSlots erases the stale slots. What is removed until the next time had ended before.
// Claims that have lapsed are given to pebble, so that they expire as all do, and their
// slots are free for others.
func (s *Store) sweepSlots(now time.Time) error {
	d, leave, err := s.enter(context.Background())
	if err != nil {
		return err
	}
	defer leave()
	for _, key := range d.slots.keys() {
		if err := s.moveLapsed(d, key, now); err != nil {
			return err
		}
	}
	return d.eraseSlots(context.Background(), nil)
}

func (s *Store) moveLapsed(d *database, key idempotency.Key, now time.Time) error {
	if !d.locks.tryLock(key) {
		return nil // the next time
	}
	k := lockedKey{database: d, key: key, leaveDatabase: func() {}}
	defer k.leave()
	record, err := d.record(key)
	if err != nil || record == nil || d.inDatabase(key, record) != nil || !record.Lapsed(now) {
		return err
	}
	change := d.change()
	if err := change.putRecord(key, nil, record); err != nil {
		return err
	}
	_, err = k.carryOut(context.Background(), s.operation(d, key, change, false, false))
	return err
}

// due returns the next entries that are due, and notes whether they are the last.
func (d *database) due(w *sweep) (due [][]byte, err error) {
	end := appendMoment([]byte{expiryTable}, w.now.Add(-sweepDelay))
	if bytes.Compare(w.from, end) >= 0 {
		w.ended = true
		return nil, nil
	}
	defer func() {
		if err != nil {
			due, err = nil, d.listError(err)
		}
	}()
	defer rescue(&err)
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: w.from, UpperBound: end})
	if err != nil {
		return nil, err
	}
	defer closeIterator(it, &err)
	for valid := it.First(); valid && len(due) < sweepAtOnce; valid = it.Next() {
		due = append(due, bytes.Clone(it.Key()))
	}
	w.ended = len(due) < sweepAtOnce
	return due, nil
}

// sweepEntry removes the record of a key (no token) or the response of a run, if it has
// expired. It looks at the record or response itself, because the entry may be left over
// from an earlier one of the same key.
func (s *Store) sweepEntry(d *database, c change, key idempotency.Key, token string, now time.Time) error {
	if token != "" {
		stored, err := d.storedResponse(key, token)
		if _, damaged := errors.AsType[*idempotency.UnreadableError](err); err != nil && !damaged {
			return err
		}
		if stored != nil && now.Before(stored.until) {
			return nil
		}
		return c.Delete(responseName(key, token), nil)
	}
	record, err := d.record(key)
	_, damaged := errors.AsType[*idempotency.UnreadableError](err)
	switch {
	case damaged:
		// The entry says that the record was to be forgotten by now.
		s.logger.Warn("an expired record that cannot be read is removed", reason(err))
		return c.forget(key, nil)
	case err != nil:
		return err
	case record == nil || live(record, now) != nil:
		return nil
	}
	if expired := kept(record); expired != nil {
		if err := c.Delete(responseName(key, expired.Token), nil); err != nil {
			return err
		}
	}
	return c.Delete(recordName(key), nil)
}
