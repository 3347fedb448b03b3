package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// List implements [idempotency.Store]. The order is that of the keys. A cursor is the
// last key of the page before.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.page(ctx, cursor, limit, func(byte) bool { return true }, func(idempotency.Key) bool { return true })
}

// Find implements [idempotency.Store]. It goes through the keys of those trees in which
// they can be: one of 256, for one beginning.
func (s *Store) Find(ctx context.Context, of []idempotency.Beginning, cursor string, limit int) ([]idempotency.Listed, string, error) {
	wanted := make(map[idempotency.Beginning]bool, len(of))
	var firsts [trees]bool
	for _, begins := range of {
		wanted[begins] = true
		firsts[begins[0]] = true
	}
	return s.page(ctx, cursor, limit,
		func(first byte) bool { return firsts[first] },
		func(key idempotency.Key) bool { return wanted[key.Beginning()] })
}

// page returns a page of the keys that are wanted, from those trees that may have one.
func (s *Store) page(ctx context.Context, cursor string, limit int,
	mayHave func(first byte) bool, wanted func(idempotency.Key) bool) ([]idempotency.Listed, string, error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("a page of %d records; it must be at least 1", limit)
	}
	var after idempotency.Key
	if cursor != "" {
		key, err := idempotency.ParseKey(cursor)
		if err != nil {
			return nil, "", fmt.Errorf("%w: %w", idempotency.ErrCursor, err)
		}
		after = key
	}
	var page []idempotency.Listed
	for first := int(after[0]); first < trees; first++ {
		if !mayHave(byte(first)) {
			continue
		}
		more, err := s.listTree(ctx, first, limit+1-len(page), func(key idempotency.Key) bool {
			return wanted(key) && (cursor == "" || bytes.Compare(key[:], after[:]) > 0)
		})
		if err != nil {
			return nil, "", err
		}
		if page = append(page, more...); len(page) > limit {
			return page[:limit], page[limit-1].Key.String(), nil
		}
	}
	return page, "", nil
}

// listTree returns up to limit records of one tree, those with the first keys that are
// wanted. Only for one tree at a time is the store locked: it is not to keep requests
// waiting for as long as all the keys take.
func (s *Store) listTree(ctx context.Context, first, limit int, wanted func(idempotency.Key) bool) ([]idempotency.Listed, error) {
	if err := s.lock(ctx); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	var keys []idempotency.Key
	s.index.each(byte(first), func(n uint32) {
		if key := *s.keyOf(n); wanted(key) {
			keys = append(keys, key)
		}
	})
	slices.SortFunc(keys, func(a, b idempotency.Key) int { return bytes.Compare(a[:], b[:]) })
	now := s.now()
	var found []idempotency.Listed
	for _, key := range keys {
		if len(found) == limit {
			break
		}
		record, _, err := s.find(key, now)
		if record = record.Effective(now); record != nil || err != nil {
			found = append(found, idempotency.Listed{Key: key, Record: record, Unreadable: err, Now: now})
		}
	}
	return found, nil
}
