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
	if limit < 1 {
		return nil, "", fmt.Errorf("a page of %d records; it must be at least 1", limit)
	}
	var after idempotency.Key
	if cursor != "" {
		key, err := idempotency.ParseKey(cursor)
		if err != nil {
			return nil, "", fmt.Errorf("cursor: %w", err)
		}
		after = key
	}
	if err := s.lock(ctx); err != nil {
		return nil, "", err
	}
	defer s.mu.Unlock()
	now := s.now()
	var page []idempotency.Listed
	for _, shard := range s.shards[after[0]:] {
		var keys []idempotency.Key
		for key := range shard {
			if cursor == "" || bytes.Compare(key[:], after[:]) > 0 {
				keys = append(keys, key)
			}
		}
		slices.SortFunc(keys, func(a, b idempotency.Key) int { return bytes.Compare(a[:], b[:]) })
		for _, key := range keys {
			record := s.record(key, now).Effective(now)
			if record == nil {
				continue
			}
			if len(page) == limit {
				return page, page[limit-1].Key.String(), nil
			}
			page = append(page, idempotency.Listed{Key: key, Record: copyRecord(record)})
		}
	}
	return page, "", nil
}
