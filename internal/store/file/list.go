package file

import (
	"bytes"
	"context"
	"fmt"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// List implements [idempotency.Store]. The pages are in the order of the keys. A cursor is the
// last key of the page before.
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	return s.list(ctx, cursor, limit, func(key []byte) []byte { return key })
}

// Find implements [idempotency.Store]. It seeks each beginning.
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

// list returns a page. wanted is called with keys in order. It returns the key if that belongs to
// the list; else the bytes with which the next one begins at the earliest, nil if there is none.
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

// after returns the bytes that come after a key, and before all that come later.
func after(key idempotency.Key) []byte { return append(key[:], 0) }

func (s *Store) readPage(ctx context.Context, db *database, from []byte, limit int, wanted func(key []byte) []byte) (records []idempotency.Listed, next string, err error) {
	defer recoverPanic(func(panicked error) { err = panicked })
	// The claims come first: a run that has ended since is in the database.
	it := &keyIterator{claimed: s.keys.claimed(from)}
	it.values, err = db.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: []byte{valueTable}, UpperBound: []byte{valueTable + 1}})
	if err != nil {
		return nil, "", err
	}
	defer closeIterator(it.values, &err)
	it.seek(from)
	// Expired records count against the limit. Otherwise one page could read very many of them.
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

// listed returns what is listed of the key at which the iterator is. It has neither a record nor an
// error if the record has expired.
func (s *Store) listed(db *database, it *keyIterator, key idempotency.Key) idempotency.Listed {
	now := clock()
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
		// While an operation has the lock, the record may be that of a claim that it makes.
		if record = v.record; !locked {
			record = s.ofDeadProcess(record)
		}
	}
	return idempotency.Listed{Key: key, Record: live(record, now).Effective(now), Now: now}
}

// keyIterator iterates over the keys that have a value or a claim.
type keyIterator struct {
	values  *pebble.Iterator
	claimed []idempotency.Key
}

// seek goes to the first key from the given bytes on.
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

// closeIterator closes an iterator, in a deferred call. It sets the error if there is none yet.
func closeIterator(it *pebble.Iterator, err *error) {
	if closeErr := it.Close(); *err == nil {
		*err = closeErr
	}
}
