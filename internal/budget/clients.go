package budget

import (
	"slices"
	"sync"
	"time"
)

// Client is a client that reads a response which holds room.
type Client interface {
	// Sample notes how far the client has come. waits reports whether the client is a run that waits for
	// room: it is not idle then.
	Sample(now time.Time, waits bool)
	// Idle returns since when the client has taken nothing, and whether that is long enough to disconnect it if its
	// room is needed.
	Idle(now time.Time) (since time.Time, idle bool)
	// Waiting returns the execution ID of a run that is the client, "" for none. While that run waits for
	// room, the client is not idle.
	Waiting() (executionID string)
	// Disconnect ends the write to the client. It is called again until the client is removed.
	Disconnect(now time.Time)
}

// Held is what clients read. Its room is free when all of them have gone.
type Held interface {
	// Freeable returns how many bytes of room are free when that many clients have gone; 0 if something else
	// needs what is held.
	Freeable(clients int) int64
}

// clients are those that read what holds room. While there are some, they are looked at every sampleInterval.
type clients struct {
	of *Budget

	mu       sync.Mutex
	readers  map[Held][]Client
	removing []Client // that are being disconnected
	timer    *time.Timer
}

// sampleInterval is the interval at which clients are looked at.
const sampleInterval = 500 * time.Millisecond

// AddClient adds a client that reads what is held, until it is removed.
func (b *Budget) AddClient(c Client, of Held) {
	s := &b.clients
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers[of] = append(s.readers[of], c)
	if s.timer == nil {
		s.timer = time.AfterFunc(sampleInterval, s.sample)
	} else if len(s.readers) == 1 && len(s.readers[of]) == 1 {
		s.timer.Reset(sampleInterval)
	}
}

// RemoveClient removes a client. It is not disconnected any more when RemoveClient has returned.
func (b *Budget) RemoveClient(c Client, of Held) {
	s := &b.clients
	s.mu.Lock()
	defer s.mu.Unlock()
	is := func(other Client) bool { return other == c }
	if s.readers[of] = slices.DeleteFunc(s.readers[of], is); len(s.readers[of]) == 0 {
		delete(s.readers, of)
	}
	s.removing = slices.DeleteFunc(s.removing, is)
	if len(s.readers) == 0 {
		s.timer.Stop()
	}
}

// sample looks at the clients, and disconnects idle ones if something waits for room.
func (s *clients) sample() {
	now := time.Now()
	s.mu.Lock()
	for _, readers := range s.readers {
		for _, c := range readers {
			c.Sample(now, s.of.waits(c.Waiting()))
		}
	}
	for _, c := range s.removing {
		c.Disconnect(now)
	}
	if len(s.readers) > 0 {
		s.timer.Reset(sampleInterval)
	}
	s.mu.Unlock()
	if n := s.of.missing(); n > 0 {
		s.disconnectIdle(n)
	}
}

// idleGroup are the clients that read what is held.
type idleGroup struct {
	since   time.Time // when the last of them has taken something
	frees   int64
	clients []Client
}

// disconnectIdle disconnects idle clients, the longest idle first, until n bytes of room come free.
func (s *clients) disconnectIdle(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	var idle []idleGroup
	for held, readers := range s.readers {
		g := idleGroup{clients: readers}
		all := !slices.ContainsFunc(readers, func(c Client) bool {
			since, is := c.Idle(now)
			if since.After(g.since) {
				g.since = since
			}
			return !is || s.of.waits(c.Waiting())
		})
		if !all {
			continue
		}
		if g.frees = held.Freeable(len(readers)); g.frees > 0 {
			idle = append(idle, g)
		}
	}
	slices.SortFunc(idle, func(a, b idleGroup) int { return a.since.Compare(b.since) })
	for _, g := range idle {
		if n <= 0 {
			return
		}
		n -= g.frees
		for _, c := range g.clients {
			if !slices.Contains(s.removing, c) {
				s.removing = append(s.removing, c)
				c.Disconnect(now)
			}
		}
	}
}
