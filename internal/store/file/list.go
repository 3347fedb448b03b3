package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// List implements [idempotency.Store]. The order is that of the keys. A cursor is the
// last key that was looked at for the page before.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.page(ctx, cursor, limit, func(_, at []byte) []byte { return at })
}

// Find implements [idempotency.Store]. It seeks each beginning.
func (s *Store) Find(ctx context.Context, of []idempotency.Beginning, cursor string, limit int) ([]idempotency.Listed, string, error) {
	of = idempotency.SortBeginnings(of)
	return s.page(ctx, cursor, limit, func(key, at []byte) []byte {
		for ; len(of) > 0; of = of[1:] {
			begins := of[0][:]
			switch {
			case bytes.HasPrefix(key, begins):
				return at
			case bytes.Compare(key, begins) < 0:
				return append([]byte{dataTable}, begins...)
			}
		}
		return nil
	})
}

// page returns a page of records. wanted is given a key and its place in the database,
// and returns that place if the key belongs to the list; else the place from which on to
// look for the next that does, nil if there is none.
func (s *Store) page(ctx context.Context, cursor string, limit int, wanted func(key, at []byte) []byte) ([]idempotency.Listed, string, error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("a page of %d records; it must be at least 1", limit)
	}
	from := []byte{dataTable}
	if cursor != "" {
		key, err := idempotency.ParseKey(cursor)
		if err != nil {
			return nil, "", fmt.Errorf("%w: %w", idempotency.ErrCursor, err)
		}
		from = afterKey(key)
	}
	d, leave, err := s.enter(ctx)
	if err != nil {
		return nil, "", err
	}
	defer leave()
	it, err := d.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: []byte{dataTable + 1}})
	if err != nil {
		return nil, "", d.listError(err)
	}
	page, next, err := d.pageOf(it, limit, wanted)
	if closing := it.Close(); err == nil && closing != nil {
		err = closing
	}
	if err != nil {
		return nil, "", d.listError(err)
	}
	return page, next, nil
}

func (d *database) pageOf(it *pebble.Iterator, limit int, wanted func(key, at []byte) []byte) (page []idempotency.Listed, next string, err error) {
	// Expired records count against the limit too. Otherwise one page could have to go
	// through very many of them.
	looked := 0
	for valid := it.First(); valid; {
		name := it.Key()
		if len(name) < 1+keySize {
			return nil, "", fmt.Errorf("the name %x is too short for that of a record", name)
		}
		key := idempotency.Key(name[1:])
		if to := wanted(key[:], name); to == nil {
			return page, "", nil
		} else if !bytes.Equal(to, name) {
			valid = it.SeekGE(to)
			continue
		}
		if looked == limit {
			return page, next, nil
		}
		looked++
		next = key.String()
		if listed, ok := d.listed(it, key); ok {
			page = append(page, listed)
		}
		valid = it.SeekGE(afterKey(key))
	}
	return page, "", it.Error()
}

// listed returns the record at which the iterator stands; false if none is to be listed.
func (d *database) listed(it *pebble.Iterator, key idempotency.Key) (idempotency.Listed, bool) {
	now := clock()
	if !bytes.Equal(it.Key(), recordName(key)) {
		return idempotency.Listed{}, false // responses of a record that was removed
	}
	stored, err := it.ValueAndErr()
	if err != nil {
		return idempotency.Listed{Key: key, Unreadable: d.readError("record", key, err), Now: now}, true
	}
	record, err := idempotency.DecodeRecord(key, stored)
	if err != nil {
		return idempotency.Listed{Key: key, Unreadable: d.unreadable("record", key, err), Now: now}, true
	}
	counts := live(record, now).Effective(now)
	return idempotency.Listed{Key: key, Record: counts, Now: now}, counts != nil
}

// afterKey returns the place after all that is stored of a key.
func afterKey(key idempotency.Key) []byte {
	name := recordName(key)
	name[len(name)-1] = ofResponse + 1
	return name
}

func (d *database) listError(err error) error {
	if pebble.IsCorruptionError(err) {
		return &idempotency.UnreadableError{Where: "store directory " + d.path, Err: err}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return d.writeError(err)
}
