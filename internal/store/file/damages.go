package file

import (
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// damages are what the merges and the reads of a store's databases have found to be damaged.
type damages struct {
	mu     sync.Mutex
	count  int64
	reason string // of the first one
	since  time.Time
	passes bool // the reason ends when a merge succeeds
}

func (d *damages) add(reason string, passes bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.count++
	if d.reason == "" || d.passes && !passes {
		d.reason, d.since, d.passes = reason, time.Now(), passes
	}
}

// mergeEnded notes a merge that failed, until one succeeds: the cause may be that the process had no file
// descriptor left. add notes corruption.
func (d *damages) mergeEnded(err error) {
	switch {
	case err == nil:
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.passes {
			d.reason, d.since, d.passes = "", time.Time{}, false
		}
	case !errors.Is(err, pebble.ErrCancelledCompaction) && !pebble.IsCorruptionError(err):
		d.add("merging tables fails: "+err.Error(), true)
	}
}

// Impairment implements [idempotency.Impaired]. A database with a damaged table takes new keys, but
// what it cannot merge grows, and what is damaged cannot be read.
func (s *Store) Impairment() (reason string, since time.Time) {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return s.damages.reason, s.damages.since
}

// Damages returns how often the store has met damage. It never decreases.
func (s *Store) Damages() int64 {
	s.damages.mu.Lock()
	defer s.damages.mu.Unlock()
	return s.damages.count
}
