package memory

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// List implements [idempotency.Store]. Pages are sorted by key. A cursor is the last key of the
// previous page.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.list(ctx, cursor, limit, nil)
}

// Find implements [idempotency.Store]. It reads only the maps that can have keys with these prefixes.
func (s *Store) Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	wanted := make(map[byte][]idempotency.KeyPrefix)
	for _, prefix := range of {
		wanted[prefix[0]] = append(wanted[prefix[0]], prefix)
	}
	return s.list(ctx, cursor, limit, wanted)
}

// list returns a page of the keys with the wanted prefixes, or of all keys if wanted is nil. wanted has
// the prefixes by their first byte. list locks the store for one map at a time, so that no request
// waits for a whole page.
func (s *Store) list(ctx context.Context, cursor string, limit int, wanted map[byte][]idempotency.KeyPrefix) (page []idempotency.Listed, next string, err error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("a page of %d records; it must be at least 1", limit)
	}
	var after idempotency.Key
	if cursor != "" {
		if after, err = idempotency.ParseKey(cursor); err != nil {
			return nil, "", fmt.Errorf("%w: %w", idempotency.ErrCursor, err)
		}
	}
	for first := int(after[0]); first < len(s.values); first++ {
		prefixes := wanted[byte(first)]
		if wanted != nil && prefixes == nil {
			continue
		}
		err := s.do(ctx, func(now time.Time) error {
			var keys []idempotency.Key
			for n := range s.values[first] {
				if n.token == 0 && bytes.Compare(n.key[:], after[:]) > 0 && (wanted == nil || slices.Contains(prefixes, n.key.Prefix())) {
					keys = append(keys, n.key)
				}
			}
			slices.SortFunc(keys, func(a, b idempotency.Key) int { return bytes.Compare(a[:], b[:]) })
			for _, key := range keys {
				record, err := s.find(key, now)
				if record = record.Effective(now); record != nil || err != nil {
					page = append(page, idempotency.Listed{Key: key, Record: record, Unreadable: err, Now: now})
				}
				if len(page) > limit {
					break
				}
			}
			return nil
		})
		if err != nil {
			return nil, "", err
		}
		if len(page) > limit {
			return page[:limit], page[limit-1].Key.String(), nil
		}
	}
	return page, "", nil
}
