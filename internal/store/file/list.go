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
	type listed struct {
		page []idempotency.Listed
		next string
	}
	found, _, err := within(ctx, d, func() (listed, error) {
		page, next, err := d.pageOf(ctx, from, limit, wanted)
		return listed{page, next}, err
	}, func() {})
	if err != nil {
		return nil, "", d.listError(err)
	}
	return found.page, found.next, nil
}

// dataNames are the names of the records and responses, in their order: those in the
// database, and those of records that lie in slots.
type dataNames struct {
	it      *pebble.Iterator
	inSlots []idempotency.Key
}

// seek goes to the first name from the given one on.
func (n *dataNames) seek(to []byte) {
	n.it.SeekGE(to)
	for len(n.inSlots) > 0 && bytes.Compare(recordName(n.inSlots[0]), to) < 0 {
		n.inSlots = n.inSlots[1:]
	}
}

// at returns the name, nil at the end, and whether it is that of a record in a slot. If the
// key has been there since and is in the database now, it is so too.
func (n *dataNames) at() (name []byte, inSlot bool) {
	if n.it.Valid() {
		name = n.it.Key()
	}
	if len(n.inSlots) > 0 {
		if slot := recordName(n.inSlots[0]); name == nil || bytes.Compare(slot, name) <= 0 {
			return slot, true
		}
	}
	return name, false
}

// pageOf returns a page from the given name on.
func (d *database) pageOf(ctx context.Context, from []byte, limit int, wanted func(key, at []byte) []byte) (page []idempotency.Listed, next string, err error) {
	defer rescue(&err)
	// The slots come first: a claim that has left its slot since is in the database.
	names := &dataNames{inSlots: d.slots.keys()}
	names.it, err = d.db.NewIterWithContext(ctx, &pebble.IterOptions{LowerBound: from, UpperBound: []byte{dataTable + 1}})
	if err != nil {
		return nil, "", err
	}
	defer closeIterator(names.it, &err)
	names.seek(from)
	// Expired records count against the limit too. Otherwise one page could have to go
	// through very many of them.
	looked := 0
	for {
		name, inSlot := names.at()
		if err := names.it.Error(); err != nil {
			return nil, "", err
		}
		if name == nil {
			return page, "", nil
		}
		if len(name) < 1+keySize {
			return nil, "", fmt.Errorf("the name %x is too short for that of a record", name)
		}
		key := idempotency.Key(name[1:])
		if to := wanted(key[:], name); to == nil {
			return page, "", nil
		} else if !bytes.Equal(to, name) {
			names.seek(to)
			continue
		}
		if looked == limit {
			return page, next, nil
		}
		looked++
		next = key.String()
		if listed, ok := d.listed(names.it, key, inSlot); ok {
			page = append(page, listed)
		}
		names.seek(afterKey(key))
	}
}

// listed returns the record at which the iterator stands, or that of a key with a slot;
// false if none is to be listed.
func (d *database) listed(it *pebble.Iterator, key idempotency.Key, inSlot bool) (idempotency.Listed, bool) {
	now := clock()
	read := func([]byte) ([]byte, error) { return it.ValueAndErr() }
	switch {
	case inSlot:
		read = d.get
	case !bytes.Equal(it.Key(), recordName(key)):
		return idempotency.Listed{}, false // responses of a record that was removed
	}
	record, err := d.recordBy(read, key)
	if err != nil {
		return idempotency.Listed{Key: key, Unreadable: err, Now: now}, true
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
	if isDamage(err) {
		return &idempotency.UnreadableError{Where: "store directory " + d.path, Err: err}
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return d.writeError(err)
}
