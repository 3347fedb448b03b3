package file

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// List implements [idempotency.Store]. Pages are sorted by key. A cursor is the last key of the
// previous page.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.list(ctx, cursor, limit, func(key []byte) []byte { return key })
}

// Find implements [idempotency.Store]. It seeks each prefix.
func (s *Store) Find(ctx context.Context, of []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	of = idempotency.SortPrefixes(of)
	return s.list(ctx, cursor, limit, func(key []byte) []byte {
		for ; len(of) > 0; of = of[1:] {
			prefix := of[0][:]
			if bytes.HasPrefix(key, prefix) {
				return key
			}
			if bytes.Compare(key, prefix) < 0 {
				return prefix
			}
		}
		return nil
	})
}

// list returns a page. It calls wanted with sorted keys. wanted returns the key if it belongs on the
// list. Otherwise it returns a lower bound of the next key that may belong on it, nil if there is none.
func (s *Store) list(ctx context.Context, cursor string, limit int, wanted func(key []byte) []byte) ([]idempotency.Listed, string, error) {
	if limit < 1 {
		return nil, "", fmt.Errorf("a page of %d records; it must be at least 1", limit)
	}
	var from []byte
	if cursor != "" {
		key, err := idempotency.ParseKey(cursor)
		if err != nil {
			return nil, "", fmt.Errorf("%w: %w", idempotency.ErrCursor, err)
		}
		from = after(key)
	}
	db, err := s.enter(ctx)
	if err != nil {
		return nil, "", err
	}
	defer db.users.Done()
	type page struct {
		records []idempotency.Listed
		next    string
	}
	p, err := readWithDeadline(ctx, db, func() (page, error) {
		records, next, err := s.readPage(ctx, db, from, limit, wanted)
		return page{records, next}, err
	})
	if isDamage(err) {
		err = &idempotency.UnreadableError{Where: "store directory " + s.path, Err: err}
	}
	if err != nil {
		return nil, "", s.wrap(err)
	}
	return p.records, p.next, nil
}

// after returns the smallest byte string greater than a key.
func after(key idempotency.Key) []byte { return append(key[:], 0) }

func (s *Store) readPage(ctx context.Context, db *database, from []byte, limit int, wanted func(key []byte) []byte) (records []idempotency.Listed, next string, err error) {
	defer recoverPanic(func(panicked error) { err = panicked })
	// Claims are read before the database: a run that ends in between is then in the database.
	it := &keyIterator{claimed: s.keys.claimed(from)}
	it.values, err = db.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{valueTable}, UpperBound: []byte{valueTable + 1}})
	if err != nil {
		return nil, "", err
	}
	defer closeIterator(it.values, &err)
	it.seek(from)
	// Expired records count against the limit, so that one page does not read very many of them.
	for read := 0; ; {
		key, err := it.key()
		if key == nil || err != nil {
			return records, "", err
		}
		seek := wanted(key[:])
		if seek == nil {
			return records, "", nil
		}
		if len(seek) < len(key) {
			it.seek(seek)
			continue
		}
		if read == limit {
			return records, next, nil
		}
		read++
		next = key.String()
		if listed := s.listed(db, it, *key); listed.Record != nil || listed.Unreadable != nil {
			records = append(records, listed)
		}
		it.seek(after(*key))
	}
}

// listed returns the entry for the key at which the iterator is. It has neither a record nor an error
// if the record has expired.
func (s *Store) listed(db *database, it *keyIterator, key idempotency.Key) idempotency.Listed {
	now := s.clock()
	record, locked := s.keys.peek(key)
	if record == nil {
		var stored []byte
		var err error
		if it.hasValue(key) {
			stored, err = it.values.ValueAndErr()
		} else { // its run has ended since the iterator was created
			stored, err = db.get(valueName(key, ""))
		}
		var v *value
		if err == nil && stored != nil {
			v, err = decodeRecordValue(key, stored)
		}
		if err != nil {
			return idempotency.Listed{Key: key, Unreadable: s.unreadable("record", key, err), Now: now}
		}
		if v == nil {
			return idempotency.Listed{Key: key, Now: now}
		}
		// While an operation has locked the key, the record may be that of a claim being written.
		if record = v.record; !locked {
			record = s.lapseOrphan(record, now)
		}
	}
	return idempotency.Listed{Key: key, Record: live(record, now).Effective(now), Now: now}
}

// keyIterator iterates over the keys that have a value or a claim, sorted.
type keyIterator struct {
	values  *pebble.Iterator
	claimed []idempotency.Key
}

// seek moves to the first key that is not less than from.
func (it *keyIterator) seek(from []byte) {
	it.values.SeekGE(append([]byte{valueTable}, from...))
	for len(it.claimed) > 0 && bytes.Compare(it.claimed[0][:], from) < 0 {
		it.claimed = it.claimed[1:]
	}
}

// key returns the key at which the iterator is, nil at the end.
func (it *keyIterator) key() (*idempotency.Key, error) {
	var key *idempotency.Key
	if it.values.Valid() {
		name := it.values.Key()
		if len(name) != 1+keySize {
			return nil, fmt.Errorf("the name %x in the database is not that of a key", name)
		}
		k := idempotency.Key(name[1:])
		key = &k
	} else if err := it.values.Error(); err != nil {
		return nil, err
	}
	if len(it.claimed) > 0 && (key == nil || bytes.Compare(it.claimed[0][:], key[:]) < 0) {
		key = &it.claimed[0]
	}
	return key, nil
}

// hasValue reports whether the iterator is at a key's value.
func (it *keyIterator) hasValue(key idempotency.Key) bool {
	return it.values.Valid() && bytes.Equal(it.values.Key()[1:], key[:])
}

// closeIterator closes an iterator. It must be deferred. It sets *err if that is nil.
func closeIterator(it *pebble.Iterator, err *error) {
	if closeErr := it.Close(); *err == nil {
		*err = closeErr
	}
}
