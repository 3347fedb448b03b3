package redis

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/caddy-dedup/caddy-dedup/internal/idempotency"
)

// Lookup implements [idempotency.Store].
func (s *Store) Lookup(ctx context.Context, key idempotency.Key) (*idempotency.Record, time.Time, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	var answer reply
	err := try(ctx, func() (err error) {
		answer, err = s.run(ctx, lookupScript, []string{recordKey(key)})
		return err
	})
	if err != nil {
		return nil, time.Time{}, s.fail("look up", err)
	}
	f, err := lookedUp(key, answer)
	if err != nil {
		return nil, time.Time{}, err
	}
	if f == nil {
		return nil, fromMillis(answer.now), nil
	}
	return f.record, f.now, nil
}

// lookedUp reads a reply of lookup.lua, nil for no record.
func lookedUp(key idempotency.Key, answer reply) (*found, error) {
	switch answer.word {
	case saysAbsent:
		return nil, nil
	case saysFound:
		return decodeFound(key, answer)
	default:
		return nil, answer.strange(recordKey(key))
	}
}

// forgetRounds bounds how often a record is asked for because it was claimed
// anew in between.
const forgetRounds = 8

// Forget implements [idempotency.Store]. It removes what stands under the key's
// name also where that cannot be read.
func (s *Store) Forget(ctx context.Context, key idempotency.Key) (bool, error) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	tokens := "" // of the latest run and of earlier ones, once the record told them
	for range forgetRounds {
		keys := []string{recordKey(key)}
		for token := range strings.FieldsSeq(tokens) {
			keys = append(keys, responseKey(key, token))
		}
		var answer reply
		err := try(ctx, func() (err error) {
			answer, err = s.run(ctx, forgetScript, keys, tokens)
			return err
		})
		if err != nil {
			return false, s.fail("forget", err)
		}
		switch answer.word {
		case saysOK:
			return true, nil
		case saysGone:
			return false, nil
		}
		ok := false
		if answer.word == saysChanged && len(answer.rest) == 1 {
			tokens, ok = answer.rest[0].(string)
		}
		if !ok {
			return false, answer.strange(recordKey(key))
		}
	}
	return false, s.fail("forget", errors.New("the record is claimed anew all the time"))
}
