package file

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// wallClock returns the time of the wall clock: times in the store must be comparable after a restart.
// What lasts only as long as the process is measured with the monotonic clock instead.
func wallClock() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }

// Claim implements [idempotency.Store].
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	k, err := s.lockKey(ctx, c.Key)
	if err != nil {
		return idempotency.Claimed{}, err
	}
	defer k.leave()
	record, stored, err := k.read(ctx)
	if err != nil {
		return idempotency.Claimed{}, err
	}
	now := s.clock()
	found := live(record, now).Effective(now)
	claimed := idempotency.Claimed{Verdict: idempotency.Decide(found, c, now), Record: found, Now: now}
	switch claimed.Verdict {
	case idempotency.ReplayKept:
		if found.LargeBody > 0 {
			return claimed, nil
		}
		claimed.Response, err = k.response(ctx, stored, found.Token, now)
		if err == nil && claimed.Response == nil {
			err = s.unreadable("record", c.Key, idempotency.ErrResponseMissing)
		}
		if err != nil {
			return idempotency.Claimed{}, err
		}
	case idempotency.Proceed:
		claimed.Previous, claimed.Record = found, c.Record(found, now)
		if result, err := k.grant(ctx, c.Terms, stored, claimed.Record, now); err != nil {
			if result != unknown {
				claimed.Record = nil
			}
			return idempotency.Claimed{Record: claimed.Record}, err
		}
	}
	return claimed, nil
}

// grant makes a claim. With Hold or MaxAttempts the claim must survive this process, so grant stores it.
func (k *lockedKey) grant(ctx context.Context, terms idempotency.Terms, stored *value, record *idempotency.Record, now time.Time) (writeResult, error) {
	if terms.Hold || terms.MaxAttempts > 0 {
		return k.write(ctx, stored, value{record: record}, &claim{record: clone(record)}, now)
	}
	// While the disk accepts no writes, the response of the run could not be stored.
	if err := cmp.Or(k.db.status(), k.bodies.status()); err != nil {
		return notApplied, k.wrap(err)
	}
	k.claim = nil
	k.setClaim(clone(record), stored)
	return applied, nil
}

// Renew implements [idempotency.Store]. It renews the lease in memory even if the renewal of a stored
// claim cannot be written.
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	k, err := s.lockKey(ctx, c.Key)
	if err != nil {
		return err
	}
	defer k.leave()
	record, stored, err := k.read(ctx)
	if err != nil {
		return err
	}
	now := s.clock()
	found := live(record, now)
	if open, err := found.Owned(c.Token, c.PrevToken, ""); !open {
		return err
	}
	k.setClaim(found.Renewed(c.Terms, now), stored)
	if stored != nil && stored.record.Token == c.Token {
		next := *k.claim
		_, err = k.write(ctx, stored, value{record: next.record}, &next, now)
	}
	return err
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer k.leave()
	record, stored, err := k.read(ctx)
	if err != nil {
		return err
	}
	now := s.clock()
	found := live(record, now)
	if open, err := found.Owned(claimed.Token, claimed.PrevToken, claimed.LeftToken(settlement)); !open {
		return err
	}
	next := value{record: found.WithAttempts(claimed).Settled(settlement, now)}
	if r := settlement.Response; r != nil {
		next.answer = &answer{token: claimed.Token, until: now.Add(settlement.ResponseRetention()), response: r}
		pending := new(*bodyWrite)
		if k.claim != nil {
			pending = &k.claim.body
		}
		if err := k.writeBody(ctx, next.answer, pending); err != nil {
			return err
		}
	}
	_, err = k.write(ctx, stored, next, nil, now)
	return err
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return nil, s.clock(), err
	}
	defer k.leave()
	record, _, err := k.read(ctx)
	now := s.clock()
	return live(record, now).Effective(now), now, err
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer k.leave()
	stored, err := k.load(ctx)
	if err != nil {
		return nil, err
	}
	return k.response(ctx, stored, token, s.clock())
}

// Change implements [idempotency.Store].
func (s *Store) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer k.leave()
	record, stored, err := k.read(ctx)
	if err != nil {
		return nil, err
	}
	now := s.clock()
	changed, err := live(record, now).Changed(c, now)
	if err != nil {
		return nil, err
	}
	next := value{record: changed}
	if c.Response != nil {
		next.answer = &answer{token: c.Token, until: changed.Expires, response: c.Response}
		if err := k.writeBody(ctx, next.answer, new(*bodyWrite)); err != nil {
			return nil, err
		}
	}
	if _, err := k.write(ctx, stored, next, nil, now); err != nil {
		return nil, err
	}
	return record.Effective(now), nil
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer k.leave()
	record, stored, err := k.read(ctx)
	now := s.clock()
	_, damaged := errors.AsType[*idempotency.UnreadableError](err)
	switch {
	case damaged:
		err = pre.CheckUnreadable()
	case err == nil:
		err = live(record, now).Effective(now).CheckChange(pre, now)
	}
	if err != nil {
		return err
	}
	var expiries [][]byte
	if damaged { // the value does not say where its expiry is
		db := k.db
		expiries, err = readWithDeadline(ctx, db, func() ([][]byte, error) { return db.expiriesOf(key) })
		if err != nil {
			return s.wrap(err)
		}
	}
	batch := k.db.db.NewBatch()
	err = remove(batch, key, stored)
	for _, name := range expiries {
		err = errors.Join(err, batch.Delete(name, nil))
	}
	if err != nil {
		return errors.Join(err, batch.Close())
	}
	_, err = k.commit(ctx, batch, nil)
	return err
}
