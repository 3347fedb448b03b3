package seal

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Store seals what goes into a store, and opens what comes out of it. The inner
// store does not know about encryption, and does not need to: the rules read
// neither responses nor delivery IDs, and only compare fingerprints.
//
// [Store.Claim] returns a record with its delivery ID still sealed, because the run
// passes the record back to [Store.Settle], perhaps after the keys have changed.
// [Store.Opened], [Store.List] and [Store.Find], from which operators read, open it.
//
// A record or response that was stored without encryption can still be read. One
// that cannot be opened is an [*idempotency.UnreadableError].
type Store struct {
	idempotency.Store
	sealer atomic.Pointer[Sealer]
}

var _ idempotency.Store = (*Store)(nil)

// Around returns a store that seals with this sealer what it puts into the given
// store. With a nil sealer it seals nothing.
func Around(store idempotency.Store, sealer *Sealer) *Store {
	s := &Store{Store: store}
	s.Use(sealer)
	return s
}

// Use changes the sealer, for all that is stored and read from now on.
func (s *Store) Use(sealer *Sealer) { s.sealer.Store(sealer) }

// Sealer returns the sealer that is in use, nil if nothing is sealed.
func (s *Store) Sealer() *Sealer { return s.sealer.Load() }

// Claim implements [idempotency.Store]. The encryption key of a record must be
// configured where the record answers the request: with its response, now or when its
// run has ended. For all else nothing has to be opened.
func (s *Store) Claim(ctx context.Context, c idempotency.Claim) (idempotency.Claimed, error) {
	sealer := s.Sealer()
	if c.SealedBy == "" {
		c = sealer.sealOrigin(c)
	}
	got, err := s.Store.Claim(ctx, c)
	if err != nil {
		return got, err
	}
	switch got.Verdict {
	case idempotency.WaitForRun, idempotency.ReplayKept, idempotency.RefuseUnreadable:
		if err := sealer.check(got.Record); err != nil {
			return idempotency.Claimed{}, unreadableRecord(c.Key, err)
		}
	}
	if got.Response != nil {
		if got.Response, err = s.openResponse(c.Key, got.Record.Token, got.Response); err != nil {
			return idempotency.Claimed{}, err
		}
	}
	return got, nil
}

// Settle implements [idempotency.Store].
func (s *Store) Settle(ctx context.Context, key idempotency.Key, claimed *idempotency.Record, settlement idempotency.Settlement) error {
	sealer := s.Sealer()
	settlement.Response = sealer.sealResponse(key, claimed.Token, settlement.Response)
	settlement.Reason = sealer.sealReason(key, settlement.Reason)
	return s.Store.Settle(ctx, key, claimed, settlement)
}

// Readable reports whether the encryption keys of a record are configured, so that its
// response may be shown.
func (s *Store) Readable(record *idempotency.Record) bool { return s.Sealer().check(record) == nil }

// Opened returns a record as operators read it, with its delivery ID. The record that
// a forced run is to replace stays as it is stored.
func (s *Store) Opened(key idempotency.Key, record *idempotency.Record) (*idempotency.Record, error) {
	opened, err := s.Sealer().openRecord(key, record)
	if err != nil {
		return nil, unreadableRecord(key, err)
	}
	return opened, nil
}

// Release implements [idempotency.Store].
func (s *Store) Release(ctx context.Context, key idempotency.Key, token string, pre idempotency.Precondition) (*idempotency.Record, error) {
	pre, err := s.stored(ctx, key, pre)
	if err != nil {
		return nil, err
	}
	return s.Store.Release(ctx, key, token, pre)
}

// Forget implements [idempotency.Store].
func (s *Store) Forget(ctx context.Context, key idempotency.Key, pre idempotency.Precondition) error {
	pre, err := s.stored(ctx, key, pre)
	if err != nil {
		return err
	}
	return s.Store.Forget(ctx, key, pre)
}

// stored returns what the inner store has of what an operator has seen. What the operator
// cannot read the inner store can, where only the encryption key is missing.
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
		return pre, nil // it can be read: it is another
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
