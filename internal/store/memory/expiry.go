package memory

import (
	"container/heap"
	"math"
	"time"
)

// expiry is a time at which a value may have expired. It is ignored unless it is the value's due.
type expiry struct {
	at   int64
	name name
}

// expiries is a heap by time.
type expiries []expiry

func (x expiries) Len() int           { return len(x) }
func (x expiries) Less(i, j int) bool { return x[i].at < x[j].at }
func (x expiries) Swap(i, j int)      { x[i], x[j] = x[j], x[i] }
func (x *expiries) Push(e any)        { *x = append(*x, e.(expiry)) }
func (x *expiries) Pop() any {
	last := (*x)[len(*x)-1]
	*x = (*x)[:len(*x)-1]
	return last
}

// removeExpired removes the first expiry from the heap if it is due, and its value if that has expired.
// It reports whether more expiries may be due.
func (s *Store) removeExpired(now time.Time) bool {
	if len(s.expiries) == 0 || s.expiries[0].at > now.UnixMilli() {
		return false
	}
	next := heap.Pop(&s.expiries).(expiry)
	values := s.values[next.name.key[0]]
	switch v, found := values[next.name]; {
	case !found || v.due != next.at:
	case v.expires > now.UnixMilli(): // it was replaced by one that expires later
		v.due = v.expires
		values[next.name] = v
		heap.Push(&s.expiries, expiry{v.due, next.name})
	default:
		s.remove(next.name, v)
	}
	return true
}

const (
	never         = math.MaxInt64
	sweepInterval = 500 * time.Millisecond // minimum interval between two sweeps
	// sweepBatch is how many expiries a sweep handles before it unlocks the store.
	sweepBatch = 256
)

// scheduleSweep schedules a sweep for the first expiry, unless one is scheduled before.
func (s *Store) scheduleSweep(now time.Time) {
	at := max(s.expiries[0].at, now.Add(sweepInterval).UnixMilli())
	if at < s.sweepAt {
		s.sweepAt = at
		s.sweeper.Reset(time.Duration(at-now.UnixMilli()) * time.Millisecond)
	}
}

// sweep removes all values that have expired.
func (s *Store) sweep() {
	for s.sweepSome() {
	}
}

// sweepSome removes a batch of expired values, and reports whether there may be more.
func (s *Store) sweepSome() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for range sweepBatch {
		if s.removeExpired(now) {
			continue
		}
		if len(s.expiries) >= 2*s.count {
			s.rebuildExpiries()
		}
		s.sweepAt = never
		if len(s.expiries) > 0 && !s.closed {
			s.scheduleSweep(now)
		}
		return false
	}
	return true
}

// rebuildExpiries drops the expiries of values that were removed or replaced.
func (s *Store) rebuildExpiries() {
	s.expiries = nil
	for _, values := range s.values {
		for n, v := range values {
			v.due = v.expires
			values[n] = v
			s.expiries = append(s.expiries, expiry{v.due, n})
		}
	}
	heap.Init(&s.expiries)
}
