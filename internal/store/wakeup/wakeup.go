// Package wakeup notifies subscribers in a process that a run has ended. The memory store and the file
// store use it when they settle a run, the Redis store when its server publishes the end of a run.
package wakeup

import (
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Subscribers are the functions to call when a run ends. The zero value has none.
type Subscribers struct {
	mu   sync.RWMutex
	next int
	wake map[int]func(idempotency.Key)
}

// Subscribe adds a function: [Subscribers.Wake] calls it with every key until stop is
// called. The function must not block, and must not call Subscribe or stop, because
// Wake calls it under a lock.
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

// Wake notifies all subscribers that the run of a key has ended, even those that do not wait for the
// key: looking that up would cost as much as the call.
func (s *Subscribers) Wake(key idempotency.Key) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, wake := range s.wake {
		wake(key)
	}
}

// Any reports whether there are subscribers.
func (s *Subscribers) Any() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.wake) > 0
}
