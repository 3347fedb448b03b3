package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// lockedKey is a key that an operation has locked, and the database that the operation uses.
type lockedKey struct {
	*Store
	db    *database
	key   idempotency.Key
	claim *claim // in flight; nil for none

	// read sets these: the time, the key's record, and its value in the database, perhaps without the
	// bytes of its response; nil for none. An expired record counts as none.
	now    time.Time
	record *idempotency.Record
	stored *value

	// lockTransferred reports whether a write has taken over the lock, and will unlock the key.
	lockTransferred bool
}

func (s *Store) lockKey(ctx context.Context, key idempotency.Key) (*lockedKey, error) {
	db, err := s.enter(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.keys.lock(ctx, key)
	if err != nil {
		db.users.Done()
		return nil, err
	}
	return &lockedKey{Store: s, db: db, key: key, claim: c}, nil
}

// openKey locks a key and reads it.
func (s *Store) openKey(ctx context.Context, key idempotency.Key) (*lockedKey, error) {
	k, err := s.lockKey(ctx, key)
	if err != nil {
		return nil, err
	}
	if err := k.read(ctx); err != nil {
		k.leave()
		return nil, err
	}
	return k, nil
}

func (k *lockedKey) leave() {
	if !k.lockTransferred {
		k.keys.unlock(k.key, k.claim)
	}
	k.db.users.Done()
}

func (k *lockedKey) read(ctx context.Context) (err error) {
	c := k.claim
	switch {
	case c != nil && c.from == k.db:
		k.stored = c.base
	case c != nil || !k.filter.isNew(&k.key):
		k.stored, err = k.load(ctx)
	}
	k.now = k.clock()
	if err != nil {
		return err
	}
	v := k.stored
	if c != nil && c.from != k.db {
		if v != nil && v.record.Token == c.record.Token && v.record.State != idempotency.InFlight {
			c, k.claim = nil, nil // the last write of the abandoned database has settled it
		} else {
			k.setClaim(c.record, v)
		}
	}
	switch {
	case c != nil:
		k.record = live(clone(c.record), k.now)
	case v != nil:
		k.record = live(k.lapseOrphan(v.record, k.now), k.now)
	}
	return nil
}

// setClaim sets the record of the key's claim. base is the key's value in the database.
func (k *lockedKey) setClaim(record *idempotency.Record, base *value) {
	c := &claim{record: record, base: base.bare(), from: k.db}
	if k.claim != nil {
		c.body = k.claim.body
	}
	k.claim = c
}

// lapseOrphan returns a record of the database of which this process has no claim. If the record is in
// flight, the process that wrote it is dead, and lapseOrphan ends its lease. The clock may have been set
// back since then.
func (s *Store) lapseOrphan(r *idempotency.Record, now time.Time) *idempotency.Record {
	until := earliest(s.opened, now)
	if r.State != idempotency.InFlight || !r.LeaseUntil.After(until) {
		return r
	}
	lapsed := *r
	lapsed.LeaseUntil = until
	return &lapsed
}

func earliest(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// load reads the key's value from the database, nil if there is none.
func (k *lockedKey) load(ctx context.Context) (*value, error) {
	return readWithDeadline(ctx, k.db, func() (*value, error) {
		stored, err := k.db.get(valueName(k.key, ""))
		if err != nil {
			return nil, k.readError("record", k.key, err)
		}
		if stored == nil {
			return nil, nil
		}
		v, err := decodeRecordValue(k.key, stored)
		if err != nil {
			return nil, k.unreadable("record", k.key, err)
		}
		return v, nil
	})
}

// loadResponse returns the value that read has set with the bytes of its response, unless the response has expired.
func (k *lockedKey) loadResponse(ctx context.Context) (*value, error) {
	v := k.stored
	if v == nil || v.answer.live(k.now) == nil || v.answer.encoded != nil {
		return v, nil
	}
	return k.load(ctx)
}

// response returns the response of the run with this token, nil if there is none.
func (k *lockedKey) response(ctx context.Context, token string) (*idempotency.Response, error) {
	v, err := k.loadResponse(ctx)
	if err != nil {
		return nil, err
	}
	var a *answer
	if v != nil && v.answer != nil && v.answer.token == token {
		if a = v.answer.live(k.now); a == nil || a.location.segment == 0 {
			return k.decodeAnswer(a)
		}
	}
	return readWithDeadline(ctx, k.db, func() (*idempotency.Response, error) {
		if a == nil {
			stored, err := k.db.get(valueName(k.key, token))
			if err != nil {
				return nil, k.readError("response", k.key, err)
			}
			if stored == nil {
				return nil, nil
			}
			v, err := decodeValue(k.key, stored)
			if err != nil {
				return nil, k.unreadable("response", k.key, err)
			}
			a = v.answer.live(k.now)
		}
		return k.decodeAnswer(a)
	})
}

// decodeAnswer returns the response of an answer, nil if that is nil. It reads the body if that is
// in a segment. If the segment is gone, it returns the response without its body.
func (k *lockedKey) decodeAnswer(a *answer) (*idempotency.Response, error) {
	if a == nil {
		return nil, nil
	}
	var r *idempotency.Response
	var err error
	if a.location.segment == 0 {
		r, err = idempotency.DecodeResponse(k.key, a.token, a.encoded)
	} else {
		body, name, readErr := k.bodies.read(a.until, a.location)
		switch err = readErr; {
		case err == nil:
			r, err = idempotency.DecodeResponseParts(k.key, a.token, a.encoded, body)
		case errors.Is(err, os.ErrNotExist):
			// A clock that was ahead for some time has removed it.
			if r, err = idempotency.DecodeResponseWithoutBody(k.key, a.token, a.encoded); err == nil {
				k.logger.Warn("the body of a kept response is gone", zap.Stringer("key", k.key), zap.String("file", name))
			}
		case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
			return nil, k.wrap(err)
		}
		if err != nil {
			err = fmt.Errorf("its body in %s: %w", name, err)
		}
	}
	if err != nil {
		return nil, k.unreadable("response", k.key, err)
	}
	return r, nil
}

// writeBody writes the body of an answer to a segment if it is large, see [bodies.write].
func (k *lockedKey) writeBody(ctx context.Context, a *answer, pending **bodyWrite) error {
	if len(a.response.Body) <= maxInlineBody {
		return nil
	}
	err := k.db.status()
	if err == nil {
		err = k.bodies.write(ctx, k.key, a, pending)
	}
	return k.wrap(err)
}

// write replaces the key's value by next, and the key's claim by c, which may be nil. An error comes with
// a result other than [applied].
func (k *lockedKey) write(ctx context.Context, next value, c *claim) (writeResult, error) {
	old, err := k.loadResponse(ctx)
	if err != nil {
		return notApplied, err
	}
	size := valueHeadSize
	if a := next.answer; a != nil && a.response != nil {
		size += len(a.response.Body)
	}
	batch := k.db.db.NewBatch(pebble.WithInitialSizeBytes(size))
	stored, err := replace(batch, k.key, old, next, k.now)
	if err != nil {
		return notApplied, errors.Join(err, batch.Close())
	}
	if c != nil {
		c.base, c.from = stored.bare(), k.db
	}
	return k.commit(ctx, batch, c)
}

// commit writes a batch that changes the key, and sets the key's claim to c. It unlocks the key when
// the result is known, which may be after commit has returned.
func (k *lockedKey) commit(ctx context.Context, batch *pebble.Batch, c *claim) (writeResult, error) {
	k.lockTransferred = true
	before := k.claim
	result, err := k.db.commit(ctx, batch, func(result writeResult) {
		switch result {
		case applied:
			k.filter.add(&k.key)
			k.keys.unlock(k.key, c)
			if c == nil {
				k.waiters.Wake(k.key)
			}
		case unknown:
			k.filter.add(&k.key)
			if before != nil {
				before = before.withoutBase()
			}
			k.keys.unlock(k.key, before)
		case notApplied:
			k.keys.unlock(k.key, before)
		}
	})
	return result, k.wrap(err)
}
