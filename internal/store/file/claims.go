package file

import (
	"bytes"
	"context"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A claim of a new key that need not survive a crash of the machine lies in a slot of a
// file, and the end of its run is the first that pebble has of the key. So it is handed
// to the system with one write, and waits neither for pebble nor for a flush.
//
// A slot counts as long as pebble has no record of its key. Nothing has to be done to it
// when the run ends: it is free then, and what it has is stale. Before pebble may lose the
// record of a key again (sweep, forget), the stale slots are erased, and that is flushed.
// When the database is opened, it is given the claims that are left in slots (recover.go).
const (
	claimsName = "caddy-dedup.claims"
	// mostSlots bounds how many there are. A claim that finds none, or that is too long for
	// one, is written to pebble.
	mostSlots = 4096
)

// slots are the claims in slots.
type slots struct {
	disk *disk
	file vfs.File // only the writer writes to it

	mu   sync.Mutex
	open map[idempotency.Key]slot // those that count
	free []int
	used int // how many there are in the file
	// stale are those in the file that are not open, and not erased, with their keys.
	stale map[int]idempotency.Key
	// reused says that a stale one was written over since the last flush: what it had
	// can come back after a crash of the machine. Only the writer uses it.
	reused bool
}

// slot is a claim, and where it lies.
type slot struct {
	number int
	form   []byte // of the record, as the codec writes it
}

func newSlots(disk *disk) *slots {
	return &slots{disk: disk, open: make(map[idempotency.Key]slot), stale: make(map[int]idempotency.Key)}
}

// create makes the file anew, without a claim.
func (s *slots) create(path string) error {
	name := s.disk.PathJoin(path, claimsName)
	err := s.disk.carryOut(func() (err error) {
		s.file, err = s.disk.FS.Create(name, vfs.WriteCategoryUnspecified)
		return err
	})
	if err == nil {
		makePrivate(s.disk.FS, name)
	}
	return err
}

func (s *slots) close() {
	if s.file != nil {
		_ = s.file.Close() // nobody waits for a flush of it
	}
}

// take returns a slot for a record, and false if there is none for it.
func (s *slots) take(form []byte) (slot, bool) {
	if !fitsSlot(form) {
		return slot{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := len(s.free); n > 0 {
		number := s.free[n-1]
		s.free = s.free[:n-1]
		return slot{number, form}, true
	}
	if s.used == mostSlots {
		return slot{}, false
	}
	s.used++
	return slot{s.used - 1, form}, true
}

// renewed returns the slot of a key with another record, and false if it does not fit.
func (s *slots) renewed(key idempotency.Key, form []byte) (slot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.open[key]
	return slot{at.number, form}, ok && fitsSlot(form)
}

// write writes a slot.
func (s *slots) write(key idempotency.Key, at slot) error {
	s.mu.Lock()
	if _, before := s.stale[at.number]; before {
		s.reused = true
		delete(s.stale, at.number)
	}
	s.mu.Unlock()
	var room [slotSize]byte
	return s.writeAt(appendSlot(room[:0], key, at.form), at.number)
}

func (s *slots) writeAt(content []byte, number int) error {
	return s.disk.carryOut(func() error {
		_, err := s.file.WriteAt(content, int64(number)*slotSize)
		return err
	})
}

// written says that a slot counts from now on, and notWritten that its write was never
// begun.
func (s *slots) written(key idempotency.Key, at slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open[key] = at
}

func (s *slots) notWritten(key idempotency.Key, at slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, before := s.open[key]; !before {
		s.free = append(s.free, at.number)
	}
}

// ended says that pebble has a record of the key now.
func (s *slots) ended(key idempotency.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.open[key]
	if !ok {
		return
	}
	delete(s.open, key)
	s.free = append(s.free, at.number)
	s.stale[at.number] = key
}

// hasStale reports whether one of these keys has a stale slot.
func (s *slots) hasStale(keys map[idempotency.Key]bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.stale {
		if keys[key] {
			return true
		}
	}
	return false
}

// form returns the record that lies in the slot of a key, nil if it has none.
func (s *slots) form(key idempotency.Key) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open[key].form
}

// keys returns the keys that have slots, in their order.
func (s *slots) keys() []idempotency.Key {
	s.mu.Lock()
	keys := make([]idempotency.Key, 0, len(s.open))
	for key := range s.open {
		keys = append(keys, key)
	}
	s.mu.Unlock()
	slices.SortFunc(keys, func(a, b idempotency.Key) int { return bytes.Compare(a[:], b[:]) })
	return keys
}

// erase erases the stale slots, and that of a key if it has one, so that they do not come
// back after a crash of the machine either. In memory, that of the key goes on to count.
func (s *slots) erase(key *idempotency.Key) error {
	s.mu.Lock()
	numbers := make([]int, 0, len(s.stale)+1)
	for number := range s.stale {
		numbers = append(numbers, number)
	}
	if key != nil {
		if at, ok := s.open[*key]; ok {
			numbers = append(numbers, at.number)
		}
	}
	s.mu.Unlock()
	if len(numbers) == 0 && !s.reused {
		return nil
	}
	var nothing [slotHead]byte
	for _, number := range numbers {
		if err := s.writeAt(nothing[:], number); err != nil {
			return err
		}
	}
	if err := s.disk.carryOutFlush(s.file.SyncData); err != nil {
		return err
	}
	s.reused = false
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, number := range numbers {
		delete(s.stale, number)
	}
	return nil
}

// eraseSlots has the writer erase the stale slots, and that of a key if it is not nil.
func (d *database) eraseSlots(ctx context.Context, key *idempotency.Key) error {
	_, err := d.commit(ctx, &operation{write: func() error { return d.slots.erase(key) }})
	return err
}

// slotOf is what the operation on a record writes to a slot in place of a batch.
func (d *database) slotOf(key idempotency.Key, at slot) *operation {
	return &operation{
		write: func() error { return d.slots.write(key, at) },
		ended: func(applied bool) {
			if applied {
				d.slots.written(key, at)
			} else {
				d.slots.notWritten(key, at)
			}
			d.locks.unlock(key)
		},
	}
}

// inDatabase returns the record that pebble has of a key, if the given one is what is stored
// of it: none if that lies in a slot.
func (d *database) inDatabase(key idempotency.Key, stored *idempotency.Record) *idempotency.Record {
	if stored == nil || d.slots.form(key) != nil {
		return nil
	}
	return stored
}
