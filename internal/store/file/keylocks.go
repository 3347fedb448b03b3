package file

import (
	"context"
	"sync"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// keyLocks lock single keys. Only keys that are locked take room.
type keyLocks [64]struct {
	mu sync.Mutex
	// locked has the keys that are locked. The channel is closed when the key is
	// unlocked; it is nil while nobody waits for that.
	locked map[idempotency.Key]chan struct{}
}

// lock locks a key. It gives up when the context ends or the channel delivers, and then
// reports false.
func (l *keyLocks) lock(ctx context.Context, key idempotency.Key, giveUp <-chan struct{}) bool {
	of := &l[key[len(key)-1]%byte(len(l))]
	for {
		of.mu.Lock()
		free, isLocked := of.locked[key]
		if !isLocked {
			if of.locked == nil {
				of.locked = make(map[idempotency.Key]chan struct{})
			}
			of.locked[key] = nil
			of.mu.Unlock()
			return true
		}
		if free == nil {
			free = make(chan struct{})
			of.locked[key] = free
		}
		of.mu.Unlock()
		select {
		case <-free:
		case <-ctx.Done():
			return false
		case <-giveUp:
			return false
		}
	}
}

// tryLock locks a key that is not locked.
func (l *keyLocks) tryLock(key idempotency.Key) bool {
	of := &l[key[len(key)-1]%byte(len(l))]
	of.mu.Lock()
	defer of.mu.Unlock()
	if _, isLocked := of.locked[key]; isLocked {
		return false
	}
	if of.locked == nil {
		of.locked = make(map[idempotency.Key]chan struct{})
	}
	of.locked[key] = nil
	return true
}

func (l *keyLocks) unlock(key idempotency.Key) {
	of := &l[key[len(key)-1]%byte(len(l))]
	of.mu.Lock()
	defer of.mu.Unlock()
	if free := of.locked[key]; free != nil {
		close(free)
	}
	delete(of.locked, key)
}
