package memory

import "time"

// expiry has the items by the second in which they expire, to find those that have
// expired. It is a ring of lists: an item that expires in more than one round of the
// ring is passed over until its round has come.
type expiry struct {
	items *table[item]
	ring  [ringSeconds]uint32
	// due is the second to look at next. All before it are done.
	due int64
	// next is the item to look at next in that second, if its list was begun.
	next  uint32
	begun bool
}

// ringSeconds makes one round a little more than an hour. With a retention of a day, an
// item is passed over about twenty times in its life.
const ringSeconds = 4096

func (e *expiry) list(ms int64) *uint32 {
	return &e.ring[ms/1000&(ringSeconds-1)]
}

// link adds an item that expires at the given time. A time that has passed counts as
// now.
func (e *expiry) link(n uint32, at, now time.Time) {
	e.items.at(n).expires = max(at.UnixMilli(), now.UnixMilli())
	e.relink(n)
}

func (e *expiry) relink(n uint32) {
	i := e.items.at(n)
	first := e.list(i.expires)
	i.before, i.after = 0, *first
	if *first != 0 {
		e.items.at(*first).before = n
	}
	*first = n
}

func (e *expiry) unlink(n uint32) {
	i := e.items.at(n)
	if e.next == n {
		e.next = i.after
	}
	if i.before != 0 {
		e.items.at(i.before).after = i.after
	} else {
		*e.list(i.expires) = i.after
	}
	if i.after != 0 {
		e.items.at(i.after).before = i.before
	}
}

// expired returns the next item that has expired, 0 if there is none, and how many items
// it has looked at, at most limit.
func (e *expiry) expired(now time.Time, limit int) (n uint32, looked int) {
	for second := now.UnixMilli() / 1000; e.due < second; {
		if !e.begun {
			e.next, e.begun = *e.list(e.due * 1000), true
		}
		for e.next != 0 {
			if looked == limit {
				return 0, looked
			}
			looked++
			n := e.next
			i := e.items.at(n)
			e.next = i.after
			if i.expires/1000 <= e.due {
				return n, looked
			}
		}
		e.due, e.begun = e.due+1, false
	}
	return 0, looked
}

// What has expired counts as absent at once. The sweeper only gives its room back.
const (
	sweepEvery = 5 * time.Second
	// sweepAtOnce is how many items the sweeper looks at before it unlocks the store for
	// others.
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
		for s.sweepSome() {
		}
	}
}

// sweepSome removes some of what has expired, or else gives back some of the room of
// chunks that are mostly empty. It reports whether there may be more to do.
func (s *Store) sweepSome() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removeExpired(s.now(), sweepAtOnce) > 0 || s.log.condense(halfFree)
}

// removeExpired looks at up to limit items, and removes those that have expired. It
// returns how many it has looked at.
func (s *Store) removeExpired(now time.Time, limit int) int {
	looked := 0
	for looked < limit {
		n, more := s.expiry.expired(now, limit-looked)
		looked += more
		if n == 0 {
			break
		}
		s.remove(n)
	}
	return looked
}
