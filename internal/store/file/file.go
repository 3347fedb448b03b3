// Package file is the durable store of one process, in a directory. When a call returns
// without an error, its change is on the disk, or, for a claim that need not survive a
// crash of the machine, handed to the system. So a crash of the process loses nothing
// that a client has been told.
//
// The directory is a database of pebble, and this package is what pebble leaves to its
// users: the atomic steps of each key (keylocks.go, commit.go), what is stored under
// which name (layout.go), claims that need no flush (claims.go, recover.go), which keys
// are new (filter.go), large bodies beside the database (bodies.go, segment.go,
// savebody.go), the removal of what has expired (sweep.go, sweepbodies.go), and disks that
// are full, fail, or vanish (disk.go, watch.go).
package file

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
	"github.com/caddy-dedup/caddy-dedup/internal/store/wakeup"
)

// Store keeps records and responses in one directory. [Open] returns one.
type Store struct {
	path    string
	fs      vfs.FS
	place   *place
	logger  *zap.Logger
	waiters wakeup.Subscribers

	// mu is locked while the database is replaced, and never for longer: who uses one locks
	// that.
	mu       sync.RWMutex
	database *database // nil once the store is closed

	closing chan struct{}
	ended   sync.WaitGroup // the watch and the sweeper
	close   func() error
}

var _ idempotency.Store = (*Store)(nil)

// start runs the store over an opened database.
func start(s *Store) *Store {
	s.closing = make(chan struct{})
	s.close = sync.OnceValue(s.shut)
	s.database.disk.guard(s.place.check)
	s.database.run()
	s.ended.Go(s.watch)
	s.ended.Go(s.sweepExpired)
	return s
}

// clock is the clock of the store. It is the wall clock, because after a restart the
// times in the store must still be comparable with it.
func clock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// enter returns the database, for as long as leave has not been called.
func (s *Store) enter(ctx context.Context) (d *database, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	d = s.database
	if d == nil {
		return nil, nil, idempotency.ErrClosed
	}
	d.using.RLock()
	if failure := d.disk.failed(); failure != nil { // and its files may be closed, if nobody used it
		d.using.RUnlock()
		return nil, nil, d.writeError(failure)
	}
	return d, d.using.RUnlock, nil
}

// replace puts another database, nil for none, in the place of the one that there is, which it
// returns. Nobody begins to use that one any more.
func (s *Store) replace(next *database) (before *database) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, s.database = s.database, next
	return before
}

// operation is the change of one key, which is locked. It unlocks it, and wakes those who
// wait for the key if wake is set.
func (s *Store) operation(d *database, key idempotency.Key, c change, durable, wake bool) *operation {
	ended := func(applied bool) {
		if applied {
			d.slots.ended(key)
		}
		d.locks.unlock(key)
		if applied && wake {
			// Not the caller does that, because it may have given up.
			s.waiters.Wake(key)
		}
	}
	if bodies := c.bodies; bodies != nil {
		ended = bodies.removedBefore(d, ended)
	}
	return &operation{batch: c.Batch, key: &key, durable: durable, ended: ended}
}

// Claim implements [idempotency.Store].
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	d, err := s.enterKey(ctx, c.Key)
	if err != nil {
		return idempotency.Claimed{}, err
	}
	defer d.leave()
	claimed, stored, err := d.decideWithin(ctx, c)
	if err != nil || claimed.Verdict != idempotency.Proceed {
		return claimed, err
	}
	op, err := s.claimOperation(d.database, c, stored, claimed.Record)
	if err != nil {
		return idempotency.Claimed{}, err
	}
	if mayBeApplied, err := d.carryOut(ctx, op); err != nil {
		if mayBeApplied {
			return idempotency.Claimed{Record: claimed.Record}, err
		}
		return idempotency.Claimed{}, err
	}
	return claimed, nil
}

// claimOperation is the write of a claim over what is stored.
func (s *Store) claimOperation(d *database, c idempotency.Claim, stored, next *idempotency.Record) (*operation, error) {
	// Where an attempt counts for ever, a crash of the machine must not undo it. Else it
	// frees the keys that were in flight, and so the claim need not wait for a flush.
	durable := c.Hold || c.MaxAttempts > 0
	if stored == nil && !durable {
		if at, ok := d.slots.take(idempotency.AppendRecord(nil, c.Key, next)); ok {
			return d.slotOf(c.Key, at), nil
		}
	}
	change := d.change()
	if err := change.putRecord(c.Key, d.inDatabase(c.Key, stored), next); err != nil {
		return nil, err
	}
	return s.operation(d, c.Key, change, durable, false), nil
}

// Renew implements [idempotency.Store]. A renewal is not flushed: after a crash of the
// machine, nobody is left who would go on with the run.
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	d, err := s.enterKey(ctx, c.Key)
	if err != nil {
		return err
	}
	defer d.leave()
	now := clock()
	found, err := d.ownedWithin(ctx, c.Token, c.Follows, "", now)
	if found == nil {
		return err
	}
	next := found.Renewed(c.Terms, now)
	if at, ok := d.slots.renewed(c.Key, idempotency.AppendRecord(nil, c.Key, next)); ok {
		_, err = d.carryOut(ctx, d.slotOf(c.Key, at))
		return err
	}
	change := d.change()
	if err := change.putRecord(c.Key, d.inDatabase(c.Key, found), next); err != nil {
		return err
	}
	_, err = d.carryOut(ctx, s.operation(d.database, c.Key, change, false, false))
	return err
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	d, err := s.enterKey(ctx, key)
	if err != nil {
		return err
	}
	defer d.leave()
	now := clock()
	found, err := d.ownedWithin(ctx, claimed.Token, claimed.Follows, claimed.Leaves(settlement), now)
	if found == nil {
		return err
	}
	until := now.Add(settlement.ResponseFor())
	change := d.changeOf(settlement.Response)
	var body *newBody
	if isLarge(settlement.Response) {
		body = d.bodies.reserve(until, settlement.Response.Body)
	}
	if settlement.Response != nil {
		err = change.putResponse(key, claimed.Token, settlement.Response, body, until, settlement.State == idempotency.Complete)
	}
	if err == nil {
		err = change.putRecord(key, d.inDatabase(key, found), found.CountedAs(claimed).Settled(settlement, now))
	}
	if err != nil {
		return err
	}
	if body != nil {
		change.bodies = &unneeded{notApplied: []bodyPlace{body.bodyPlace}}
		d.passOn()
		return d.commitWithBody(ctx, body, s.operation(d.database, key, change, true, true))
	}
	_, err = d.carryOut(ctx, s.operation(d.database, key, change, true, true))
	return err
}

// Ready implements [idempotency.Store]. A new key is known without a read, so that a lookup
// would answer while the disk hangs.
func (s *Store) Ready(ctx context.Context) error {
	d, leave, err := s.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return d.answers(ctx)
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	now := clock()
	d, err := s.enterKey(ctx, key)
	if err != nil {
		return nil, now, err
	}
	defer d.leave()
	stored, err := d.newRecordWithin(ctx)
	now = clock()
	return live(stored, now).Effective(now), now, err
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	d, err := s.enterKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer d.leave()
	return read(ctx, &d, func(d *lockedKey) (*idempotency.Response, error) { return d.response(key, token, clock()) })
}

// Free implements [idempotency.Store].
func (s *Store) Free(ctx context.Context, key idempotency.Key, token string, seen idempotency.Seen) (*idempotency.Record, error) {
	d, err := s.enterKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer d.leave()
	now := clock()
	var freed *idempotency.Record
	stored, err := d.recordWithin(ctx)
	if err == nil {
		freed, err = live(stored, now).Freed(token, seen, now)
	}
	if err != nil {
		return nil, err
	}
	change := d.change()
	if err := change.putRecord(key, d.inDatabase(key, stored), freed); err != nil {
		return nil, err
	}
	if _, err := d.carryOut(ctx, s.operation(d.database, key, change, true, true)); err != nil {
		return nil, err
	}
	return stored.Effective(now), nil
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, seen idempotency.Seen) error {
	d, err := s.enterKey(ctx, key)
	if err != nil {
		return err
	}
	defer d.leave()
	now := clock()
	stored, err := d.recordWithin(ctx)
	if _, damaged := errors.AsType[*idempotency.UnreadableError](err); damaged {
		err = seen.MayBeUnreadable()
	} else if err == nil {
		err = live(stored, now).Effective(now).MayBeTaken(seen, now)
	}
	var bodies []bodyPlace
	if err == nil {
		bodies, err = read(ctx, &d, func(d *lockedKey) ([]bodyPlace, error) { return d.bodiesOf(key) })
	}
	if err == nil {
		err = d.eraseSlots(ctx, &key)
	}
	if err != nil {
		return err
	}
	change := d.change()
	if len(bodies) > 0 {
		change.bodies = &unneeded{applied: bodies}
	}
	if err := change.forget(key, d.inDatabase(key, stored)); err != nil {
		return err
	}
	_, err = d.carryOut(ctx, s.operation(d.database, key, change, true, true))
	return err
}

// Subscribe implements [idempotency.Store].
func (s *Store) Subscribe(wake func(idempotency.Key)) (stop func()) {
	return s.waiters.Subscribe(wake)
}

// Close implements [idempotency.Store]. It still writes what is queued.
func (s *Store) Close() error { return s.close() }

func (s *Store) shut() error {
	close(s.closing)
	s.ended.Wait()
	d := s.replace(nil)
	d.awaitUnused()
	err := d.close()
	s.place.leave()
	return err
}
