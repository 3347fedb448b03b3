package file

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// unreadableFor is how long a claim that another version has written is kept, unless it is
// forgotten before. When it expires cannot be read.
const unreadableFor = 30 * 24 * time.Hour

// takeSlots gives pebble the claims that an earlier process has left in its slots, and makes
// the file anew.
func (d *database) takeSlots(left [][]byte, logger *zap.Logger) error {
	change := d.change()
	defer change.Close()
	now := clock()
	for _, content := range left {
		if err := d.takeSlot(change, content, now); errors.Is(err, errSlot) {
			// It can be one that was being written when the machine crashed.
			logger.Warn("a claim that was in flight cannot be read, and its key is free",
				zap.String("path", d.path), zap.String("file", claimsName), reason(err))
		} else if err != nil {
			return err
		}
	}
	if !change.Empty() {
		if err := d.db.Apply(change.Batch, pebble.Sync); err != nil {
			return err
		}
	}
	if err := d.slots.create(d.path); err != nil {
		return err
	}
	// The name too: else the file before can come back after a crash of the machine.
	return d.disk.flushDirectory(d.path)
}

// takeSlot adds a claim to the change if it still counts.
func (d *database) takeSlot(c change, content []byte, now time.Time) error {
	key, form, err := parseSlot(content)
	if err != nil {
		return err
	}
	stored, err := d.record(key)
	// If there is one that cannot be read, the claim has ended.
	if _, damaged := errors.AsType[*idempotency.UnreadableError](err); stored != nil || damaged {
		return nil
	}
	if err != nil {
		return err
	}
	record, err := idempotency.DecodeRecord(key, form)
	switch {
	case errors.Is(err, idempotency.ErrFormat):
		// Whoever asks for it is told so.
		return errors.Join(c.Set(recordName(key), form, nil), c.Set(expiryName(now.Add(unreadableFor), key, ""), nil, nil))
	case err != nil:
		return fmt.Errorf("%w: record %s: %w", errSlot, key, err)
	case live(record, now) == nil:
		return nil
	default:
		return c.putRecord(key, nil, record)
	}
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
		if !isErased(content) {
			left = append(left, content)
		}
	}
	return left, nil
}
