package file

import (
	"sync"
	"time"
)

// damages are what the background work and the reads of a store's databases have found to be damaged.
type damages struct {
	mu     sync.Mutex
	count  int64
	reason string // of the first one
	since  time.Time
}

func (d *damages) add(reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.count++; d.count == 1 {
		d.reason, d.since = reason, time.Now()
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
