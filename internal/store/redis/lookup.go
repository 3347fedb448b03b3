package redis

import (
	"context"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	f, _, err := s.lookUp(ctx, key)
	if err != nil {
		return nil, time.Time{}, err
	}
	return f.record, f.now, nil
}

// Ready implements [idempotency.Store]. It looks up a key, which fails on a replica.
func (s *Store) Ready(ctx context.Context) error {
	_, _, err := s.Lookup(ctx, idempotency.Key{})
	return err
}

// lookUp reads a record. If there is none, only the time is set in the result. It also returns the value
// without its response, even if that cannot be read; empty if caddy-dedup has not written it.
func (s *Store) lookUp(ctx context.Context, key idempotency.Key) (_ *found, value []byte, err error) {
	name := s.names.record(key)
	var answer reply
	err = try(ctx, func() (err error) {
		answer, err = s.runScript(ctx, lookupScript, []string{name})
		return err
	})
	if err != nil {
		return nil, nil, s.fail("look up", err)
	}
	f := &found{now: fromMillis(answer.now)}
	if answer.word == replyAbsent {
		return f, nil, nil
	}
	if value, err = answer.value(name); err != nil {
		return nil, nil, err
	}
	decoded, err := decodeFound(key, name, value, answer.now)
	if err != nil || decoded.withdrawn { // the server has never executed a withdrawn claim
		return f, value, err
	}
	return decoded, value, nil
}
