package seal

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store seals what goes into a store, and opens what comes out of it. The inner store needs to know
// nothing of encryption: the rules read neither responses nor delivery IDs, and only compare
// fingerprints.
//
// [Store.Claim] leaves a run's record sealed, because the run passes the record back to [Store.Settle],
// perhaps after the keys have changed. For duplicates, [Store.Claim] and [Store.Lookup] open the reason
// and the location, and leave the delivery ID sealed. [Store.Opened], [Store.List] and [Store.Find],
// which are for operators, open all.
//
// Records and responses that were stored without encryption stay readable. For those that cannot be
// opened the error is an [*idempotency.UnreadableError].
type Store struct {
	idempotency.Store
	sealer atomic.Pointer[Sealer]
}

var _ idempotency.Store = (*Store)(nil)

// Around returns a store that seals with this sealer. With a nil sealer it seals nothing.
func Around(store idempotency.Store, sealer *Sealer) *Store {
	s := &Store{Store: store}
	s.Use(sealer)
	return s
}

// Use changes the sealer for all later calls.
func (s *Store) Use(sealer *Sealer) { s.sealer.Store(sealer) }

// Sealer returns the sealer that is in use, nil if nothing is sealed.
func (s *Store) Sealer() *Sealer { return s.sealer.Load() }

// Claim implements [idempotency.Store]. It returns an error if the encryption key of a record is not
// configured and the request needs its response, now or when its run has ended.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	sealer := s.Sealer()
	got, err := s.Store.Claim(ctx, sealer.sealOrigin(c))
	if err != nil {
		return got, err
	}
	switch got.Verdict {
	case idempotency.WaitForRun, idempotency.ReplayKept, idempotency.RefuseUnreadable:
		if err := sealer.check(got.Record); err != nil {
			return idempotency.Claimed{}, unreadableRecord(c.Key, err)
		}
		got.Record = sealer.openTexts(c.Key, got.Record)
	}
	if got.Response != nil {
		if got.Response, err = s.openResponse(c.Key, got.Record.Token, got.Response); err != nil {
			return idempotency.Claimed{}, err
		}
	}
	return got, nil
}

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	found, now, err := s.Store.Lookup(ctx, key)
	return s.Sealer().openTexts(key, found), now, err
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	sealer := s.Sealer()
	settlement.Response = sealer.sealResponse(key, claimed.Token, settlement.Response)
	settlement.Reason = sealer.sealText(sealedReasonLabel, key, settlement.Reason)
	return s.Store.Settle(ctx, key, claimed, settlement)
}

// Readable reports whether the encryption keys of a record are configured, so that requests may get
// its response.
func (s *Store) Readable(record *idempotency.Record) bool { return s.Sealer().check(record) == nil }

// Opened returns a record for operators, with a readable delivery ID. Its Previous stays as it is
// stored.
func (s *Store) Opened(key idempotency.Key, record *idempotency.Record) (*idempotency.Record, error) {
	opened, err := s.Sealer().openRecord(key, record)
	if err != nil {
		return nil, unreadableRecord(key, err)
	}
	return opened, nil
}

// Change implements [idempotency.Store]. A key whose record cannot be opened cannot be completed:
// its duplicates would not get the response.
func (s *Store) Change(ctx context.Context, key idempotency.Key, c idempotency.Change) (*idempotency.Record, error) {
	var err error
	if c.State == idempotency.Complete {
		var found *idempotency.Record
		if found, _, err = s.Store.Lookup(ctx, key); err == nil {
			_, err = s.Opened(key, found)
		}
	} else {
		c.Precondition, err = s.stored(ctx, key, c.Precondition)
	}
	if err != nil {
		return nil, err
	}
	sealer := s.Sealer()
	c.Response = sealer.sealResponse(key, c.Token, c.Response)
	c.Reason = sealer.sealText(sealedReasonLabel, key, c.Reason)
	return s.Store.Change(ctx, key, c)
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	pre, err := s.stored(ctx, key, pre)
	if err != nil {
		return err
	}
	return s.Store.Forget(ctx, key, pre)
}

// stored returns the precondition for the inner store. To an operator, a record is also unreadable if
// only its encryption key is missing; the inner store can read that record.
func (s *Store) stored(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) (idempotency.Precondition, error) {
	if pre.State != idempotency.Unreadable {
		return pre, nil
	}
	found, now, err := s.Store.Lookup(ctx, key)
	if _, damaged := errors.AsType[*idempotency.UnreadableError](err); damaged || err == nil && found == nil {
		return pre, nil
	}
	if err != nil {
		return pre, err
	}
	if _, err := s.Opened(key, found); err == nil {
		return pre, nil // readable, so not what the operator saw: the inner store refuses
	}
	return idempotency.PreconditionOf(found, now), nil
}

// Response implements [idempotency.Store].
func (s *Store) Response(ctx context.Context, key idempotency.Key, token string) (*idempotency.Response, error) {
	found, err := s.Store.Response(ctx, key, token)
	if err != nil {
		return nil, err
	}
	return s.openResponse(key, token, found)
}

// List implements [idempotency.Store].
func (s *Store) List(ctx context.Context, cursor string, limit int) ([]idempotency.Listed, string, error) {
	page, next, err := s.Store.List(ctx, cursor, limit)
	s.openAll(page)
	return page, next, err
}

// Find implements [idempotency.Store].
func (s *Store) Find(ctx context.Context, prefixes []idempotency.KeyPrefix, cursor string, limit int) ([]idempotency.Listed, string, error) {
	page, next, err := s.Store.Find(ctx, prefixes, cursor, limit)
	s.openAll(page)
	return page, next, err
}

// openAll opens the records of a page. One that does not open is unreadable.
func (s *Store) openAll(page []idempotency.Listed) {
	for i := range page {
		listed := &page[i]
		if listed.Unreadable == nil {
			listed.Record, listed.Unreadable = s.Opened(listed.Key, listed.Record)
		}
	}
}

func (s *Store) openResponse(key idempotency.Key, token string, r *idempotency.Response) (*idempotency.Response, error) {
	opened, err := s.Sealer().openResponse(key, token, r)
	if err != nil {
		return nil, &idempotency.UnreadableError{Where: "response of the record " + key.String(), Err: err}
	}
	return opened, nil
}

func unreadableRecord(key idempotency.Key, err error) error {
	return &idempotency.UnreadableError{Where: "record " + key.String(), Err: err}
}
