package memory

import (
	"container/heap"
	"time"
)

// expiryHeap is a heap with the item that expires first at the top.
type expiryHeap []*item

// Len implements [heap.Interface].
func (h expiryHeap) Len() int { return len(h) }

// Less implements [heap.Interface].
func (h expiryHeap) Less(i, j int) bool { return h[i].expires.Before(h[j].expires) }

// Swap implements [heap.Interface].
func (h expiryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push implements [heap.Interface].
func (h *expiryHeap) Push(x any) {
	i := x.(*item)
	i.index = len(*h)
	*h = append(*h, i)
}

// Pop implements [heap.Interface].
func (h *expiryHeap) Pop() any {
	last := len(*h) - 1
	i := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	i.index = -1
	return i
}

var _ heap.Interface = (*expiryHeap)(nil)

// What has expired counts as absent at once. The sweeper only gives its memory back.
const (
	sweepEvery = 5 * time.Second
	// sweepAtOnce is how many items the sweeper removes before it unlocks the store
	// for others.
	sweepAtOnce = 1000
)

// sweep is the sweeper: it removes what has expired, until Close.
func (s *Store) sweep() {
	defer close(s.stopped)
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-tick.C:
		}
		for more := true; more; {
			s.mu.Lock()
			more = s.removeExpired(s.now(), sweepAtOnce) == sweepAtOnce
			s.mu.Unlock()
		}
	}
}

// removeExpired removes items that have expired, up to limit of them. It returns how
// many it has removed.
func (s *Store) removeExpired(now time.Time, limit int) int {
	for n := range limit {
		if len(s.expires) == 0 || now.Before(s.expires[0].expires) {
			return n
		}
		s.remove(s.expires[0])
	}
	return limit
}
