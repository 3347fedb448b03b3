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
	f, err := s.lookUp(ctx, key, nil)
	if err != nil {
		return nil, time.Time{}, err
	}
	return f.record, f.now, nil
}

// Ready implements [idempotency.Store]. A replica answers too, and then each request is
// refused.
func (s *Store) Ready(ctx context.Context) error {
	ctx, cancel := s.withTimeout(ctx)
	defer cancel()
	_, err := s.lookUp(ctx, idempotency.Key{}, func(to *request) { to.claims, to.asks = true, true })
	return err
}

// lookUp reads a record as it stands; without one, only the time is known. arm is that of
// [Store.runScript].
func (s *Store) lookUp(ctx context.Context, key idempotency.Key, arm func(*request)) (*found, error) {
	name := s.names.record(key)
	var answer reply
	err := try(ctx, func() (err error) {
		answer, _, _, err = s.runScript(ctx, lookupScript, []string{name}, arm)
		return err
	})
	if err != nil {
		return nil, s.fail("look up", err)
	}
	f, err := lookedUp(key, name, answer)
	if f != nil && f.withdrawn {
		f = nil // nobody has claimed the key
	}
	if f == nil && err == nil {
		f = &found{now: fromMillis(answer.now)}
	}
	return f, err
}

// lookedUp reads a reply of lookup.lua. It returns nil if there is no record.
func lookedUp(key idempotency.Key, name string, answer reply) (*found, error) {
	switch answer.word {
	case replyAbsent:
		return nil, nil
	case replyFound:
		if value, ok := answer.value(1); ok {
			return decodeFound(key, name, value, answer.now)
		}
	}
	return nil, answer.unexpectedReply(name)
}
