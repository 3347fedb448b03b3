package file

import (
	"bytes"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What has expired counts as absent at once. The sweeper only gives its space back.
const (
	sweepEvery = 5 * time.Second
	// sweepAtOnce is how many entries one transaction removes. Claims that are queued
	// have to wait for that transaction, and every entry may change pages of its own.
	sweepAtOnce = 256
)

// sweepExpired is the sweeper: it removes what has expired, until Close.
func (s *Store) sweepExpired() {
	defer close(s.swept)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-s.closing:
			return
		case <-tick.C:
		}
		err := s.sweepDue()
		if err != nil && !failing {
			s.logger.Warn("expired records stay in the store file", zap.String("path", s.path), zap.Error(err))
		}
		failing = err != nil
	}
}

// sweepDue removes all that has expired by now.
func (s *Store) sweepDue() error {
	for {
		due := false
		if err := s.read(func(t *tables) error {
			first, _ := t.expiries.Cursor().First()
			due = isDue(first, clock())
			return nil
		}); err != nil || !due {
			return err
		}
		op := &operation{apply: func(t *tables) error { return s.sweepSome(t) }}
		if _, err := s.commit(context.Background(), op); err != nil {
			return err
		}
	}
}

func isDue(entry []byte, now time.Time) bool {
	return len(entry) >= momentSize && !now.Before(moment(entry))
}

// sweepSome removes what the first due entries point to.
func (s *Store) sweepSome(t *tables) error {
	now := clock()
	var due [][]byte
	cursor := t.expiries.Cursor()
	for entry, _ := cursor.First(); isDue(entry, now) && len(due) < sweepAtOnce; entry, _ = cursor.Next() {
		due = append(due, bytes.Clone(entry))
	}
	for _, entry := range due {
		if t.expiries.Get(entry) == nil {
			// The entry was found by its place and not by its name, so the file is
			// damaged. It could not be deleted, and would be due for ever.
			err := &idempotency.UnreadableError{Where: "store file " + s.path, Err: errors.New("its expiries are out of order")}
			return &abortError{err}
		}
		if err := t.delete(t.expiries, entry); err != nil {
			return err
		}
		if len(entry) <= momentSize+keySize {
			continue
		}
		if err := s.sweepEntry(t, entry[momentSize], entry[momentSize+1:], now); err != nil {
			return err
		}
	}
	return nil
}

// sweepEntry removes the record or response with this name, if it has expired. It
// looks at the record or response itself, because the entry may be left over from
// an earlier one with the same name.
func (s *Store) sweepEntry(t *tables, kind byte, name []byte, now time.Time) error {
	switch kind {
	case expiringRecord:
		key := idempotency.Key(name[:keySize])
		record, err := t.record(key)
		if err != nil {
			// The entry says that the record was to be forgotten by now.
			s.logger.Warn("an expired record that cannot be read is removed", zap.Error(err))
			return t.delete(t.records, key[:])
		}
		if record != nil && live(record, now) == nil {
			return t.delete(t.records, key[:])
		}
	case expiringResponse:
		if stored := t.responses.Get(name); stored != nil && (len(stored) < momentSize || !now.Before(moment(stored))) {
			return t.delete(t.responses, name)
		}
	}
	return nil
}
