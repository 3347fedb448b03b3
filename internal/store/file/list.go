package file

import (
	"bytes"
	"context"
	"fmt"

	bolt "go.etcd.io/bbolt"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// List implements [idempotency.Store]. The order is that of the keys. A cursor is the
// last key that was looked at for the page before.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.page(ctx, cursor, limit, func(_ *bolt.Cursor, name []byte) []byte { return name })
}

// Find implements [idempotency.Store]. It seeks each beginning.
func (s *Store) Find(ctx context.Context, of []idempotency.Beginning, cursor string, limit int) ([]idempotency.Listed, string, error) {
	of = idempotency.SortBeginnings(of)
	return s.page(ctx, cursor, limit, func(c *bolt.Cursor, name []byte) []byte {
		for ; len(of) > 0 && name != nil; of = of[1:] {
			begins := of[0][:]
			if bytes.Compare(name, begins) < 0 {
				name, _ = c.Seek(begins)
			}
			if bytes.HasPrefix(name, begins) {
				return name
			}
		}
		return nil
	})
}

// page returns a page of records. wanted is given the name of a record, at which the
// cursor stands, and returns the first from there on that belongs to the list, nil if
// there is none.
func (s *Store) page(ctx context.Context, cursor string, limit int,
	wanted func(*bolt.Cursor, []byte) []byte) ([]idempotency.Listed, string, error) {
	if err := ctx.Err(); err != nil {
		return nil, "", err
	}
	if limit < 1 {
		return nil, "", fmt.Errorf("a page of %d records; it must be at least 1", limit)
	}
	var after []byte
	if cursor != "" {
		key, err := idempotency.ParseKey(cursor)
		if err != nil {
			return nil, "", fmt.Errorf("%w: %w", idempotency.ErrCursor, err)
		}
		after = key[:]
	}
	var page []idempotency.Listed
	var next string
	err := s.read(func(t *tables) error {
		now := clock()
		c := t.records.Cursor()
		name, _ := c.Seek(after)
		if cursor != "" && bytes.Equal(name, after) {
			name, _ = c.Next()
		}
		name = wanted(c, name)
		// Expired records count against the limit too. Otherwise one page could have
		// to go through very many of them.
		for range limit {
			if name == nil {
				next = ""
				return nil
			}
			if len(name) != keySize || bytes.Compare(name, after) <= 0 {
				// In a damaged file the names can be out of order. Going on then could
				// lead round in a circle.
				return &idempotency.UnreadableError{Where: "store file " + s.path, Err: fmt.Errorf("the record name %x is no key or out of order", name)}
			}
			key := idempotency.Key(name)
			after = key[:]
			record, err := t.record(key)
			if err != nil {
				page = append(page, idempotency.Listed{Key: key, Unreadable: err, Now: now})
			} else if counts := live(record, now).Effective(now); counts != nil {
				page = append(page, idempotency.Listed{Key: key, Record: counts, Now: now})
			}
			next = key.String()
			name, _ = c.Next()
			name = wanted(c, name)
		}
		if name == nil {
			next = ""
		}
		return nil
	})
	if err != nil {
		return nil, "", err
	}
	return page, next, nil
}
