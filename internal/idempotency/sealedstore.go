package idempotency

import (
	"context"
	"time"
)

// sealedStore seals what goes into a store and opens what comes out of it. The
// store itself knows nothing of that: the rules need neither a response nor a
// delivery ID.
type sealedStore struct {
	Store
	sealer *Sealer
}

// Sealed returns the store with what a sealer seals kept sealed in it; nil seals
// nothing. What was stored unsealed is read all the same. What does not open is
// an [*UnreadableError].
func Sealed(store Store, sealer *Sealer) Store {
	return &sealedStore{Store: store, sealer: sealer}
}

// Claim implements [Store].
func (s *sealedStore) Claim(ctx context.Context, c Claim) (Claimed, error) {
	if c.SealedBy == "" {
		c.DeliveryID, c.SealedBy = s.sealer.sealID(c.Key, c.DeliveryID)
	}
	got, err := s.Store.Claim(ctx, c)
	var unread error
	got.Record, unread = s.sealer.openRecord(c.Key, got.Record)
	if err != nil {
		return got, err
	}
	if got.Verdict == Proceed || c.Operator {
		// The claim stands. That an earlier run's delivery ID does not open, which
		// only operators would read, changes nothing for this one. An operator's
		// own claim needs no keys at all.
		got.Previous, _ = s.sealer.openRecord(c.Key, got.Previous)
		return got, nil
	}
	if unread != nil {
		return Claimed{}, unreadableRecord(c.Key, unread)
	}
	if got.Response != nil {
		got.Response, err = s.openResponse(c.Key, got.Record.Token, got.Response)
	}
	if err != nil {
		return Claimed{}, err
	}
	return got, nil
}

// Renew implements [Store]. A renewal writes no delivery ID.
func (s *sealedStore) Renew(ctx context.Context, c Claim) error {
	c.DeliveryID = ""
	return s.Store.Renew(ctx, c)
}

// Settle implements [Store].
func (s *sealedStore) Settle(ctx context.Context, key Key, claimed *Record, settlement Settlement) error {
	settlement.Response = s.sealer.sealResponse(key, claimed.Token, settlement.Response)
	return s.Store.Settle(ctx, key, s.sealer.sealRecord(key, claimed), settlement)
}

// Lookup implements [Store].
func (s *sealedStore) Lookup(ctx context.Context, key Key) (*Record, time.Time, error) {
	found, now, err := s.Store.Lookup(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	if found, err = s.sealer.openRecord(key, found); err != nil {
		return nil, time.Time{}, unreadableRecord(key, err)
	}
	return found, now, nil
}

// Response implements [Store].
func (s *sealedStore) Response(ctx context.Context, key Key, token string) (*Response, error) {
	found, err := s.Store.Response(ctx, key, token)
	if err != nil {
		return nil, err
	}
	return s.openResponse(key, token, found)
}

// List implements [Store].
func (s *sealedStore) List(ctx context.Context, cursor string, limit int) ([]Listed, string, error) {
	page, next, err := s.Store.List(ctx, cursor, limit)
	for i, listed := range page {
		record, err := s.sealer.openRecord(listed.Key, listed.Record)
		if err != nil {
			page[i] = Listed{Key: listed.Key, Unreadable: unreadableRecord(listed.Key, err)}
			continue
		}
		page[i].Record = record
	}
	return page, next, err
}

func (s *sealedStore) openResponse(key Key, token string, r *Response) (*Response, error) {
	opened, err := s.sealer.openResponse(key, token, r)
	if err != nil {
		return nil, &UnreadableError{Where: "response of the record " + key.String(), Err: err}
	}
	return opened, nil
}

func unreadableRecord(key Key, err error) error {
	return &UnreadableError{Where: "record " + key.String(), Err: err}
}
