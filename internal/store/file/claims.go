package file

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// A claim of a new key that need not survive a crash of the machine lies in a slot of a
// file, and the end of its run is the first that pebble has of the key. So it is handed
// to the system with one write, and waits neither for pebble nor for a flush.
//
// A slot counts as long as pebble has no record of its key. Nothing has to be done to it
// when the run ends: it is free then, and what it has is stale. Before pebble may lose the
// record of a key again (sweep, forget), the stale slots are erased, and that is flushed.
//
// A slot has the length of what follows, 2 bytes, big-endian, the key, and the record as
// the codec writes it. It lies within one sector of a disk.
const (
	claimsName = "caddy-dedup.claims"
	slotSize   = 512
	slotHead   = 2 + keySize
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
	// stale are those in the file that are not open, and not erased.
	stale map[int]struct{}
}

// slot is a claim, and where it lies.
type slot struct {
	number int
	form   []byte // of the record, as the codec writes it
}

func newSlots(disk *disk) *slots {
	return &slots{disk: disk, open: make(map[idempotency.Key]slot), stale: make(map[int]struct{})}
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
	if slotHead+len(form) > slotSize {
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
	return slot{at.number, form}, ok && slotHead+len(form) <= slotSize
}

// write writes a slot.
func (s *slots) write(key idempotency.Key, at slot) error {
	s.mu.Lock()
	delete(s.stale, at.number)
	s.mu.Unlock()
	room := [slotSize]byte{}
	content := binary.BigEndian.AppendUint16(room[:0], uint16(len(at.form))) //nolint:gosec // take has compared it with the size of a slot
	content = append(append(content, key[:]...), at.form...)
	return s.writeAt(content, at.number)
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
	s.stale[at.number] = struct{}{}
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
	if len(numbers) == 0 {
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
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, number := range numbers {
		delete(s.stale, number)
	}
	return nil
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

// takeSlots gives pebble the claims that an earlier process has left in its slots, and makes
// the file anew.
func (d *database) takeSlots(logger *zap.Logger) error {
	left, err := readSlots(d.disk.FS, d.disk.PathJoin(d.path, claimsName))
	if err != nil {
		return err
	}
	change, found := d.change(), false
	defer change.Close()
	now := clock()
	for _, content := range left {
		key, record, err := parseSlot(content)
		if err != nil {
			// It can be one that was being written when the machine crashed.
			logger.Warn("a claim that was in flight cannot be read, and its key is free",
				zap.String("path", d.path), zap.String("file", claimsName), zap.Error(err))
			continue
		}
		if live(record, now) == nil {
			continue
		}
		stored, err := d.record(key)
		// If there is one that cannot be read, the claim has ended.
		if _, damaged := errors.AsType[*idempotency.UnreadableError](err); stored != nil || damaged {
			continue
		}
		if err != nil {
			return err
		}
		if err := change.putRecord(key, nil, record); err != nil {
			return err
		}
		found = true
	}
	if found {
		if err := d.db.Apply(change.Batch, pebble.Sync); err != nil {
			return err
		}
	}
	return d.slots.create(d.path)
}

// readSlots returns the slots of a file that are not empty.
func readSlots(fs vfs.FS, name string) (left [][]byte, err error) {
	f, err := fs.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, mostSlots*slotSize))
	if err != nil {
		return nil, fmt.Errorf("its file %s: %w", claimsName, err)
	}
	for content := range slices.Chunk(content, slotSize) {
		if len(content) < slotHead || binary.BigEndian.Uint16(content) > 0 {
			left = append(left, content)
		}
	}
	return left, nil
}

// parseSlot reads what a slot has.
func parseSlot(content []byte) (idempotency.Key, *idempotency.Record, error) {
	if len(content) < slotHead {
		return idempotency.Key{}, nil, errCutOff
	}
	length := int(binary.BigEndian.Uint16(content))
	key := idempotency.Key(content[2:slotHead])
	if slotHead+length > len(content) {
		return key, nil, fmt.Errorf("record %s: %w", key, errCutOff)
	}
	record, err := idempotency.DecodeRecord(key, content[slotHead:slotHead+length])
	if err != nil {
		return key, nil, fmt.Errorf("record %s: %w", key, err)
	}
	return key, record, nil
}
