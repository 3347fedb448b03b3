package file

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Most claims are of new keys. To look for one, pebble asks each of its tables in memory and
// the filter of each on the disk, and opens iterators on all of them. One filter over the
// keys of all, of a fixed size, says the same with one look at the memory.
//
// It must never say of a key that it is new if pebble has a record of it. So the writer
// adds each key before it gives pebble the record, and the keys that were there before are
// read when the database is opened: until all of them are in it, nobody asks it. What is
// removed from the database stays in the filter. When many keys have come, it is made anew.

const (
	// filterBytes is how large a filter is. It errs for 1 of 1,000 keys while it has
	// 1,000,000, for 1 of 30 while it has 2,000,000, and costs as much more time then as
	// looks for nothing.
	filterBytes = 2 << 20
	// filterKeys is after how many keys it is made anew, and filterRest how long it
	// stays as it is at least.
	filterKeys = 2_000_000
	filterRest = time.Minute
	// filterStep is how many names are read before the reader rests.
	filterStep = 2048
)

// keyFilter is a Bloom filter. The bits of a key are in one block, which is as large as a
// line of the processor's cache. A key is a hash, so its own bits say which.
type keyFilter struct{ blocks []filterBlock }

type filterBlock [8]atomic.Uint64

func newKeyFilter() *keyFilter {
	return &keyFilter{blocks: make([]filterBlock, filterBytes/64)}
}

// bitsOf returns the block of a key, and a number that has nine bits for each of its bits
// in the block.
func (f *keyFilter) bitsOf(key *idempotency.Key) (*filterBlock, uint64) {
	block := binary.LittleEndian.Uint32(key[:]) % uint32(len(f.blocks)) //nolint:gosec // there are not so many
	return &f.blocks[block], binary.LittleEndian.Uint64(key[8:])
}

// bitsOfAKey is how many bits a key has.
const bitsOfAKey = 6

func (f *keyFilter) add(key *idempotency.Key) {
	block, bits := f.bitsOf(key)
	for range bitsOfAKey {
		block[bits>>6%8].Or(1 << (bits % 64))
		bits >>= 9
	}
}

// mayHave reports whether the key may have been added. If not, it certainly was not.
func (f *keyFilter) mayHave(key *idempotency.Key) bool {
	block, bits := f.bitsOf(key)
	for range bitsOfAKey {
		if block[bits>>6%8].Load()&(1<<(bits%64)) == 0 {
			return false
		}
		bits >>= 9
	}
	return true
}

// filters are the filter of a database, and the one that takes its place next. The writer
// changes them, so that it never adds a key to too few.
type filters struct {
	known atomic.Pointer[keyFilter] // has all keys; nil until one does
	next  *keyFilter                // is being made, nil if none is
	// added is how many keys the writer has added since the last one was begun, and
	// begun when that was. The sweeper sets it.
	added atomic.Int64
	begun time.Time
}

// add is called by the writer before it gives pebble a record of the key.
func (f *filters) add(key *idempotency.Key) {
	if known := f.known.Load(); known != nil {
		known.add(key)
	}
	if f.next != nil {
		f.next.add(key)
	}
	f.added.Add(1)
}

// isNew reports that pebble certainly has no record of the key.
func (f *filters) isNew(key *idempotency.Key) bool {
	known := f.known.Load()
	return known != nil && !known.mayHave(key)
}

// due reports whether it is time for another filter.
func (f *filters) due(now time.Time) bool {
	if f.begun.IsZero() {
		return true
	}
	return now.Sub(f.begun) >= filterRest && (f.known.Load() == nil || f.added.Load() >= filterKeys)
}

// refreshFilter makes a filter if it is time for one.
func (s *Store) refreshFilter() error {
	d, now := s.current(), time.Now()
	if !d.filters.due(now) {
		return nil
	}
	d.filters.begun = now
	return s.makeFilter(d)
}

// makeFilter makes a filter of the keys that the database has. The writer begins with it
// between two operations: what it has written before, those who then read the keys find.
func (s *Store) makeFilter(of *database) error {
	next := newKeyFilter()
	err := s.inWriter(of, func() {
		of.filters.next = next
		of.filters.added.Store(0)
	})
	for from := []byte{dataTable}; from != nil && err == nil; {
		began := time.Now()
		from, err = s.addSome(of, next, from)
		if from != nil && s.restAfter(began) {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return s.inWriter(of, func() {
		of.filters.known.Store(next)
		of.filters.next = nil
	})
}

// inWriter has the writer do something.
func (s *Store) inWriter(of *database, do func()) error {
	d, leave, err := s.enterAgain(of)
	if err != nil {
		return err
	}
	defer leave()
	_, err = d.commit(context.Background(), &operation{write: func() error { do(); return nil }})
	return err
}

// enterAgain is enter, if the database is still this one.
func (s *Store) enterAgain(of *database) (d *database, leave func(), err error) {
	d, leave, err = s.enter(context.Background())
	if err == nil && d != of {
		leave()
		return nil, nil, errors.New("the database was given up meanwhile, and its filter with it")
	}
	return d, leave, err
}

// addSome adds the keys of the next records to a filter. It returns where to go on, nil at
// the end.
func (s *Store) addSome(of *database, filter *keyFilter, from []byte) (next []byte, err error) {
	d, leave, err := s.enterAgain(of)
	if err != nil {
		return nil, err
	}
	defer leave()
	defer func() {
		if err != nil {
			next, err = nil, d.listError(err)
		}
	}()
	defer rescue(&err)
	it, err := d.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: []byte{dataTable + 1}})
	if err != nil {
		return nil, err
	}
	defer closeIterator(it, &err)
	valid := it.First()
	for read := 0; valid && read < filterStep; read++ {
		if name := it.Key(); len(name) == 1+keySize+1 && name[1+keySize] == ofRecord {
			filter.add((*idempotency.Key)(name[1:]))
		}
		valid = it.Next()
	}
	if valid {
		next = append(next, it.Key()...)
	}
	return next, nil
}
