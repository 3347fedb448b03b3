// Package wakeup tells the waiters of one process that a run has ended. It is
// what the stores have in common whose records belong to one process.
package wakeup

import (
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Subscribers are those who want to be told. The zero value has none.
type Subscribers struct {
	mu   sync.RWMutex
	next int
	wake map[int]func(idempotency.Key)
}

// Subscribe has wake called with every key that [Subscribers.Wake] is called
// with, until stop. Wake must not block, and must not subscribe or stop.
func (s *Subscribers) Subscribe(wake func(idempotency.Key)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.wake == nil {
		s.wake = make(map[int]func(idempotency.Key))
	}
	id := s.next
	s.next++
	s.wake[id] = wake
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.wake, id)
	}
}

// Wake tells all subscribers that the run of a key has ended. All are told of
// every key: looking up whether one of them waits would cost as much as telling
// it.
func (s *Subscribers) Wake(key idempotency.Key) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, wake := range s.wake {
		wake(key)
	}
}
