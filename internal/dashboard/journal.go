package dashboard

import (
	"slices"
	"sync"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// What has happened to a key, beside the outcomes of its requests.
const (
	// TookOver: a request took over a claim whose lease had lapsed.
	TookOver = "took_over"
	// Ended: a run ended, and its answer is kept.
	Ended = "ended"
	// Failed: a run ended, and the key is free for a retry.
	Failed = "failed"
	// Unknown: a run ended, and the key is held.
	Unknown = "unknown"
	// Freed and Forgotten are what an operator did.
	Freed     = "freed"
	Forgotten = "forgotten"
)

// Note is something that this process saw happen to a key.
type Note struct {
	At   time.Time
	Key  idempotency.Key
	What string // an outcome, or one of the constants
	// ExecutionID, Attempt and Status are those of the run, as far as they are known.
	ExecutionID string
	Attempt     int
	Status      int
	// Who did it, for what an operator did.
	Who string
}

// How many notes are kept of each sort. What is rare is not pushed out by what is not.
const (
	mostUsual   = 2048
	mostNotable = 6144
	mostActs    = 1024
)

// Journal keeps the latest things that this process saw happen to keys. It takes the
// same memory however much happens.
type Journal struct {
	mu                   sync.Mutex
	usual, notable, acts ring
}

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{usual: ring{most: mostUsual}, notable: ring{most: mostNotable}, acts: ring{most: mostActs}}
}

// Add notes something.
func (j *Journal) Add(n Note) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch n.What {
	case Freed, Forgotten:
		j.acts.add(n)
	case Ended, "fresh", "replayed", "waited", "acknowledged", "conflict", "not_kept":
		j.usual.add(n)
	default:
		j.notable.add(n)
	}
}

// of returns what is known of a key, the oldest first.
func (j *Journal) of(key idempotency.Key) []Note {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []Note
	for _, r := range []*ring{&j.usual, &j.notable, &j.acts} {
		for _, n := range r.notes {
			if n.Key == key {
				found = append(found, n)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Note) int { return a.At.Compare(b.At) })
	return found
}

// exhausted returns the keys of which a request was refused because no attempt was left,
// and when.
func (j *Journal) exhausted() map[idempotency.Key]time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	found := make(map[idempotency.Key]time.Time)
	for _, n := range j.notable.notes {
		if n.What == "exhausted" && n.At.After(found[n.Key]) {
			found[n.Key] = n.At
		}
	}
	for _, n := range j.acts.notes {
		if at, ok := found[n.Key]; ok && n.At.After(at) {
			delete(found, n.Key)
		}
	}
	return found
}

// ring has the latest notes, in no order.
type ring struct {
	notes []Note
	next  int // the oldest one, where there is no more room
	most  int
}

func (r *ring) add(n Note) {
	if len(r.notes) < r.most {
		r.notes = append(r.notes, n)
		return
	}
	r.notes[r.next] = n
	r.next = (r.next + 1) % r.most
}
