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
	k, err := s.openKey(ctx, c.Key)
	if err != nil {
		return idempotency.Claimed{}, err
	}
	defer k.leave()
	found := k.record.Effective(k.now)
	claimed := idempotency.Claimed{Verdict: idempotency.Decide(found, c, k.now), Record: found, Now: k.now}
	switch claimed.Verdict {
	case idempotency.ReplayKept:
		if found.LargeBody > 0 {
			return claimed, nil
		}
		claimed.Response, err = k.response(ctx, found.Token)
		if err == nil && claimed.Response == nil {
			err = s.unreadable("record", c.Key, idempotency.ErrResponseMissing)
		}
		if err != nil {
			return idempotency.Claimed{}, err
		}
	case idempotency.Proceed:
		claimed.Previous, claimed.Record = found, c.Record(found, k.now)
		if result, err := k.grant(ctx, c.Terms, claimed.Record); err != nil {
			if result != unknown {
				claimed.Record = nil
			}
			return idempotency.Claimed{Record: claimed.Record}, err
		}
	}
	return claimed, nil
}

// grant makes a claim. With Hold or MaxAttempts the claim must survive this process, so grant stores it.
func (k *lockedKey) grant(ctx context.Context, terms idempotency.Terms, record *idempotency.Record) (writeResult, error) {
	if terms.Hold || terms.MaxAttempts > 0 {
		return k.write(ctx, value{record: record}, &claim{record: clone(record)})
	}
	// While the disk accepts no writes, the response of the run could not be stored.
	if err := cmp.Or(k.db.status(), k.bodies.status()); err != nil {
		return notApplied, k.wrap(err)
	}
	k.claim = nil
	k.setClaim(clone(record), k.stored)
	return applied, nil
}

// Renew implements [idempotency.Store]. It renews the lease in memory even if the renewal of a stored
// claim cannot be written.
func (s *Store) Renew(ctx context.Context, c idempotency.Claim) error {
	k, err := s.openKey(ctx, c.Key)
	if err != nil {
		return err
	}
	defer k.leave()
	if open, err := k.record.Owned(c.Token, c.PrevToken, ""); !open {
		return err
	}
	k.setClaim(k.record.Renewed(c.Terms, k.now), k.stored)
	if k.stored != nil && k.stored.record.Token == c.Token {
		next := *k.claim
		_, err = k.write(ctx, value{record: next.record}, &next)
	}
	return err
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	k, err := s.openKey(ctx, key)
	if err != nil {
		return err
	}
	defer k.leave()
	if open, err := k.record.Owned(claimed.Token, claimed.PrevToken, claimed.LeftToken(settlement)); !open {
		return err
	}
	next := value{record: k.record.WithAttempts(claimed).Settled(settlement, k.now)}
	if r := settlement.Response; r != nil {
		next.answer = &answer{token: claimed.Token, until: k.now.Add(settlement.ResponseRetention()), response: r}
		pending := new(*bodyWrite)
		if k.claim != nil {
			pending = &k.claim.body
		}
		if err := k.writeBody(ctx, next.answer, pending); err != nil {
			return err
		}
	}
	_, err = k.write(ctx, next, nil)
	return err
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	k, err := s.openKey(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer k.leave()
	return k.record.Effective(k.now), k.now, nil
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	k, err := s.openKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer k.leave()
	return k.response(ctx, token)
}

// Change implements [idempotency.Store].
func (s *Store) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	k, err := s.openKey(ctx, key)
	if err != nil {
		return nil, err
	}
	defer k.leave()
	changed, err := k.record.Changed(c, k.now)
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
	if _, err := k.write(ctx, next, nil); err != nil {
		return nil, err
	}
	return k.record.Effective(k.now), nil
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return err
	}
	defer k.leave()
	err = k.read(ctx)
	_, damaged := errors.AsType[*idempotency.UnreadableError](err)
	switch {
	case damaged:
		err = pre.CheckUnreadable()
	case err == nil:
		err = k.record.Effective(k.now).CheckChange(pre, k.now)
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
	err = remove(batch, key, k.stored)
	for _, name := range expiries {
		err = errors.Join(err, batch.Delete(name, nil))
	}
	if err != nil {
		return errors.Join(err, batch.Close())
	}
	_, err = k.commit(ctx, batch, nil)
	return err
}
