package file

import (
	"context"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lockedKey is a database that an operation uses, with a key locked. The operation leaves it
// by defer, so that the key is unlocked however it ends, or passes the unlocking on to the
// change that it makes.
type lockedKey struct {
	*database
	key           idempotency.Key
	leaveDatabase func()
	passedOn      bool
}

// enterKey is enter, with a key locked.
func (s *Store) enterKey(ctx context.Context, key idempotency.Key) (lockedKey, error) {
	d, leave, err := s.enter(ctx)
	if err != nil {
		return lockedKey{}, err
	}
	if err := d.lock(ctx, key); err != nil {
		leave()
		return lockedKey{}, err
	}
	return lockedKey{database: d, key: key, leaveDatabase: leave}, nil
}

// leave unlocks the key, unless that was passed on, and leaves the database.
func (k *lockedKey) leave() {
	if !k.passedOn {
		k.locks.unlock(k.key)
	}
	k.leaveDatabase()
}

// passOn says that what comes next unlocks the key.
func (k *lockedKey) passOn() { k.passedOn = true }

// carryOut is commit for an operation that unlocks the key.
func (k *lockedKey) carryOut(ctx context.Context, op *operation) (mayBeApplied bool, err error) {
	k.passOn()
	return k.commit(ctx, op)
}
